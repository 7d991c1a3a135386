"""What happened at single steps: the marks on the curves.

Owns: which events make a mark, which of several processes' marks are one.
Not here: curves (`follow.columns`), the list of events in words (`views.events`).
Invariant: each kind keeps its first and its newest mark, and what is left out between is counted; the same happening
told by several processes is one mark.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from itertools import count
from typing import Any, Literal, NamedTuple

from paceline.telemetry.events import Event

MarkKind = Literal[
    "start", "restart", "end", "checkpoint", "skip", "audit", "divergence", "notice", "nonfinite"
]  # fmt: skip

MOST_OFTEN = 4000
MOST_RARE = 2000
_OFTEN: tuple[MarkKind, ...] = ("audit", "checkpoint")
_MOST_TOLD = 20_000
_TOLD_BY_ALL = ("divergence", "notice")  # of a further process only what may be its own
_SAVED = re.compile(r"checkpoint of step \d+ saved")  # how runs of version 0.1 told it, as a notice


class Mark(NamedTuple):
    """Something at a step.

    Args:
      step: updates completed.
      time_s: Unix time [s] by the clock of the process.
      process: the process that told it first.
      text: words of the event, if it has some.
    """

    kind: MarkKind
    step: int
    time_s: float
    process: int
    text: str | None

    def as_dict(self) -> dict[str, Any]:
        """As the page gets it."""
        return self._asdict()


class _Entry(NamedTuple):
    """A mark and its place in the order of reading."""

    place: int
    mark: Mark


class _Kind:
    """The marks of one kind: all of them up to a number, beyond it every second, every fourth, and the newest."""

    def __init__(self, most: int) -> None:
        self.kept: list[_Entry] = []
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self.left_out = 0
        self._newest: _Entry | None = None  # if it is not among those kept
        self._came = 0
        self._each = 1

    def add(self, entry: _Entry) -> None:
        """Keep it, or leave it out when a newer one comes."""
        if self._newest is not None:
            self.left_out += 1
        is_kept = self._came % self._each == 0
        self._came += 1
        self._newest = None if is_kept else entry
        if not is_kept:
            return
        insort(self.kept, entry, key=_step)  # at the end, but for steps that are computed again
        if len(self.kept) > self._most:
            before = len(self.kept)
            del self.kept[1::2]
            self.left_out += before - len(self.kept)
            self._each *= 2

    def entries(self) -> list[_Entry]:
        """Those that are shown."""
        return self.kept if self._newest is None else [*self.kept, self._newest]

    def drop_from(self, step: int) -> None:
        """Forget those of this step and later ones."""
        del self.kept[bisect_left(self.kept, step, key=_step) :]
        if self._newest is not None and self._newest.mark.step >= step:
            self._newest = None
        self._end_drop()

    def drop_process(self, process: int) -> None:
        """Forget what a process told."""
        self.kept = [entry for entry in self.kept if entry.mark.process != process]
        if self._newest is not None and self._newest.mark.process == process:
            self._newest = None
        self._end_drop()

    def _end_drop(self) -> None:
        if not self.kept and self._newest is None:
            self._begin()


class Marks:
    """The marks of a run. Each kind has room of its own: thousands of audits hide no restart."""

    def __init__(self) -> None:
        self._kinds: dict[MarkKind, _Kind] = {}
        self._told: set[tuple[str, int, str | None]] = set()
        self._places = count()
        self._all: list[Mark] | None = []

    @property
    def all(self) -> list[Mark]:
        """In the order in which they were read. Not to be changed."""
        if self._all is None:
            entries = [entry for kind in self._kinds.values() for entry in kind.entries()]
            self._all = [entry.mark for entry in sorted(entries, key=_place)]
        return self._all

    @property
    def left_out(self) -> dict[MarkKind, int]:
        """How many marks are not shown, of kinds that came too often."""
        return {name: kind.left_out for name, kind in self._kinds.items() if kind.left_out}

    def add(self, mark: Mark, *, main: bool) -> None:
        """Keep a mark; ``main`` says that its process speaks for the run."""
        if mark.kind in _TOLD_BY_ALL:
            told = (mark.kind, mark.step, mark.text)
            if not main and told in self._told:
                return
            if len(self._told) < _MOST_TOLD:
                self._told.add(told)
        elif not main:
            return
        kind = self._kinds.get(mark.kind)
        if kind is None:
            kind = self._kinds[mark.kind] = _Kind(MOST_OFTEN if mark.kind in _OFTEN else MOST_RARE)
        kind.add(_Entry(next(self._places), mark))
        self._all = None

    def drop_process(self, process: int) -> None:
        """The file of a process was replaced: what it told is void."""
        for kind in self._kinds.values():
            kind.drop_process(process)
        self._all = None
        self._told = {(mark.kind, mark.step, mark.text) for mark in self.all if mark.kind in _TOLD_BY_ALL}

    def drop_nonfinite_from(self, step: int) -> None:
        """Numbers from this step on are computed again."""
        if "nonfinite" in self._kinds:
            self._kinds["nonfinite"].drop_from(step)
            self._all = None


def _step(entry: _Entry) -> int:
    return entry.mark.step


def _place(entry: _Entry) -> int:
    return entry.place


def mark_kind(event: Event, *, starts: int) -> MarkKind | None:
    """The mark that an event makes; None for steps and evaluations.

    Args:
      starts: starts that the process told before this event.
    """
    match event.kind:
        case "start":
            return "restart" if starts else "start"
        case "audit":
            return "divergence" if event.text or event.where else "audit"
        case "notice":
            return "checkpoint" if _SAVED.fullmatch(event.text or "") else "notice"
        case "end" | "checkpoint" | "skip":
            return event.kind
        case _:
            return None
