"""Files that are drawn: refused before anything is done, or replaced whole."""

from __future__ import annotations

import importlib.util
import os

import pytest

from paceline.base.errors import OptionError
from paceline.base.figures import PAGES, FigureError, check_figure, drawing


@pytest.mark.parametrize(
    ("name", "fix"),
    [("a.gif", "use --figure a.png"), ("a", "use --figure a.png"), ("none/a.png", "folder that exists")],
)
def test_a_figure_that_could_not_be_written_is_refused_before_anything_is_done(tmp_path, name, fix):
    """An unknown ending, none, a folder that is not there."""
    with pytest.raises(OptionError) as error:
        check_figure(str(tmp_path / name) if "/" in name else name, flag="figure")
    assert fix in error.value.fix


def test_a_folder_is_no_figure(tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(OptionError, match="cannot be written"):
        check_figure(str(tmp_path / "a.png"), flag="figure")


def test_without_matplotlib_a_figure_is_refused_with_the_extra(monkeypatch, tmp_path):
    """The package that it takes, and how to do without."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError) as error:
        check_figure(str(tmp_path / "a.html"), flag="html", endings=PAGES)
    assert error.value.fix == "pip install 'paceline[report]', or leave the option out"


def test_a_drawing_takes_the_place_of_the_old_file_when_it_is_whole(tmp_path):
    path = tmp_path / "a.svg"
    path.write_text("old")
    with drawing(str(path)) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.svg", "new")]


@pytest.mark.parametrize("fails", ["drawing", "disk"])
def test_a_drawing_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, fails):
    """Whatever it raises, the error names the file and what went wrong, in one line."""
    path = tmp_path / "a.svg"
    path.write_text("old")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    if fails == "disk":
        monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(FigureError) as error, drawing(str(path)) as temporary:
        temporary.write_text("half")
        if fails == "drawing":
            raise ValueError("no font\nmore")
    reason = "No space left" if fails == "disk" else "ValueError: no font"
    assert f"{path} could not be drawn" in error.value.what and reason in error.value.what
    assert "more" not in error.value.what
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.svg", "old")]
