"""Opens run folders for the tests of the views."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.dashboard.follow.library import Library
from paceline.dashboard.follow.run import Run


@pytest.fixture
def open_run():
    """Returns `open`, which reads the run in a folder to its end."""

    def open(folder: Path) -> Run:
        library = Library(folder.parent)
        library.read_all()
        return library.run(folder.name)

    return open
