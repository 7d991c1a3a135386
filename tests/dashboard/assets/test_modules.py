"""The page's own files hold together: seen without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import paceline

ASSETS = Path(paceline.__file__).parent / "dashboard" / "assets"
MODULES = sorted(ASSETS.rglob("*.js"))
MOST_LINES = 400
MOST_COLUMNS = 120
_IMPORTED = re.compile(r"""^import (?:[^;]*? from )?["']([^"']+)["'];""", re.MULTILINE)
_CALLED = re.compile(r"""["'`](/assets/[^"'`$]+)["'`]""")
_HEAD = re.compile(r"/\*\*.*?\*/", re.DOTALL)


def name(path: Path) -> str:
    return path.relative_to(ASSETS).as_posix()


def test_there_are_modules():
    assert len(MODULES) > 10


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_what_a_module_imports_is_there(module):
    """Paths are relative and lead to a file of the page: a misspelled one would show in the browser only."""
    for target in _IMPORTED.findall(module.read_text("utf-8")):
        assert target.startswith("."), f"{name(module)} imports {target}"
        assert (module.parent / target).resolve().is_file(), f"{name(module)} imports {target}"


def test_what_the_page_loads_is_there():
    """But for plotly's, which comes from its package, and words, whose language is put in."""
    loaded = {path for file in [*MODULES, ASSETS / "index.html"] for path in _CALLED.findall(file.read_text("utf-8"))}
    assert len(loaded) > 10
    missing = {path for path in loaded if not (ASSETS / path.removeprefix("/assets/")).is_file()}
    assert missing == {"/assets/plotly.min.js"}


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_a_module_says_what_it_owns_and_stays_readable(module):
    text = module.read_text("utf-8")
    head = _HEAD.match(text)
    assert head is not None and "Owns:" in head[0]
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= MOST_COLUMNS


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_no_module_makes_markup_from_text(module):
    """Names of runs and metrics are shown as text, never as markup; and nothing is loaded from elsewhere."""
    text = module.read_text("utf-8")
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert unsafe not in text
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
