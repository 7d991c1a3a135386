"""Making the folder of a run, or leaving no trace."""

from __future__ import annotations

import errno
import math
import os
import threading
from datetime import datetime
from pathlib import Path

import pytest

from paceline.base.errors import RunFolderError
from paceline.telemetry.folder import RunFolder, default_run_path, free_sibling


def test_a_discarded_run_frees_its_path_but_keeps_the_files_of_others(tmp_path):
    """The run's own files go; a file that somebody put there stays, and the folder with it."""
    for name, extra in (("own", []), ("shared", ["notes.txt"])):
        folder = RunFolder.create(tmp_path / name)
        folder.events_file(0).write_bytes(b"")
        folder.write_program({"flops": 1})
        for file in extra:
            (folder.path / file).write_text("mine")
        folder.discard()
        assert tree(tmp_path / name) == extra
    assert not (tmp_path / "own").exists()


def tree(root):
    """Every path under ``root``, relative to it."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def refuse(number):
    """A system call that fails with ``number``."""

    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


def test_creating_makes_the_folder_and_its_parents(tmp_path):
    """And run.json at once, which marks the folder as taken."""
    folder = RunFolder.create(tmp_path / "runs" / "image")
    assert tree(tmp_path) == ["runs", "runs/image", "runs/image/run.json"]
    assert folder == RunFolder.open(tmp_path / "runs" / "image")
    assert folder.events_file(3).name == "events-3.jsonl"
    assert folder.checkpoints == tmp_path / "runs" / "image" / "checkpoints"


def test_an_empty_folder_is_taken(tmp_path):
    """A volume that is mounted for the run exists already."""
    (tmp_path / "volume").mkdir()
    assert RunFolder.create(tmp_path / "volume").run_file.exists()


def test_a_folder_that_holds_something_is_left_alone_and_a_free_one_named(tmp_path, monkeypatch):
    """The fix is the next free sibling, as typed; following it works."""
    monkeypatch.chdir(tmp_path)
    RunFolder.create("runs/image").write_run({"seed": 1})
    Path("runs/image-2").mkdir()
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create("runs/image")
    assert caught.value.what == "run folder 'runs/image' exists and is not empty"
    assert caught.value.fix == "choose a free folder, such as 'runs/image-3'"
    assert '"seed": 1' in Path("runs/image/run.json").read_text()
    RunFolder.create("runs/image-3")


@pytest.mark.parametrize("wanted", [".", "", "..", "inner/.."])
def test_a_path_without_a_name_gets_a_fix_with_one(tmp_path, monkeypatch, wanted):
    """The current folder holds something; its sibling is named in full."""
    (tmp_path / "work" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / ("inner" if wanted == ".." else ""))
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create(wanted)
    assert caught.value.fix == f"choose a free folder, such as '{tmp_path / 'work-2'}'"


@pytest.mark.parametrize("wanted", ["file", "file/run", "file/deep/run"])
def test_a_file_in_the_way_is_named(tmp_path, wanted):
    """At the place itself or above it; the fix is beside the file, and the file is untouched."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create(tmp_path / wanted)
    assert f"'{tmp_path / 'file'}' is not a folder" in caught.value.what
    assert f"'{tmp_path / 'file-2'}'" in caught.value.fix
    assert tree(tmp_path) == ["file"]


def test_a_link_that_leads_nowhere_is_in_the_way(tmp_path):
    """It is neither a folder nor free."""
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(RunFolderError, match="is not a folder"):
        RunFolder.create(tmp_path / "link")


@pytest.mark.parametrize(
    "number, reason, fix",
    [
        (errno.EACCES, "it is not yours to write to", "choose a folder that you can write to, such as '~/runs/image'"),
        (errno.EROFS, "the file system is read-only", "choose a folder that you can write to, such as '~/runs/image'"),
        (errno.ENOSPC, "the disk is full", "free space on the disk"),
        (errno.EDQUOT, "your disk quota is used up", "free space on the disk"),
        (errno.EIO, "Input/output error [EIO]", "choose a folder that you can write to"),
    ],
)
@pytest.mark.parametrize("call", ["mkdir", "open", "write"])
def test_a_disk_that_refuses_is_explained_and_nothing_is_left(tmp_path, monkeypatch, number, reason, fix, call):
    """Whichever system call fails, parents that were made for the run are gone again."""
    with monkeypatch.context() as patch, pytest.raises(RunFolderError) as caught:
        patch.setattr(os, call, refuse(number))
        RunFolder.create(tmp_path / "runs" / "image")
    assert caught.value.what.endswith(reason)
    assert caught.value.fix.startswith(fix)
    assert tree(tmp_path) == []


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_disk_takes_is_explained(tmp_path, name):
    """The fix offers a plain name; parents made on the way are gone again."""
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create(tmp_path / "runs" / name)
    assert "choose a shorter, plain name" in caught.value.fix
    assert tree(tmp_path) == []


def test_of_many_that_want_one_folder_exactly_one_gets_it(tmp_path):
    """Eight threads at once; the folder of the winner survives the others' failure."""
    start = threading.Barrier(8)
    got: list[RunFolder | RunFolderError] = []

    def want():
        start.wait()
        try:
            got.append(RunFolder.create(tmp_path / "runs" / "image"))
        except RunFolderError as error:
            got.append(error)

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, RunFolder) for one in got) == 1
    assert (tmp_path / "runs" / "image" / "run.json").exists()


def test_documents_are_written_into_the_folder(tmp_path):
    """A report with a loss that is NaN stays JSON."""
    folder = RunFolder.create(tmp_path / "run")
    folder.write_run({"batch": 32})
    folder.write_report({"loss": math.nan})
    assert folder.run_file.read_text() == '{\n  "batch": 32\n}\n'
    assert folder.report_file.read_text() == '{\n  "loss": "nan"\n}\n'


def test_a_report_that_cannot_be_written_is_an_error_with_a_fix(tmp_path, monkeypatch):
    """The disk is full at the end of the run."""
    folder = RunFolder.create(tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(RunFolderError, match=r"report\.json.*disk is full") as caught:
        patch.setattr(os, "fsync", refuse(errno.ENOSPC))
        folder.write_report({"loss": 1.0})
    assert "free space" in caught.value.fix
    assert tree(folder.path) == ["run.json"]


def test_opening_what_is_no_run_says_what_is_missing(tmp_path):
    """A folder of runs is the usual mistake: the fix names one of them."""
    with pytest.raises(RunFolderError, match="there is no such folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match=r"holds no run\.json") as caught:
        RunFolder.open(tmp_path)
    assert caught.value.fix == "name the folder that the run printed when it started"
    RunFolder.create(tmp_path / "image")
    with pytest.raises(RunFolderError) as caught:
        RunFolder.open(tmp_path)
    assert caught.value.fix == f"name the folder of one run, such as '{tmp_path / 'image'}'"


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    """Python code may say ``~``; a folder of that name would be a trap for whoever removes it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunFolder.create("~/runs/a").path == tmp_path / "runs" / "a"


@pytest.mark.parametrize(
    "name, expected",
    [
        ("image", "image-20260102-030405"),
        ("tasks/my_task.py", "my_task-20260102-030405"),
        ("a b/c d!", "c-d-20260102-030405"),
        ("../..", "run-20260102-030405"),
        ("数字", "数字-20260102-030405"),
    ],
)
def test_a_default_path_is_a_name_and_a_time(tmp_path, name, expected):
    """Whatever the task is called, one folder below the root."""
    assert default_run_path(tmp_path, name, now=datetime(2026, 1, 2, 3, 4, 5)) == tmp_path / expected


def test_two_runs_in_one_second_get_two_folders(tmp_path):
    """The counter follows the time."""
    paths = []
    for _ in range(3):
        paths.append(default_run_path(tmp_path, "image", now=datetime(2026, 1, 2, 3, 4, 5)))
        RunFolder.create(paths[-1])
    stem = "image-20260102-030405"
    assert [path.name for path in paths] == [stem, f"{stem}-2", f"{stem}-3"]


def test_a_free_sibling_counts_on_and_leaves_times_alone(tmp_path):
    """``-2`` becomes ``-3``; six digits are a time and not a counter."""
    assert free_sibling(tmp_path / "a-2").name == "a-3"
    assert free_sibling(tmp_path / "a-20260102-030405").name == "a-20260102-030405-2"
    assert free_sibling(Path("/")).name == "run-2"


def test_a_pipe_in_place_of_run_json_is_told(tmp_path):
    """Not as a folder without one."""
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(RunFolderError, match=r"run\.json cannot be read: a named pipe lies there"):
        RunFolder.open(tmp_path)


def test_a_file_of_a_run_is_answered_with_the_folder_around_it(tmp_path):
    """The other usual mistake."""
    folder = RunFolder.create(tmp_path / "image")
    with pytest.raises(RunFolderError, match="it is not a folder") as caught:
        RunFolder.open(folder.run_file)
    assert caught.value.fix == f"name the folder of the run, {str(folder.path)!r}"
