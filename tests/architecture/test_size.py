"""Files and functions stay small and say what they do. First the rules, then the proof that each can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import sizes

pytestmark = pytest.mark.once(reason="reads sources, and `make check` runs it at the other end")

ROOT = Path(__file__).parents[2]

EVERYWHERE = (
    sizes.file_too_long,
    sizes.function_too_long,
    sizes.placeholder_left,
    sizes.banner_comment,
    sizes.suppression_without_reason,
)
IN_SRC = (sizes.functions_long_in_the_median, sizes.module_docstring_missing, sizes.too_many_positional)


def sources(*folders: str) -> list[Path]:
    """Every Python file in these folders of the repository; a folder that is not there has none."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("rule", EVERYWHERE, ids=lambda rule: rule.__name__)
def test_every_source_keeps_to_the_style(rule):
    """No violation in src, tests or benchmarks."""
    violations = [line for path in sources("src", "tests", "benchmarks") for line in rule(path)]
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize("rule", IN_SRC, ids=lambda rule: rule.__name__)
def test_every_module_of_the_package_keeps_to_the_style(rule):
    """No violation in src."""
    violations = [line for path in sources("src") for line in rule(path)]
    assert not violations, "\n".join(violations)


def test_the_rules_read_files_at_all():
    """There are sources to read: an empty list would pass every rule."""
    assert len(sources("src", "tests")) > 5


def function(lines: int, *, name: str = "f") -> str:
    """Source of a function of exactly so many lines."""
    return f"def {name}():\n" + "    x = 1\n" * (lines - 1)


@pytest.fixture
def file(tmp_path):
    """Returns `write`, which puts a source on disk, by default as `src/paceline/base/a.py`, and returns its path."""

    def write(source: str, *, name: str = "base/a.py") -> Path:
        path = tmp_path / "src" / "paceline" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return path

    return write


def test_a_file_may_have_450_lines_and_no_more(file):
    assert sizes.file_too_long(file("x = 1\n" * 450)) == []
    assert len(sizes.file_too_long(file("x = 1\n" * 451))) == 1


def test_a_function_may_have_60_lines_and_no_more(file):
    assert sizes.function_too_long(file(function(60))) == []
    assert len(sizes.function_too_long(file(function(61)))) == 1
    assert len(sizes.function_too_long(file("class A:\n    async " + function(61).replace("\n", "\n    ")))) == 1


def test_only_one_function_of_the_training_loop_may_have_120_lines(file):
    assert sizes.function_too_long(file(function(120), name="train/loop.py")) == []
    assert len(sizes.function_too_long(file(function(121), name="train/loop.py"))) == 1
    assert len(sizes.function_too_long(file(function(120) + function(61, name="g"), name="train/loop.py"))) == 1
    assert len(sizes.function_too_long(file(function(120), name="engine/loop.py"))) == 1


def test_the_median_of_the_functions_is_at_most_15_lines(file):
    """Lengths 3, 15, 40 have the median 15; 3, 16, 40 have 16."""
    assert sizes.functions_long_in_the_median(file(function(3) + function(15) + function(40))) == []
    assert len(sizes.functions_long_in_the_median(file(function(3) + function(16) + function(40)))) == 1


def test_a_docstring_does_not_count_towards_the_median(file):
    """1 line of signature, 14 of code and a docstring of 5."""
    docstring = '    """A.\n\n    B.\n    C.\n    """\n'
    source = function(15).replace("def f():\n", "def f():\n" + docstring)
    assert sizes.functions_long_in_the_median(file(source)) == []
    assert len(sizes.functions_long_in_the_median(file(source + "    x = 1\n"))) == 1


@pytest.mark.parametrize("source", ["# TODO: later\n", '"""FIXME."""\n', "x = 1  # XXX\n"])
def test_a_note_to_do_it_later_is_found(file, source):
    assert len(sizes.placeholder_left(file(source))) == 1
    assert sizes.placeholder_left(file("# a to-do list\nx = 'TODO'\n")) == []


@pytest.mark.parametrize(
    "source", ["# ------\n", "# ==== Losses ====\n", "# Losses ----\n", "########\n", "# ───── a\n"]
)
def test_a_banner_is_found(file, source):
    assert len(sizes.banner_comment(file(source))) == 1
    assert sizes.banner_comment(file("# a -- b: use --batch 4\nx = '-----'\n")) == []


def test_a_module_without_a_docstring_is_found(file):
    assert len(sizes.module_docstring_missing(file("# A comment is not a docstring.\nx = 1\n"))) == 1
    assert sizes.module_docstring_missing(file('"""Owns x."""\n')) == []


@pytest.mark.parametrize(
    "source",
    [
        "def f(a, b, c): ...",
        "def f(a, /, b, c=1): ...",
        "async def f(a, b, c): ...",
        "class A:\n    def f(self, a, b, c): ...",
        "class A:\n    @classmethod\n    def f(cls, a, b, c): ...",
        "class A:\n    @staticmethod\n    def f(a, b, c): ...",
        "if True:\n    def f(a, b, c): ...",
        "def loss(params, model_state, batch, rng, scale): ...",
    ],
)
def test_a_third_positional_parameter_is_found(file, source):
    assert len(sizes.too_many_positional(file(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def f(a, b, *, c): ...",
        "def _f(a, b, c): ...",
        "class A:\n    def f(self, a, b): ...",
        "class A:\n    def __exit__(self, kind, error, trace): ...",
        "class _A:\n    def f(self, a, b, c): ...",
        "def f():\n    def g(a, b, c): ...",
        "def loss(params, model_state, batch, rng): ...",
    ],
)
def test_private_nested_dunder_and_protocol_functions_may_take_more(file, source):
    assert sizes.too_many_positional(file(source)) == []


SUPPRESSIONS = [
    "noqa",
    "noqa: E402",
    "noqa: E402, F401",
    "ruff: noqa: E501",
    "type: ignore[arg-type]",
    "pyright: ignore[reportX]",
]


@pytest.mark.parametrize("suppression", [*SUPPRESSIONS, "type: ignore", "pyright: basic"])
def test_a_suppression_needs_its_reason(file, suppression):
    """Bare it is found; with a dash or a second hash and a reason it passes; one word is no reason."""
    assert len(sizes.suppression_without_reason(file(f"x = 1  # {suppression}\n"))) == 1
    assert len(sizes.suppression_without_reason(file(f"x = 1  # {suppression} - needed\n"))) == 1
    assert sizes.suppression_without_reason(file(f"x = 1  # {suppression} - jax is configured first\n")) == []
    assert sizes.suppression_without_reason(file(f"x = 1  # {suppression}  # jax is configured first\n")) == []


def test_every_exemption_carries_its_reason():
    assert all(
        len(reason.split()) >= 2 for reason in [*sizes.PROTOCOLS.values(), *sizes.READS_STRAIGHT_THROUGH.values()]
    )
