"""Imports go down only. First the rules on Paceline itself, then the proof that each rule can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import layers

pytestmark = pytest.mark.once(reason="reads sources, and `make check` runs it at the other end")

PACELINE = Path(__file__).parents[2] / "src" / "paceline"

RULES = (
    layers.unknown_packages,
    layers.upward_imports,
    layers.forbidden_jax_imports,
    layers.forbidden_names,
    layers.cycles,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_paceline_keeps_its_layers(rule):
    """No violation of any rule, anywhere in the package."""
    violations = rule(PACELINE)
    assert not violations, "\n".join(violations)


def test_the_checker_reads_the_sources_at_all():
    """The package has modules and imports: an empty reading would pass every rule."""
    assert "paceline.base.errors" in layers.modules(PACELINE)
    assert layers.imports(PACELINE)


@pytest.fixture
def package(tmp_path):
    """Returns `write`, which turns {"engine/step.py": source} into a package on disk and returns its folder."""

    def write(sources: dict[str, str]) -> Path:
        for name, source in sources.items():
            path = tmp_path / "paceline" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return tmp_path / "paceline"

    return write


UPWARD = {
    "plain": "import paceline.train.loop",
    "from a module": "from paceline.train.loop import fit",
    "from a package": "from paceline.train import fit",
    "package from the root": "from paceline import train",
    "relative": "from ..train import loop",
    "inside a function": "def f():\n    from paceline.train import loop",
    "for types only": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from paceline.train import loop",
    "by name": "import importlib\nloop = importlib.import_module('paceline.train.loop')",
}


@pytest.mark.parametrize("source", UPWARD.values(), ids=UPWARD.keys())
def test_an_import_that_goes_up_is_found_however_it_is_written(package, source):
    """Engine lies below train: each spelling is one violation that names both."""
    found = layers.upward_imports(package({"engine/step.py": source, "train/__init__.py": "", "train/loop.py": ""}))
    assert len(found) == 1
    assert "'engine' imports 'train'" in found[0]


def test_packages_on_one_row_may_not_import_each_other(package):
    """Task and topology share a row."""
    found = layers.upward_imports(
        package({"tasks/task.py": "from paceline.topology import mesh", "topology/mesh.py": ""})
    )
    assert found == ["paceline.tasks.task:1: 'tasks' imports 'topology'"]


def test_the_public_root_lies_above_every_layer(package):
    """`import paceline` inside the package is an import that goes up."""
    found = layers.upward_imports(package({"__init__.py": "", "recipes/image.py": "import paceline"}))
    assert found == ["paceline.recipes.image:1: 'recipes' imports '__init__'"]


def test_imports_that_go_down_or_stay_inside_pass(package):
    """Down several rows, to a sibling module, and from outside the package: no violation."""
    lines = ["from paceline.base import errors", "from . import state", "import numpy"]
    source = "\n".join([*lines, "from paceline.tasks.losses import Weighted"])
    sources = {"engine/step.py": source, "engine/state.py": "", "base/errors.py": "", "task/losses.py": ""}
    assert layers.upward_imports(package(sources)) == []


@pytest.mark.parametrize("name", ["helpers/text.py", "common.py"])
def test_a_package_without_a_row_is_unknown(package, name):
    """Neither a folder nor a lone module at the root may appear without a decision on its layer."""
    assert len(layers.unknown_packages(package({name: ""}))) == 1


@pytest.mark.parametrize("folder", layers.WITHOUT_JAX)
@pytest.mark.parametrize("source", ["import jax.numpy as jnp", "def f():\n    from optax import sgd"])
def test_jax_is_found_where_it_must_not_be(package, folder, source):
    """Direct or through a library that imports it, at the top or lazily; the engine may."""
    assert len(layers.forbidden_jax_imports(package({f"{folder}/a.py": source, "engine/b.py": source}))) == 1


@pytest.mark.parametrize("name", ["engine/utils.py", "engine/util/text.py"])
def test_a_module_named_utils_is_found(package, name):
    """As a file and as a folder."""
    assert len(layers.forbidden_names(package({name: "", "engine/state.py": ""}))) == 1


def test_a_cycle_is_found_when_it_hides_in_a_function(package):
    """Three modules in a ring, one edge lazy: one group, with all three and not the module that only uses them."""
    sources = {
        "engine/a.py": "from paceline.engine import b",
        "engine/b.py": "from . import c",
        "engine/c.py": "def f():\n    from paceline.engine.a import x",
        "engine/d.py": "from paceline.engine import a",
    }
    found = layers.cycles(package(sources))
    assert found == ["import cycle: paceline.engine.a <-> paceline.engine.b <-> paceline.engine.c"]


def test_a_module_that_imports_from_its_own_package_init_is_a_cycle(package):
    """The package re-exports from the module, the module imports the re-export."""
    sources = {"engine/__init__.py": "from .step import run", "engine/step.py": "from paceline.engine import other"}
    assert layers.cycles(package(sources)) == ["import cycle: paceline.engine <-> paceline.engine.step"]


def test_types_only_re_exports_make_a_cycle_in_a_module_but_not_in_an_init(package):
    """A lazy `__init__` names its types for the checker; elsewhere the same block counts."""
    typing_block = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from paceline.engine.step import run"
    lazy_init = {"engine/__init__.py": typing_block, "engine/step.py": "from paceline.engine import other"}
    assert layers.cycles(package(lazy_init)) == []
    module = {"engine/state.py": typing_block, "engine/step.py": "from paceline.engine import state"}
    assert layers.cycles(package(module)) == ["import cycle: paceline.engine.state <-> paceline.engine.step"]
