"""``--json FILE`` of any command: which files it never replaces."""

from __future__ import annotations

import errno
import os

import pytest

from paceline.base.errors import DataError, OptionError
from paceline.cli.reporting import reporting


def never(_):
    raise AssertionError("the command ran")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run in ``run``, and a plan, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in (
        "run/run.json",
        "run/report.json",
        "run/events-0.jsonl",
        "run/exports.json",
        "plan.json",
        "report.json",
    ):
        (tmp_path / name).write_text("old")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "run/run.json"],
        ["--json=run/report.json"],
        ["--json", "run/program.json"],
        ["--json", "run/events-0.jsonl"],
        ["--json", "run/exports.json"],
        ["--plan", "plan.json", "--json", "plan.json"],
        ["--json", "run/../plan.json", "--plan=plan.json"],
        ["plan.json", "--json", "plan.json"],
        ["--figure", "new.svg", "--json", "new.svg"],
    ],
)
def test_what_must_stay_is_not_replaced_even_by_the_error(folder, arguments):
    before = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(OptionError) as caught:
        reporting(arguments, never)
    assert "not written" in caught.value.what and caught.value.why and caught.value.fix
    assert {path: path.read_text() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("target", ["report.json", "run/mine.json", "new.json"])
def test_other_files_are_replaced(folder, target):
    """A report.json beside no run is nobody's record."""
    assert reporting(["image", "--json", target], lambda _: ({"found": 1}, 0)) == 0
    assert (folder / target).read_text() == '{\n  "found": 1\n}\n'


@pytest.mark.parametrize("kind", ["a named pipe", "a device"])
def test_what_is_no_file_is_not_replaced_by_one(folder, kind):
    """As root, --json /dev/null would take the device away from the machine."""
    if kind == "a device":
        (folder / "target").symlink_to(os.devnull)
    else:
        os.mkfifo(folder / "target")
    before = os.lstat(folder / "target")
    with pytest.raises(OptionError, match=f"{kind} lies there"):
        reporting(["--json", "target"], never)
    assert os.lstat(folder / "target") == before


def test_a_disk_that_is_full_in_the_end_is_told_in_words(folder, monkeypatch):
    """The error of the command, if there is one, comes first."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("paceline.cli.reporting.write_document", refuse)
    with pytest.raises(OptionError, match=r"new\.json: the file cannot be written: No space left") as caught:
        reporting(["--json", "new.json"], lambda _: ({}, 0))
    assert "free space" in caught.value.fix

    def fail(_):
        raise DataError(what="its own", why="", fix="")

    with pytest.raises(DataError, match="its own"):
        reporting(["--json", "new.json"], fail)
