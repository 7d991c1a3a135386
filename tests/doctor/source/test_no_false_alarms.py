"""Our own recipes, documents and library pass the source check."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_examples import blocks
from tests.doctor.source.reading import troubles, write

pytestmark = pytest.mark.once(
    reason="reads the same sources whatever runs them; both ends read mistakes in tests/doctor"
)

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "paceline"
# The doctor's own sources name what is gone, in order to find it.
SOURCES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "doctor"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: "/".join(path.parts[-2:]))
def test_the_library_and_its_recipes_raise_no_alarm(path):
    """No warning, no error; 4 devices."""
    assert not [finding.lines() for finding in troubles(path, devices=4) if finding.file == str(path)]


@pytest.mark.parametrize("document", ["README.md", "docs/tasks.md", "docs/doctor.md"])
def test_the_examples_of_the_documents_raise_no_alarm(document, tmp_path):
    """Every block on its own."""
    for _, code in blocks(document):
        assert not [finding.lines() for finding in troubles(write(tmp_path, code), devices=4)]
