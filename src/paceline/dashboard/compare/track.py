"""What a comparison takes from a run that was read.

Owns: reading one folder to its end, columns by metric key, thinned curves, notes on what cannot be trusted.
Not here: bytes, events and tables (`follow.run`), what is compared (`from_run`).
Invariant: every look at the run holds its lock, so a run that is followed meanwhile may be compared too.

Shapes: ``[R]`` rows: steps that have the number.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.base.errors import RunFolderError
from paceline.base.units import format_percent
from paceline.dashboard.compare.subject import Curve
from paceline.dashboard.compare.told import told
from paceline.dashboard.compare.words import counted, say
from paceline.dashboard.follow.blocks import BlockStore
from paceline.dashboard.follow.columns import Columns, Series
from paceline.dashboard.follow.documents import whole_in
from paceline.dashboard.follow.feed import Table
from paceline.dashboard.follow.health import end_state
from paceline.dashboard.follow.run import Run
from paceline.dashboard.follow.spans import is_missing
from paceline.dashboard.follow.tail import LONGEST_LINE_BYTES
from paceline.dashboard.words import Words
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.metrics import TRAIN_LOSS

CURVE_POINTS = 800
_SLICE_BYTES = 8 * 1024 * 1024


class Track:
    """One run.

    Args:
      run: as `dashboard.follow` reads it.
      name: by which it was asked for.
    """

    def __init__(self, run: Run, *, name: str) -> None:
        self._run = run
        self.name = name
        with run.lock:
            self.run: Mapping[str, Any] = run.document or {}
            self.program: Mapping[str, Any] | None = run.program
            self._ending = _ending(run)
            self.notes: list[Words] = _notes(run)

    @property
    def state(self) -> str:
        """``finished``, ``stopped`` early, ``failed``, or ``unfinished``: it goes on, or was killed."""
        return "unfinished" if self._ending is None else end_state(self._ending)

    @property
    def last_step(self) -> int | None:
        """The newest step; None before the first."""
        steps = self.series(TRAIN_LOSS.key).step
        return int(steps[-1]) if len(steps) else None

    @property
    def evaluations(self) -> list[str]:
        """Keys of the evaluations."""
        with self._run.lock:
            return sorted(self._table("evaluation").keys)

    def series(self, key: str, *, table: Table = "step") -> Series:
        """Steps, times and values of a key, each ``[R]``; empty where the run did not record it."""
        with self._run.lock:
            return self._table(table).whole(key)

    def last(self, key: str) -> int | float | None:
        """The newest number of a key."""
        with self._run.lock:
            return self._table("step").last(key)

    def largest(self, key: str) -> int | float | None:
        """Over all steps and processes; None if none recorded it."""
        with self._run.lock:
            found = [self._run.columns(process).whole(key).value for process in self._run.processes]
        values = np.concatenate([np.empty(0), *found])
        values = values[np.isfinite(values)]
        return float(values.max()) if len(values) else None

    def together(self, *keys: str) -> np.ndarray:
        """Values ``[R, keys]`` at the steps that have the first key; 0 where another one is missing."""
        with self._run.lock:
            table = self._table("step")
            values = table.rows(keys, from_row=0, to_row=len(table))[2]
        there = values[:, ~is_missing(values[0])].T
        return np.where(is_missing(there), 0.0, there)

    def curve(self, key: str, *, table: Table = "step") -> Curve:
        """The series, thinned so that its extremes stay."""
        with self._run.lock:
            found = self._table(table).samples([key], points=CURVE_POINTS).get(key)
        return Curve([], []) if found is None else Curve(found.step.tolist(), found.value.tolist())

    def _table(self, name: Table) -> Columns:
        return self._run.table(self._run.main or 0, name)


def read_track(folder: Path, name: str, *, root: Path | None = None) -> Track:
    """The run in a folder, read to its end; nothing outside of ``root`` is read, by default the folder itself.

    Raises: RunFolderError: no run lies there, or ``run.json`` is damaged.
    """
    place = RunFolder.open(folder)
    run = Run(place.path, id=name, root=root or Path(os.path.realpath(place.path)), store=BlockStore())
    run.refresh()
    if run.document is None:
        raise RunFolderError(
            what=f"cannot read the run in {name!r}: {'; '.join(problem.text for problem in run.problems)}",
            why="run.json says what this run was; its numbers mean nothing without it",
            fix="restore run.json from a copy, or leave this folder out",
        )
    run.look()
    while run.read(_SLICE_BYTES) is not None:
        pass
    return Track(run, name=name)


def _notes(run: Run) -> list[Words]:
    notes = list(run.problems)
    torn = sum(_is_torn(run, process) for process in run.processes)
    if torn:
        key = "compare.note.torn_or_written" if run.report is None else "compare.note.torn"
        notes.append(say(key, lines=counted(torn, "line")))
    elif run.unread_bytes:
        share = format_percent(run.read_bytes / run.size_bytes)
        notes.append(say("compare.note.reading", share=share))
    feed = run.feed(run.main or 0)
    if feed is not None and feed.starts > 1:
        notes.append(say("compare.note.started", times=counted(feed.starts, "time")))
    ending = _ending(run)
    if ending is None:
        notes.append(say("compare.note.no_report"))
    elif ending:
        key = "compare.note.failed" if end_state(ending) == "failed" else "compare.note.ended_early"
        notes.append(say(key, reason=told(ending)))
    return notes


def _ending(run: Run) -> str | None:
    """Why it ended: nothing if as planned; None if it did not end.

    By its last event, as the list of runs has it; else by its report, if that is not of a start before.
    """
    last = None if run.main is None else run.last_event(run.main)
    if last is not None and last.kind == "end":
        return last.text or ""
    reported = whole_in(run.report, "last_step")
    if run.report is None or (last is not None and reported is not None and last.step > reported):
        return None
    return str(run.report.get("stopped") or "")


def _is_torn(run: Run, process: int) -> bool:
    """Whether all that was not read of a file is a line without an end."""
    feed = run.feed(process)
    if feed is None or not feed.tail.unread_bytes:
        return False
    rest = feed.tail.piece(feed.tail.offset, min(feed.tail.unread_bytes, LONGEST_LINE_BYTES))
    return bool(rest) and b"\n" not in rest
