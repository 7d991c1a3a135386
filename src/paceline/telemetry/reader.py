"""Reading a run that has ended, was killed, or still goes on.

Owns: events from a file that may grow while it is read, and a whole run from its folder.
Not here: writing (`telemetry.recorder`), drawing (`dashboard`).
Invariant: every whole line is given exactly once over successive reads, in order; a torn last line is left for the
next read; a line that is no event is counted, never guessed at; one of a kind from a later version is counted by kind.

A run that was killed and resumed holds some steps twice, in the order in which they were computed: the later one
is the one that the rest of the run stands on.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from paceline.base.errors import RunFolderError
from paceline.base.regular import opened_regular, reason
from paceline.telemetry.bulk import line_by_line
from paceline.telemetry.document import read_document
from paceline.telemetry.events import Event
from paceline.telemetry.folder import RunFolder

_EVENTS_NAME = re.compile(r"events-(\d+)\.jsonl")


class EventPage(NamedTuple):
    """What one read gave.

    Args:
      events: in the order in which they were written.
      next_offset: where the next read goes on [bytes]; always just behind a newline, unless the read began elsewhere.
      skipped: damaged lines, which hold no event.
      unknown: whole lines of kinds that a later version writes, by kind.
    """

    events: list[Event]
    next_offset: int
    skipped: int
    unknown: dict[str, int]


@dataclass(frozen=True)
class RunRecord:
    """All that a run folder tells.

    Args:
      folder: where it lies.
      run: ``run.json``; non-finite numbers are the strings "nan", "inf", "-inf".
      report: ``report.json``; None while the run goes on, and for ever when it was killed.
      events_by_process: every process that wrote, in order of its index.
      skipped: lines that hold no event, over all processes.
      unknown: whole lines of kinds that a later version writes, by kind, over all processes.
      program: ``program.json``; None in runs that have none.
    """

    folder: RunFolder
    run: dict[str, Any]
    report: dict[str, Any] | None
    events_by_process: dict[int, list[Event]]
    skipped: int
    unknown: dict[str, int] = field(default_factory=dict)
    program: dict[str, Any] | None = None

    @property
    def events(self) -> list[Event]:
        """The events of process 0, which tells losses and speed for all; empty before it wrote any."""
        return self.events_by_process.get(0, [])


def read_events(path: str | os.PathLike[str], offset: int = 0) -> EventPage:
    """The events from byte ``offset`` on.

    Call again with ``next_offset`` to follow a run. From an offset inside a line, the rest of that line counts as
    skipped.

    Raises: RunFolderError: the file cannot be read, or is shorter than ``offset`` (it belongs to another run by now).
    """
    with opened_events(path) as descriptor:
        return events_of(descriptor, offset, path=path)


@contextmanager
def opened_events(path: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor of an events file, to read from with `events_of`.

    Raises: RunFolderError: the file cannot be read, also by what is done inside.
    """
    try:
        with opened_regular(path) as descriptor:
            yield descriptor
    except OSError as error:
        raise RunFolderError(
            what=f"cannot read events from {os.fspath(path)!r}: {reason(error)}",
            why="curves, speed and comparisons come from this file",
            fix="see that you can read it"
            if isinstance(error, PermissionError)
            else "name an events-<process>.jsonl in the folder of a run",
        ) from error


def events_of(descriptor: int, offset: int, *, path: str | os.PathLike[str]) -> EventPage:
    """As `read_events`, of a file that is open; ``path`` is for the error."""
    with open(descriptor, "rb", closefd=False) as file:
        size_bytes = os.fstat(descriptor).st_size
        if not 0 <= offset <= size_bytes:
            raise _not_an_offset(path, offset, size_bytes)
        file.seek(offset)
        content = file.read()
    whole, newline, _torn = content.rpartition(b"\n")
    found = line_by_line(whole)
    return EventPage(found.events, offset + len(whole) + len(newline), found.skipped, found.unknown)


def events_files(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """The events files in a run folder by process index, in order; empty before the first is there.

    Raises: RunFolderError: nobody can look into the folder, or it is gone.
    """
    try:
        with os.scandir(folder) as entries:
            matches = [(match, entry.path) for entry in entries if (match := _EVENTS_NAME.fullmatch(entry.name))]
    except OSError as error:
        raise RunFolderError(
            what=f"cannot look into run folder {os.fspath(folder)!r}: {reason(error)}",
            why="what happened in the run stands in files in it",
            fix="see that it is there, and that you can read it",
        ) from error
    return {process: Path(path) for process, path in sorted((int(match[1]), path) for match, path in matches)}


def read_run(folder: str | os.PathLike[str]) -> RunRecord:
    """The run in ``folder``, as far as it is written.

    Raises: RunFolderError: no run lies there, or one of its documents is damaged.
    """
    place = RunFolder.open(folder)
    run = _document(place.run_file)
    report = _document(place.report_file) if os.path.lexists(place.report_file) else None
    program = _document(place.program_file) if os.path.lexists(place.program_file) else None
    pages = {process: read_events(path) for process, path in events_files(place.path).items()}
    return RunRecord(
        folder=place,
        run=run,
        report=report,
        events_by_process={process: page.events for process, page in pages.items()},
        skipped=sum(page.skipped for page in pages.values()),
        unknown=dict(sum((Counter(page.unknown) for page in pages.values()), Counter[str]())),
        program=program,
    )


def _document(file: Path) -> dict[str, Any]:
    try:
        return read_document(file)
    except (OSError, ValueError) as error:
        raise RunFolderError(
            what=f"cannot read {str(file)!r}: {reason(error)}",
            why=f"{file.name} says what this run was; its numbers mean nothing without it",
            fix=f"restore {file.name} from a copy, or leave this folder out",
        ) from error


def _not_an_offset(path: str | os.PathLike[str], offset: int, size_bytes: int) -> RunFolderError:
    return RunFolderError(
        what=f"events file {os.fspath(path)!r} has {size_bytes} bytes; reading cannot go on at byte {offset}",
        why="events files only grow, so this is the file of another run",
        fix="read it again from its first byte (offset=0); paceline log does with --again",
    )
