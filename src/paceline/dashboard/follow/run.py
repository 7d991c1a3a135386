"""One run, as its folder stands now.

Owns: the documents and the events files of one folder, what is wrong with them, the state of the run.
Not here: which folders are runs (`follow.root`), when to read (`follow.library`), the answers of the API (`views`).
Invariant: whatever the files hold, reading raises nothing: what can be shown is shown, and `problems` says what cannot.

A reader in another thread holds `lock` while it looks at more than one thing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any, Literal, NamedTuple

from paceline.dashboard.follow.blocks import BlockStore
from paceline.dashboard.follow.columns import Columns
from paceline.dashboard.follow.cursor import Position, encode_cursor
from paceline.dashboard.follow.derived import STEP_P50_S
from paceline.dashboard.follow.documents import Document
from paceline.dashboard.follow.feed import ProcessFeed, Table
from paceline.dashboard.follow.health import Pulse, State, end_state, is_silent
from paceline.dashboard.follow.inside import leads_outside
from paceline.dashboard.follow.kept import MOST_KINDS, NumberedEvent, trimmed
from paceline.dashboard.follow.marks import Mark, Marks
from paceline.dashboard.follow.preview import read_pieces
from paceline.dashboard.follow.problems import feed_problems
from paceline.dashboard.follow.tail import Tail
from paceline.dashboard.follow.words import Words, say
from paceline.telemetry.bulk import decode_bulk
from paceline.telemetry.events import Event
from paceline.telemetry.folder import PROGRAM_FILE, REPORT_FILE, RUN_FILE

EVENTS_NAME = re.compile(r"events-(\d{1,9})\.jsonl")
READ_RUNS = 40  # kept whole; a run of 100,000 steps with 12 series takes 1 MB of memory and 12 MB of disk
GAP_BYTES = 4 * 1024 * 1024
MOST_PROBLEMS = 100
_DOCUMENTS = (RUN_FILE, PROGRAM_FILE, REPORT_FILE)
_PEEKED_BYTES = 16 * 1024
_LOOKED_AT = 256  # files of one run in one look: some 2 ms
_PREVIEWED_FROM_BYTES = 4 * 1024 * 1024  # less is read in a few slices

Waiting = Literal["resting", "crowded"]
"""Why a run is not read: nobody asked for it, or as many as can be kept are being looked at."""


class Fresh(NamedTuple):
    """Events that a process wrote since the last read, and where the next ones begin."""

    process: int
    events: list[Event]
    position: Position


class Run:
    """See the module.

    Args:
      id: its path under the root.
      root: nothing outside of it is read.
    """

    def __init__(
        self, folder: Path, *, id: str, root: Path, store: BlockStore, pulse: Pulse | None = None
    ) -> None:  # fmt: skip
        self.id = id
        self.folder = folder
        self.lock = RLock()
        self.pulse = pulse or Pulse()
        self.caught_up = False
        self.waiting: Waiting | None = None
        self.is_gone = False
        self._root = root
        self._store = store
        self._marks = Marks()
        self._numbers = count()
        self._documents = {name: Document(folder / name, root=root) for name in _DOCUMENTS}
        self._feeds: dict[int, ProcessFeed] = {}
        self._peeked: dict[int, Event] = {}
        self._peeked_step: dict[int, Event] = {}
        self._previews: dict[int, ProcessFeed] = {}
        self._folder_seen: int | None = None
        self._inode: int | None = None
        self._next_look = self._next_read = 0
        self._has_entries = False
        self._outside: list[str] = []
        self._unreadable: dict[int, str] = {}

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.id.rpartition("/")[2]

    @property
    def document(self) -> dict[str, Any] | None:
        """``run.json``, or None."""
        return self._documents[RUN_FILE].content

    @property
    def program(self) -> dict[str, Any] | None:
        """``program.json``, or None."""
        return self._documents[PROGRAM_FILE].content

    @property
    def report(self) -> dict[str, Any] | None:
        """``report.json``, or None."""
        return self._documents[REPORT_FILE].content

    @property
    def processes(self) -> list[int]:
        """Indices of the processes that have an events file."""
        return sorted(self._feeds)

    @property
    def main(self) -> int | None:
        """The process that speaks for the run: the first that has a file."""
        return min(self._feeds, default=None)

    @property
    def marks(self) -> list[Mark]:
        """What happened, in the order in which it was read."""
        return self._marks.all

    @property
    def cursor(self) -> str:
        """How far this run was read, for the stream."""
        return encode_cursor({self.id: self.positions})

    @property
    def positions(self) -> dict[int, Position]:
        """How far each events file was read."""
        return {process: Position(feed.tail.generation, feed.tail.offset) for process, feed in self._feeds.items()}

    @property
    def read_bytes(self) -> int:
        """Bytes of events that were read."""
        return sum(feed.tail.offset for feed in self._feeds.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of events that there are."""
        return sum(max(feed.tail.size_bytes, feed.tail.offset) for feed in self._feeds.values())

    @property
    def unread_bytes(self) -> int:
        """Bytes of events that were not looked at."""
        return sum(feed.tail.unread_bytes for feed in self._feeds.values())

    @property
    def problems(self) -> list[Words]:
        """What is wrong or cannot be shown."""
        found = list(self._problems())
        more = len(found) - MOST_PROBLEMS
        return found if more <= 0 else [*found[:MOST_PROBLEMS], say("problem.more", count=more)]

    def columns(self, process: int = 0) -> Columns:
        """The steps of a process; empty if it wrote none."""
        return self.table(process, "step")

    def table(self, process: int, name: Table) -> Columns:
        """The numbers of one kind of event of a process; empty if it wrote none."""
        feed = self._previews.get(process) or self._feeds.get(process)
        return Columns(self._store) if feed is None else feed.table(name)

    def feed(self, process: int) -> ProcessFeed | None:
        """What is known of one process."""
        return self._feeds.get(process)

    def last_event(self, process: int) -> Event | None:
        """The newest event of a process, also while what comes before it is still being read."""
        feed = self._feeds.get(process)
        if feed is None:
            return None
        return self._peeked.get(process) or feed.last

    def peeked_step(self, process: int) -> Event | None:
        """The newest step of a process that is not read to its end; None if it is, or if there is none."""
        return None if self.caught_up else self._peeked_step.get(process)

    def events(self) -> list[NumberedEvent]:
        """The newest events that are no steps, by number."""
        return sorted(event for feed in self._feeds.values() for event in feed.events)

    def updated_s(self) -> float | None:
        """Time of the newest event of any process."""
        lasts = [event.time_s for process in self._feeds if (event := self.last_event(process)) is not None]
        return max(lasts, default=None)

    def state(self, now_s: int | float) -> State:
        """How the run is at Unix time ``now_s``."""
        if self._documents[RUN_FILE].problem is not None:
            return "damaged"
        main = self.main
        last = None if main is None else self.last_event(main)
        if last is None:
            return "empty"
        if last.kind == "end":
            return end_state(last.text)
        modified_s = max(feed.tail.modified_s for feed in self._feeds.values())
        quiet_s = self.pulse.quiet_s(now_s, event_s=self.updated_s(), modified_s=modified_s)
        longest_s = self._feeds[main].longest_gap_s if main is not None else 0.0
        has_stepped = last.step > 0
        silent = is_silent(quiet_s, step_s=self._median_step_s(), longest_s=longest_s, has_stepped=has_stepped)
        return "silent" if silent else "running"

    def refresh(self) -> bool:
        """Look for new files and read documents that changed; whether anything did. About 10 microseconds if not."""
        try:
            there = os.stat(self.folder)
        except OSError:
            return False
        modified, changed = there.st_mtime_ns, False
        if self._inode not in (None, there.st_ino):  # another run's folder in its place
            self._begin_anew()
        self._inode = there.st_ino
        if modified != self._folder_seen:
            found = self._find_files()
            changed = bool(found)
            self._folder_seen = None if found is None else modified  # what failed is tried again
        for name, document in self._documents.items():
            if name not in self._outside:
                changed |= document.refresh()
        return changed

    def folder_changed(self) -> bool:
        """Whether files came or went since the last `refresh`. One `stat`."""
        try:
            return os.stat(self.folder).st_mtime_ns != self._folder_seen
        except OSError:
            return True

    def look(self) -> list[int]:
        """One `stat` a file; of very many, the main one and some others in turns. Returns the processes whose file was
        replaced by another."""
        replaced = []
        for process in self._looked_at():
            feed = self._feeds[process]
            change = feed.look()
            if change == "replaced":
                replaced.append(process)
                self._peeked.pop(process, None)
                if process in self._previews:
                    self._previews.pop(process).forget()
            if change == "same" or change == "gone":
                continue
            if self.caught_up:
                self.pulse.grew()
            elif self.waiting is not None:
                self._peek_at(process)
        if self.main in replaced:  # another run: what is not there any more was of the one before
            for process in [process for process, feed in self._feeds.items() if feed.gone]:
                self._feeds.pop(process).forget()
        return replaced

    def read(self, limit_bytes: int) -> Fresh | None:
        """Take in about ``limit_bytes`` of one file, of all in turns; None if no whole line is new."""
        processes = list(self._feeds)
        begin = self._next_read
        for place in range(begin, begin + len(processes)):
            process = processes[place % len(processes)]
            feed = self._feeds[process]
            if not feed.tail.unread_bytes:
                continue
            self._next_read = (place + 1) % len(processes)
            offset = feed.tail.offset
            try:
                events = feed.read(limit_bytes)
            except OSError as error:
                self._unreadable[process] = error.strerror or str(error)
                continue
            self._unreadable.pop(process, None)
            if feed.tail.offset > offset:
                if feed.tail.unread_bytes < _PEEKED_BYTES:  # the event that was peeked at is read by now, or soon
                    self._peeked.pop(process, None)
                return Fresh(process, events, Position(feed.tail.generation, feed.tail.offset))
        if not self.caught_up:
            self.caught_up = True
            self._drop_previews()
        self._peeked.clear()
        self._peeked_step.clear()
        return None

    def preview(self) -> bool:
        """Read pieces of long files, until all is read. Whether there was something to read.

        `columns` and `table` give rows of these pieces until then.
        """
        if self.caught_up or self._previews or self.unread_bytes < _PREVIEWED_FROM_BYTES:
            return False
        for process, feed in self._feeds.items():
            self._previews[process] = read_pieces(feed.tail, process=process, store=self._store)
        return True

    def events_after(self, positions: dict[int, Position]) -> list[Fresh] | None:
        """What was written between the positions and what is read by now; None if that cannot be told.

        It cannot if a file was replaced, or if it is so much (`GAP_BYTES`) that the series are better fetched anew.
        """
        found = []
        for process, feed in self._feeds.items():
            position = positions.get(process, Position("", 0))
            gap_bytes = feed.tail.offset - position.offset
            is_same = position.offset == 0 or position.generation == feed.tail.generation
            if not is_same or not 0 <= gap_bytes <= GAP_BYTES:
                return None
            if gap_bytes == 0:
                continue
            content = feed.tail.piece(position.offset, gap_bytes)
            if len(content) < gap_bytes:  # cut shorter just now: the next look will say so
                return None
            events = decode_bulk(content).events
            found.append(Fresh(process, events, Position(feed.tail.generation, feed.tail.offset)))
        return None if positions.keys() - self._feeds.keys() else found

    def forget(self) -> None:
        """Drop what was read of the events, to be read again when it is asked for."""
        for process, feed in self._feeds.items():
            feed.forget()
            feed.tail.rewind()
            self._peek_at(process)
        self.caught_up = False

    def release(self) -> None:
        """The run is gone: give its blocks back."""
        self.is_gone = True
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._drop_previews()
        for feed in self._feeds.values():
            feed.forget()
        self._feeds.clear()
        self._peeked.clear()
        self._peeked_step.clear()
        self._unreadable.clear()
        self._folder_seen = None
        self.caught_up = False

    def _find_files(self) -> bool | None:
        """Whether there are new ones; None if the folder cannot be read now."""
        changed = False
        try:
            with os.scandir(self.folder) as entries:
                names = {entry.name: entry.is_symlink() for entry in entries}
        except OSError:
            return None
        self._outside = []
        self._has_entries = bool(names)
        for name, is_link in sorted(names.items()):
            match = EVENTS_NAME.fullmatch(name)
            if match is None and name not in _DOCUMENTS:
                continue
            if is_link and leads_outside(self.folder / name, root=self._root):
                self._outside.append(name)
            elif match is not None and int(match[1]) not in self._feeds:
                self._add_feed(int(match[1]), self.folder / name)
                changed = True
        return changed

    def _add_feed(self, process: int, path: Path) -> None:
        feed = ProcessFeed(
            Tail(path, root=self._root),
            process=process,
            store=self._store,
            marks=self._marks,
            number=lambda: next(self._numbers),
        )
        feed.look()
        self._feeds[process] = feed
        self._peek_at(process)

    def _peek_at(self, process: int) -> None:
        """The newest event of a long file, so that the list of runs can show it before the file is read."""
        tail = self._feeds[process].tail
        if not tail.size_bytes:  # nothing there, or no file
            return
        content = tail.piece(max(0, tail.size_bytes - _PEEKED_BYTES), _PEEKED_BYTES)
        begin = content.find(b"\n") + 1 if tail.size_bytes > _PEEKED_BYTES else 0
        events = decode_bulk(content[begin : content.rfind(b"\n") + 1]).events
        if events:
            self._peeked[process] = trimmed(events[-1])
        step = next((event for event in reversed(events) if event.kind == "step"), None)
        if step is not None:
            self._peeked_step[process] = trimmed(step)

    def _drop_previews(self) -> None:
        for preview in self._previews.values():
            preview.forget()
        self._previews.clear()

    def _looked_at(self) -> list[int]:
        """The main process and the next `_LOOKED_AT` ones."""
        processes = list(self._feeds)
        if len(processes) <= _LOOKED_AT:
            return processes
        begin = self._next_look % len(processes)
        self._next_look = begin + _LOOKED_AT
        turn = [*processes, *processes][begin : begin + _LOOKED_AT]
        main = min(processes)
        return turn if main in turn else [main, *turn]

    def _median_step_s(self) -> float | None:
        return self.columns(0 if self.main is None else self.main).last(STEP_P50_S.key)

    def _problems(self) -> Iterator[Words]:
        yield from (document.problem for document in self._documents.values() if document.problem is not None)
        yield from (say("problem.outside", file=name) for name in self._outside)
        if not self._has_entries:
            yield say("problem.nothing")
        elif self.document is None and self._documents[RUN_FILE].problem is None and RUN_FILE not in self._outside:
            yield say("problem.run_missing")
        if self.waiting == "crowded":
            yield say("problem.crowded", most=READ_RUNS)
        if self._has_entries and not self.size_bytes:
            yield say("problem.no_events")
        for process, feed in sorted(self._feeds.items()):
            yield from feed_problems(feed, unreadable=self._unreadable.get(process))
        named = self.unknown
        for kind, number in named.items():
            yield say("problem.kinds_unknown", kind=kind, count=number)
        more = sum(feed.unknown_more + feed.unknown.total() for feed in self._feeds.values()) - sum(named.values())
        if more:
            yield say("problem.kinds_more", count=more)
        if self._marks.left_out:
            yield say("problem.marks_left_out", count=sum(self._marks.left_out.values()))

    @property
    def unknown(self) -> dict[str, int]:
        """Events of kinds that this version does not know, by kind, over all processes; of very many kinds, some."""
        found: dict[str, int] = {}
        for feed in self._feeds.values():
            for kind, number in feed.unknown.items():
                if kind in found or len(found) < MOST_KINDS:
                    found[kind] = found.get(kind, 0) + number
        return dict(sorted(found.items()))

    @property
    def skipped(self) -> int:
        """Damaged lines over all processes."""
        return sum(feed.skipped for feed in self._feeds.values())
