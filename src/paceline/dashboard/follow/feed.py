"""The events of one process of a run, as far as they are read.

Owns: tables, latest events, counts of one events file.
Not here: the file's bytes (`follow.tail`), the run as a whole (`follow.run`).
Invariant: after each read the tables stand as if the file up to the offset had been read at once; a start that goes
back drops the steps that will be computed again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from paceline.dashboard.follow.blocks import BlockStore
from paceline.dashboard.follow.columns import Columns
from paceline.dashboard.follow.derived import StepWindow
from paceline.dashboard.follow.kept import MOST_KINDS, KeptEvents, Keys, NumberedEvent, trimmed
from paceline.dashboard.follow.marks import Mark, Marks, mark_kind
from paceline.dashboard.follow.spans import MISSING, is_missing
from paceline.dashboard.follow.tail import Change, Tail
from paceline.telemetry.bulk import decode_bulk
from paceline.telemetry.events import Event, number_text

_LONGEST_QUIET_S = 3600.0  # more is a clock that jumped, or a run that was resumed
_CLOCK_BACK_S = 2.0  # less is a clock that is being set right
Table = Literal["step", "evaluation", "audit"]
_TABLES: tuple[Table, ...] = ("step", "evaluation", "audit")


class ClockJumps(NamedTuple):
    """How often the clock of a process went back, how far at most [s], and the step of the last time.

    Curves over time fold over themselves there.
    """

    times: int
    most_s: float
    last_step: int


class ProcessFeed:
    """One events file. Not safe for threads: the run that owns it has the lock.

    Args:
      tail: of the file.
      process: index of the process.
      marks: of the run, shared with its other processes.
      number: gives the next number of an event of the run.
    """

    def __init__(
        self, tail: Tail, *, process: int, store: BlockStore, marks: Marks, number: Callable[[], int]
    ) -> None:  # fmt: skip
        self.process = process
        self.tail = tail
        self._store = store
        self._marks = marks
        self._number = number
        self._tables = {name: Columns(store) for name in _TABLES}
        self._begin()

    def _begin(self) -> None:
        self._window = StepWindow()
        self._nonfinite: set[str] = set()
        self._keys = {name: Keys() for name in _TABLES}
        self.unknown: Counter[str] = Counter()
        self.unknown_more = 0
        self.skipped = 0
        self.starts = 0
        self.counts: Counter[str] = Counter()
        self.first: Event | None = None
        self.last: Event | None = None
        self.last_audit: Event | None = None
        self.last_divergence: Event | None = None
        self.longest_gap_s = 0.0
        self.events = KeptEvents()
        self.clock_jumps: ClockJumps | None = None
        self.gone = False

    def table(self, name: Table) -> Columns:
        """The numbers of one kind of event."""
        return self._tables[name]

    @property
    def keys_left_out(self) -> int:
        """Metric keys that came when there was no more room, at least."""
        return sum(keys.left_out for keys in self._keys.values())

    def look(self) -> Change:
        """Whether the file changed; one that was replaced begins anew."""
        change = self.tail.look()
        self.gone = change == "gone"
        if change == "replaced":
            self.forget()
        return change

    def forget(self) -> None:
        """Drop what was read."""
        self._marks.drop_process(self.process)
        for columns in self._tables.values():
            columns.release()
        self._tables = {name: Columns(self._store) for name in _TABLES}
        self._begin()

    def read(self, limit_bytes: int) -> list[Event]:
        """Take in the next whole lines, of about ``limit_bytes``. Raises: OSError."""
        piece = self.tail.read(limit_bytes)
        page = decode_bulk(piece.content)
        self.skipped += page.skipped + piece.passed_over
        for kind, number in page.unknown.items():
            if kind in self.unknown or len(self.unknown) < MOST_KINDS:
                self.unknown[kind] += number
            else:
                self.unknown_more += number
        self.take(page.events)
        return page.events

    def take(self, events: Sequence[Event]) -> None:
        """Take in the next events."""
        if events and self.first is None:
            self.first = trimmed(events[0])
        self._watch_gaps(events)
        begin = 0
        while begin < len(events):
            kind = events[begin].kind
            end = begin + 1
            if kind in _TABLES:
                while end < len(events) and events[end].kind == kind:
                    end += 1
                self._add_rows(kind, events[begin:end])
            if kind != "step":
                for event in events[begin:end]:
                    self._note(event)
            begin = end
        if events:
            self.last = trimmed(events[-1])

    def _watch_gaps(self, events: Sequence[Event]) -> None:
        """How long the run was quiet at most since its first step, and went on: in an evaluation, say."""
        if not len(self._tables["step"]) or self.last is None:
            return
        before_s = self.last.time_s
        for event in events:
            if event.kind != "start" and self.longest_gap_s < event.time_s - before_s <= _LONGEST_QUIET_S:
                self.longest_gap_s = event.time_s - before_s
            before_s = event.time_s

    def _add_rows(self, kind: Table, events: Sequence[Event]) -> None:
        if len(events) == 1:
            self._add_row(kind, events[0])
            return
        columns = _columns([event.values for event in events], self._keys[kind])
        steps = np.array([event.step for event in events], np.int64)
        times_s = np.array([event.time_s for event in events])
        if kind == "step":
            self._watch_clock(steps, times_s)
            columns |= self._window.derive(columns)
            self._watch_columns(steps, times_s, columns=columns)
        self._tables[kind].append(steps, times_s, values=columns)

    def _add_row(self, kind: Table, event: Event) -> None:
        """As `_add_rows` for one event: some 20 microseconds, where arrays take 300."""
        values = {key: _number(value) for key, value in self._keys[kind].of(event.values).items()}
        if kind == "step":
            back_s = 0.0 if self.last is None else self.last.time_s - event.time_s
            if _CLOCK_BACK_S < back_s < math.inf:
                self._note_jumps(1, back_s, last_step=event.step)
            values |= self._window.derive_one(values)
            for key, value in values.items():
                self._watch_number(key, value, step=event.step, time_s=event.time_s)
        self._tables[kind].append_one(event.step, event.time_s, values=values)

    def _watch_clock(self, steps: np.ndarray, times_s: np.ndarray) -> None:
        """Note where the clock went back."""
        before_s = times_s[0] if self.last is None else self.last.time_s
        with np.errstate(over="ignore", invalid="ignore"):  # times may be anything
            back_s = -np.diff(times_s, prepend=before_s)
        jumps = np.flatnonzero(np.isfinite(back_s) & (back_s > _CLOCK_BACK_S))
        if len(jumps):
            self._note_jumps(len(jumps), float(back_s[jumps].max()), last_step=int(steps[jumps[-1]]))

    def _note_jumps(self, count: int, most_s: float, *, last_step: int) -> None:
        before = self.clock_jumps or ClockJumps(0, 0.0, last_step)
        self.clock_jumps = ClockJumps(before.times + count, max(before.most_s, most_s), last_step)

    def _watch_columns(self, steps: np.ndarray, times_s: np.ndarray, *, columns: dict[str, np.ndarray]) -> None:
        for key, values in columns.items():
            if np.isfinite(values).all():
                self._nonfinite.discard(key)
                continue
            for row in np.flatnonzero(~is_missing(values)).tolist():
                self._watch_number(key, float(values[row]), step=int(steps[row]), time_s=float(times_s[row]))

    def _watch_number(self, key: str, value: float, *, step: int, time_s: float) -> None:
        """A mark where a number stops being finite: one a stretch, not one a step."""
        if math.isfinite(value):
            self._nonfinite.discard(key)
        elif key not in self._nonfinite:
            self._nonfinite.add(key)
            mark = Mark("nonfinite", step, time_s, self.process, f"{key} is {number_text(value)}")
            self._marks.add(mark, main=self.process == 0)

    def _note(self, event: Event) -> None:
        event = trimmed(event)
        self.events.append(NumberedEvent(self._number(), self.process, event))
        kind = mark_kind(event, starts=self.starts)
        self.counts[kind or event.kind] += 1
        if kind is not None:
            self._marks.add(Mark(kind, event.step, event.time_s, self.process, event.text), main=self.process == 0)
        if event.kind == "audit":
            self.last_audit = event
        if kind == "divergence":
            self.last_divergence = event
        if event.kind == "start":
            self.starts += 1
            for columns in self._tables.values():
                columns.drop_from(event.step + 1)
            if self.process == 0:
                self._marks.drop_nonfinite_from(event.step + 1)


def _columns(rows: Sequence[Mapping[str, int | float]], kept: Keys) -> dict[str, np.ndarray]:
    """``[R]`` by key, `MISSING` where a row lacks the key. Rows with the same keys are converted together."""
    key_sets = [tuple(row) for row in rows]
    distinct = key_sets[:1] if key_sets.count(key_sets[0]) == len(rows) else dict.fromkeys(key_sets)
    if not all(kept.admit(keys) for keys in distinct):
        rows = [kept.of(row) for row in rows]
        key_sets = [tuple(row) for row in rows]
    if key_sets.count(key_sets[0]) == len(rows):
        return dict(zip(key_sets[0], _matrix(rows, len(key_sets[0])), strict=True))
    places: dict[tuple[str, ...], list[int]] = {}
    for place, keys in enumerate(key_sets):
        places.setdefault(keys, []).append(place)
    columns = {key: np.full(len(rows), MISSING) for keys in places for key in keys}
    for keys, those in places.items():
        for key, values in zip(keys, _matrix([rows[place] for place in those], len(keys)), strict=True):
            columns[key][those] = values
    return columns


def _matrix(rows: Sequence[Mapping[str, int | float]], num_keys: int) -> np.ndarray:
    """``[keys, R]``."""
    values = chain.from_iterable([row.values() for row in rows])
    try:
        table = np.fromiter(values, np.float64, count=len(rows) * num_keys)
    except OverflowError:  # whole numbers on the line have no limit
        table = np.array([_number(value) for row in rows for value in row.values()])
    return np.ascontiguousarray(table.reshape(len(rows), num_keys).T)


def _number(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
