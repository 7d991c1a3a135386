"""From a path to a subject: a run folder, or a JSON file that `scale`, `plan` or `verify` wrote.

Owns: telling them apart, the errors for what is neither.
Not here: reading each kind (`from_run`, `from_scale`, `from_plan`, `from_verify`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from paceline.base.errors import nearest
from paceline.dashboard.compare.from_plan import plan_subject
from paceline.dashboard.compare.from_run import run_subject
from paceline.dashboard.compare.from_scale import scale_subject
from paceline.dashboard.compare.from_verify import verify_subject
from paceline.dashboard.compare.result_file import SubjectError, check_kind, check_numbers, damaged
from paceline.dashboard.compare.subject import Subject
from paceline.dashboard.compare.track import Track, read_track
from paceline.dashboard.follow.inside import read_inside
from paceline.dashboard.follow.run import Run
from paceline.dashboard.follow.words import presentable
from paceline.telemetry.document import parse_document
from paceline.telemetry.folder import RUN_FILE

_MOST_BYTES = 64_000_000
"""Of a result; those of hundreds of programs have a few hundred kilobytes."""

_READERS = {"scale": scale_subject, "plan": plan_subject, "verify": verify_subject}


def load_subject(path: str | os.PathLike[str], *, name: str | None = None, root: Path | None = None) -> Subject:
    """The run or result at a path.

    Args:
      name: by which it is called; the path itself by default.
      root: nothing outside of it is read, whatever links lead there by the time of reading.
    Raises:
      SubjectError: nothing is there, or it is no run and no result.
      RunFolderError: it is a folder without a run, or a run whose files are damaged.
    """
    asked = os.fspath(path)
    place = Path(os.path.expanduser(path))
    if place.name == RUN_FILE:
        place = place.parent  # its folder is the run
    if place.is_dir():
        return replace(run_subject(read_track(place, name or asked, root=root)), path=presentable(asked), name=name)
    if place.is_file():
        return replace(_result(place, name or asked, root=root), path=presentable(asked), name=name)
    is_there = os.path.lexists(place)
    raise SubjectError(
        what=f"{name or asked} is no folder and no file" if is_there else f"{name or asked} is not there{_hint(place)}",
        why="runs are folders; results are files of paceline scale, plan or verify",
        fix="name a folder or a file; a link must lead to one, and a pipe or a device is none"
        if is_there
        else "check the path; paceline watch lists the runs of a folder",
    )


def followed_subject(run: Run) -> Subject:
    """A run that `dashboard.follow` reads already, by its id; its numbers are those of the steps read by now."""
    return replace(run_subject(Track(run, name=run.id)), path=presentable(str(run.folder)), name=run.id)


def _result(place: Path, name: str, *, root: Path | None) -> Subject:
    try:
        content = parse_document(read_inside(place, root=root, most_bytes=_MOST_BYTES))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SubjectError(
            what=f"cannot read {name}: {reason}",
            why="results are JSON files of paceline scale, plan or verify",
            fix="name the folder of a run, or a file that one of these wrote with --json FILE",
        ) from error
    kind = check_kind(content, name)
    check_numbers(content, name, command=kind)
    try:
        return _READERS[kind](content, name)
    except ArithmeticError as error:  # such as a step that takes no time
        raise damaged(name, command=kind, reason="one of its numbers is zero or too large") from error


def _hint(place: Path) -> str:
    """The name beside it that is nearest, if one is near."""
    try:
        beside = sorted(entry.name for entry in os.scandir(place.parent))
    except OSError:
        return ""
    near = nearest(place.name, beside)
    return near.replace("'", f"'{place.parent}/", 1) if near and str(place.parent) != "." else near
