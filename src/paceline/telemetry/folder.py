"""The run folder: one folder holds one run.

Owns: where a run's files lie, and making the folder so that it belongs to one run alone.
Not here: what goes into the files (`telemetry.events`, `telemetry.document`), and checkpoints (`checkpoint`).
Invariant: nothing that was there before is overwritten, and a folder that could not be made leaves nothing behind.

``run.json`` what was asked for; ``program.json`` what the compiled step does; ``events-<process>.jsonl`` what happened;
``report.json`` how it ended; ``checkpoints/`` the states.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from paceline.base.errors import RunFolderError
from paceline.base.regular import in_place_of
from paceline.telemetry.document import write_document

RUN_FILE = "run.json"
PROGRAM_FILE = "program.json"
REPORT_FILE = "report.json"

_COUNTER = re.compile(r"(.+)-(\d{1,3})")  # three digits at most: `image-20260101-120000` ends in a time, not a counter
_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_REASONS = {
    errno.EACCES: "it is not yours to write to",
    errno.EPERM: "it is not yours to write to",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your disk quota is used up",
    errno.ENAMETOOLONG: "the name is too long",
}


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run. Get one from `create` (a new run) or `open` (resume, a further process, a reader)."""

    path: Path

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Makes the folder, and missing parents, for this run alone; an empty folder that is there already is taken.

        Of several processes that ask for one path at once, exactly one gets it. In a run of several processes only
        process 0 creates; the others `open` afterwards.

        Raises: RunFolderError: the folder holds something, is no folder, or cannot be written.
        """
        wanted = Path(os.path.expanduser(path))
        made: list[Path] = []
        try:
            _make_folders(wanted, made)
            _claim(wanted)
        except (OSError, ValueError) as error:
            for folder in reversed(made):
                with suppress(OSError):  # somebody else's file may lie in it by now
                    folder.rmdir()
            raise _cannot_create(wanted, error) from error
        return cls(wanted)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a run that exists.

        Raises: RunFolderError: no run lies there.
        """
        folder = Path(os.path.expanduser(path))
        if os.path.isfile(folder / RUN_FILE):
            return cls(folder)
        raise _no_run(folder)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Inside it no other run can take the folder; a process that dies gives it free.

        Raises: RunFolderError: another run trains in it now.
        """
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunFolderError(
                    what=f"another run trains in the folder {str(self.path)!r} now",
                    why="both would write its events and checkpoints, and neither could be resumed",
                    fix="wait for it or stop it, or choose another folder",
                ) from error
            except OSError:  # a network disk without locks: nothing can tell
                pass
            yield
        finally:
            os.close(descriptor)

    @property
    def run_file(self) -> Path:
        """What was asked for: written first."""
        return self.path / RUN_FILE

    @property
    def program_file(self) -> Path:
        """What the compiled step does: written while the first steps run. Old runs, and runs without steps, lack it."""
        return self.path / PROGRAM_FILE

    @property
    def report_file(self) -> Path:
        """How it ended: written last."""
        return self.path / REPORT_FILE

    @property
    def checkpoints(self) -> Path:
        """Where the states go; made by `checkpoint` when it saves the first."""
        return self.path / "checkpoints"

    def events_file(self, process: int) -> Path:
        """The events of one process. Each has its own file: appends of several would mix on a network disk."""
        return self.path / f"events-{process}.jsonl"

    def write_run(self, content: Mapping[str, Any]) -> None:
        """Replaces ``run.json``. Raises: RunFolderError: the disk refused; the old one is still there."""
        self._write(self.run_file, content)

    def write_program(self, content: Mapping[str, Any]) -> None:
        """Replaces ``program.json``. Raises: RunFolderError: the disk refused; the old one is still there."""
        self._write(self.program_file, content)

    def write_report(self, content: Mapping[str, Any]) -> None:
        """Replaces ``report.json``. Raises: RunFolderError: the disk refused; the old one is still there."""
        self._write(self.report_file, content)

    def discard(self) -> None:
        """Takes away the files of a run that made no step, and the folder if nothing else lies in it."""
        for file in (self.run_file, self.program_file, *self.path.glob("events-*.jsonl")):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # there is none, or it holds something
            self.checkpoints.rmdir()
        with suppress(OSError):  # somebody else's file lies in it
            self.path.rmdir()

    def _write(self, file: Path, content: Mapping[str, Any]) -> None:
        try:
            write_document(file, content)
        except OSError as error:
            raise RunFolderError(
                what=f"cannot write {str(file)!r}: {_reason(error)}",
                why="the run would leave no record of what was asked or how it ended",
                fix=_way_out(error, self.path),
            ) from error


def default_run_path(root: str | os.PathLike[str], name: str, *, now: datetime) -> Path:
    """A path that is free: ``runs/<name>-YYYYmmdd-HHMMSS``, with ``-2`` and so on when that second is taken.

    ``name`` may be a recipe, a file or a module (``tasks/my_task.py`` gives ``my_task``). The path is not reserved:
    `RunFolder.create` decides.
    """
    path = Path(root) / f"{run_stem(name)}-{now:%Y%m%d-%H%M%S}"
    return free_sibling(path) if os.path.lexists(path) else path


def latest_run(root: str | os.PathLike[str], name: str) -> Path:
    """The newest run of this name in ``root``, to go on with.

    Raises: RunFolderError: there is none.
    """
    stem = run_stem(name)
    runs = [run for run in _runs_inside(Path(root)) if re.fullmatch(re.escape(stem) + r"-\d{8}-\d{6}(-\d+)?", run.name)]
    if not runs:
        raise RunFolderError(
            what=f"no run of {stem!r} in {str(root)!r}",
            why="there is nothing to go on with",
            fix="name the folder of the run with --run, or leave --resume out",
        )
    return max(runs, key=lambda run: (run / RUN_FILE).stat().st_mtime)


def run_stem(name: str) -> str:
    """How the folders of a recipe, file or module begin: ``tasks/my_task.py`` gives ``my_task``."""
    return re.sub(r"[^\w.-]+", "-", Path(name).name.removesuffix(".py")).strip("-.") or "run"


def free_sibling(path: Path) -> Path:
    """The first of ``image-2``, ``image-3`` and so on beside ``path`` that does not exist."""
    if path.name in ("", ".."):
        path = Path(os.path.abspath(path))
    counted = _COUNTER.fullmatch(path.name)
    stem, number = (counted[1], int(counted[2])) if counted else (path.name or "run", 1)
    while True:
        number += 1
        candidate = path.parent / f"{stem}-{number}"
        if not os.path.lexists(candidate):
            return candidate


def _no_run(folder: Path) -> RunFolderError:
    """What lies there instead, and where a run may be: inside of it, or around it."""
    runs = _runs_inside(folder)
    fix = f"name the folder of one run, such as {str(runs[-1])!r}" if runs else ""
    if not os.path.isdir(folder):
        there = "it is not a folder" if os.path.lexists(folder) else "there is no such folder"
        if os.path.isfile(folder.parent / RUN_FILE) and os.path.lexists(folder):
            fix = f"name the folder of the run, {str(folder.parent)!r}"
    elif instead := in_place_of(folder / RUN_FILE):
        there, fix = f"its {RUN_FILE} cannot be read: {instead}", f"see that {RUN_FILE} is a file that you can read"
    else:
        there = f"it holds no {RUN_FILE}"
    return RunFolderError(
        what=f"no run in {str(folder)!r}: {there}",
        why=f"every run writes {RUN_FILE} first; without it nothing says what ran",
        fix=fix or "name the folder that the run printed when it started",
    )


def _make_folders(path: Path, made: list[Path]) -> None:
    """`mkdir -p`, noting in ``made`` what was new, so that it can be taken away again."""
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            continue  # another process of this run, or another run, was faster
        made.append(folder)


def _claim(path: Path) -> None:
    """Makes the folder ours: ``run.json`` can be created in it by one process only.

    Raises: FileExistsError: the folder holds something.
    """
    if os.listdir(path):
        raise FileExistsError(errno.EEXIST, "holds something", str(path))
    file = path / RUN_FILE
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(descriptor, b"{}\n")
    except OSError:
        os.unlink(file)
        raise
    finally:
        os.close(descriptor)


def _cannot_create(path: Path, error: OSError | ValueError) -> RunFolderError:
    if isinstance(error, FileExistsError):
        return RunFolderError(
            what=f"run folder {str(path)!r} exists and is not empty",
            why="a second run in it would mix its events, checkpoints and report with those of the first",
            fix=f"choose a free folder, such as {str(free_sibling(path))!r}",
        )
    blocker = _file_in_the_way(path)
    if blocker is not None:
        return RunFolderError(
            what=f"run folder {str(path)!r} cannot be made: {str(blocker)!r} is not a folder",
            why="a run is a folder, and folders lie in folders",
            fix=f"choose another folder, such as {str(free_sibling(blocker))!r}",
        )
    return RunFolderError(
        what=f"run folder {str(path)!r} cannot be written: {_reason(error)}",
        why="the run would leave no events, checkpoints or report",
        fix=_way_out(error, path),
    )


def _file_in_the_way(path: Path) -> Path | None:
    """The part of ``path`` that exists and is no folder (a file, or a link that leads nowhere)."""
    with suppress(OSError, ValueError):  # ValueError: a null byte in the name
        return next((part for part in (path, *path.parents) if os.path.lexists(part) and not os.path.isdir(part)), None)
    return None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return _REASONS.get(error.errno) or f"{os.strerror(error.errno)} [{errno.errorcode.get(error.errno, '?')}]"
    return str(error)


def _way_out(error: OSError | ValueError, path: Path) -> str:
    if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG:
        return "choose a shorter, plain name, such as 'runs/run'"
    if error.errno in _DISK_IS_FULL:
        return f"free space on the disk of {str(path)!r}, or choose a folder on another one"
    return f"choose a folder that you can write to, such as '~/runs/{path.name or 'run'}'"


def _runs_inside(path: Path) -> list[Path]:
    """Folders of runs directly in ``path``, by name: their parent is what people pass by mistake."""
    with suppress(OSError):
        return sorted(child for child in path.iterdir() if os.path.isfile(child / RUN_FILE))
    return []
