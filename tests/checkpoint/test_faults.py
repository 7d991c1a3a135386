"""Faults while a run saves: a full disk, a folder that is gone or cannot be written, SIGKILL at any moment."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from paceline.base.errors import CheckpointError, SaveError
from paceline.checkpoint import arrays, files
from paceline.checkpoint.reading import restore
from paceline.checkpoint.store import Store
from tests.checkpoint import states

ROOT = Path(__file__).parents[2]


def state(step):
    return {"small": jnp.full(50, step, jnp.float32), "large": jnp.full(300_000, step, jnp.float32)}


def fails(store, said, *, words, fix):
    """A save of step 2 fails in the words given; step 1 is as it was."""
    store.save(state(2), 2, meta={})
    store.wait()
    error = store.failure
    assert isinstance(error, SaveError)
    assert words in error.what
    assert "step 2" in error.what
    assert fix in error.fix
    assert said == [str(error)]
    assert error.exit_code == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax's threads end after its loop
@pytest.mark.parametrize("found_out", ["before", "while writing"])
def test_a_full_disk_is_said_at_once_and_the_next_save_is_tried_again(tmp_path, monkeypatch, found_out):
    """A file system of 3 MB with a step of 1.2 MB on it: the next does not fit. Space given, a later one does.

    Found out by asking the file system, and where it does not tell, by the library that writes.
    """
    if found_out == "while writing":
        monkeypatch.setattr(files, "check_space", lambda folder, size: None)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system takes root and the program mount")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        said = []
        with Store(small / "checkpoints", say=said.append) as store:
            store.save(state(1), 1, meta={})
            store.wait()
            (small / "filler").write_bytes(bytes(1_000_000))
            fails(store, said, words="the disk is full", fix="free space")
            assert files.leftovers(store.folder) == []
            assert restore(store.folder, like=state(0), say=pytest.fail).step == 1
            (small / "filler").unlink()
            first = store.failure
            store.save(state(3), 3, meta={})
            store.wait()
            assert files.steps(store.folder) == [1, 3]
            assert store.failure is first
            assert len(said) == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_what_a_failed_save_makes_again_is_taken_away_too(tmp_path):
    """A thread that goes on behind the failure makes the folder again: it is gone when discarding ends."""
    place = tmp_path / "2.saving"
    place.mkdir()

    def make_again() -> None:
        deadline_s = time.monotonic() + 5
        while place.exists() and time.monotonic() < deadline_s:
            time.sleep(0.001)
        (place / "default").mkdir(parents=True)

    thread = threading.Thread(target=make_again)
    thread.start()
    files.discard(place, settle_s=0.5)
    thread.join()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_trouble_of_the_disk_is_named_whether_python_or_the_library_reports_it(tmp_path, monkeypatch, code):
    """As an OSError and as a text; the first failure stays, each is said; nothing half-written is left."""
    said = []
    words = {
        errno.ENOSPC: "disk is full", errno.EDQUOT: "quota", errno.EROFS: "read-only", errno.EACCES: "not yours",
        errno.EIO: "reports an error",
    }[code]  # fmt: skip
    write = arrays.write
    errors = iter([OSError(code, os.strerror(code)), ValueError(f"UNAVAILABLE: x: {os.strerror(code)} [source y]")])

    def refuse(*args, **kwargs):
        write(*args, **kwargs)
        raise next(errors)

    with Store(tmp_path, say=said.append) as store:
        store.save(state(1), 1, meta={})
        store.wait()
        monkeypatch.setattr(arrays, "write", refuse)
        for step in (2, 3):
            store.save(state(step), step, meta={})
            store.wait()
        assert len(said) == 2
        assert all(words in text for text in said)
        assert "step 2" in store.failure.what
        assert "untouched" in store.failure.why
    assert [item.name for item in tmp_path.iterdir()] == ["1"]


def test_a_folder_that_is_gone_is_said_and_once_it_is_back_saving_goes_on(tmp_path):
    said = []
    with Store(tmp_path / "checkpoints", say=said.append) as store:
        store.save(state(1), 1, meta={})
        store.wait()
        store.folder.rename(tmp_path / "away")
        fails(store, said, words="the folder is gone", fix="put")
        (tmp_path / "away").rename(store.folder)
        store.save(state(3), 3, meta={})
        store.wait()
    assert files.steps(tmp_path / "checkpoints") == [1, 3]


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="cannot be saved in") as caught:
        Store(tmp_path / "file" / "checkpoints", say=pytest.fail)
    assert "can be written" in caught.value.fix


def test_a_read_only_disk_is_refused_before_the_run_and_said_during_it(tmp_path):
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a read-only file system takes root and the program mount; to root every folder is writable")
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        said = []
        with Store(tmp_path / "checkpoints", say=said.append) as store:
            store.save(state(1), 1, meta={})
            store.wait()
            subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
            fails(store, said, words="the file system is read-only", fix="writable")
            assert restore(store.folder, like=state(0)).step == 1
        with pytest.raises(CheckpointError, match="the file system is read-only"):
            Store(tmp_path / "checkpoints", say=pytest.fail)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_old_checkpoint_that_cannot_be_deleted_is_said(tmp_path, monkeypatch):
    said = []

    def refuse(path):
        raise PermissionError(errno.EACCES, "no", str(path))

    monkeypatch.setattr(files, "remove", refuse)
    with Store(tmp_path, say=said.append, keep=1) as store:
        for step in (1, 2):
            store.save(state(step), step, meta={})
        store.wait()
        assert "not yours" in store.failure.what
    assert files.steps(tmp_path) == [1, 2]


MOMENTS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


def test_before_and_after_each_change_of_the_folder_there_is_a_whole_checkpoint(tmp_path, monkeypatch):
    """What a kill would leave, copied before each call that changes names: never less than the last complete step.

    Three saves with keep=1, so that two old ones are deleted and a new best is noted.
    """
    folder, copies = tmp_path / "checkpoints", tmp_path / "copies"
    busy = False

    def before(call):
        def wrapped(*args, **options):
            nonlocal busy
            if not busy and folder.is_dir():
                busy = True
                shutil.copytree(folder, copies / f"{len(list(copies.glob('*'))):03}")
                busy = False
            return call(*args, **options)

        return wrapped

    with Store(folder, say=pytest.fail, keep=1, best="max:evaluate/loss") as store:
        store.save(state(1), 1, meta={})
        store.wait()
        copies.mkdir()
        for name in MOMENTS:
            monkeypatch.setattr(os, name, before(getattr(os, name)))
        for step in (2, 3):
            store.save(state(step), step, meta={})
            store.evaluated(step, {"evaluate/loss": float(step)})
        store.wait()
        monkeypatch.undo()
    found = []
    for copy in sorted(copies.iterdir()):
        restored = restore(copy, like=state(0), say=lambda text: None)
        states.assert_same(restored.state, state(restored.step))
        found.append(restored.step)
        with Store(copy, say=pytest.fail):
            pass
        assert files.leftovers(copy) == []
        assert list(files.step_folders(copy)) == files.steps(copy)
    assert len(found) > 20
    assert found == sorted(found)
    assert set(found) == {1, 2, 3}


def test_a_run_killed_at_any_moment_leaves_whole_checkpoints_only(tmp_path):
    """SIGKILL at 4 moments of saves and deletions: each time the latest complete one is restored, with its numbers.

    What is half-written is never taken for a checkpoint, the next run takes it away, and the best is still there.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    random = np.random.default_rng(0)
    last = 0
    for _ in range(4):
        command = [sys.executable, "-m", "tests.checkpoint.killed_run", str(tmp_path), str(last)]
        with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
            run.stdout.readline()
            time.sleep(float(random.uniform(0, 0.05)))
            run.kill()
        found = restore(tmp_path, like=state(0), say=lambda text: None)
        assert found.step > last + 2
        states.assert_same(found.state, state(found.step))
        last = found.step
        for step in files.steps(tmp_path):
            states.assert_same(restore(tmp_path, like=state(0), step=step).state, state(step))
    with Store(tmp_path, say=pytest.fail, keep=2, best="max:evaluate/loss"):
        pass
    assert files.leftovers(tmp_path) == []
    assert all(item.name.isdecimal() or item.name == "best.json" for item in tmp_path.iterdir())
