"""One thread that looks at the run folders, and the streams that it wakes.

Owns: when folders are looked at, which streams a change wakes, the newest summaries for the list of runs.
Not here: looking (`dashboard.follow`), what a stream sends (`serve.stream`).
Invariant: a change that a poll found wakes every stream that follows the run, once or more, never less; nothing waits
for a stream: what it has not fetched yet is a set of names.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline.base.errors import RunFolderError
from paceline.dashboard.follow.library import Library
from paceline.dashboard.follow.run import Run

POLL_S = 0.1
SUMMARIES_S = 1.0

_END_S = 0.3
_FIRST_S = 0.5

_LIVE_STATES = ("running", "silent", "empty")

Summary = dict[str, Any]


class Subscription:
    """What one stream has not fetched yet. Made and read in the event loop's thread; the poll thread fills it."""

    def __init__(self, runs: Iterable[str]) -> None:
        self.runs = frozenset(runs)
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._ready.set()
        self._changed: set[str] = set(self.runs)  # a first look at each, whatever it gives
        self._summaries: dict[str, Summary] = {}
        self._gone: dict[str, None] = {}

    async def wait(self) -> None:
        """Until there is something to fetch, or the server ends."""
        await self._ready.wait()
        self._ready.clear()

    def take(self) -> tuple[set[str], list[Summary], list[str]]:
        """Followed runs with new events, summaries that changed, runs that are gone; since the last time."""
        taken = self._changed, list(self._summaries.values()), list(self._gone)
        self._changed, self._summaries, self._gone = set(), {}, {}
        return taken

    def tell(self, changed: set[str], summaries: Mapping[str, Summary], *, gone: Iterable[str]) -> None:
        """From any thread; does nothing when the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(lambda: self._put(changed & self.runs, summaries, gone=gone))
        except RuntimeError:  # the server has ended
            self.closed = True

    def close(self) -> None:
        """The stream ends. From any thread, and from a signal handler."""
        self.closed = True
        self.tell(set(), {}, gone=())

    def _put(self, changed: set[str], summaries: Mapping[str, Summary], *, gone: Iterable[str]) -> None:
        for run in gone:
            self._summaries.pop(run, None)
            self._gone[run] = None
        for run, summary in summaries.items():
            self._gone.pop(run, None)
            self._summaries[run] = summary
        self._changed |= changed
        if self._changed or self._summaries or self._gone or self.closed:
            self._ready.set()


class Pulse:
    """Polls a library until it is stopped.

    Args:
      library: polled in this object's thread alone; read by all.
      summarise: the summary of a run for the list.
      poll_s: between two looks [s].
    """

    def __init__(self, library: Library, *, summarise: Callable[[Run], Summary], poll_s: float = POLL_S) -> None:
        self._library = library
        self._summarise = summarise
        self._poll_s = poll_s
        self._streams: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._looked = threading.Event()
        self._thread: threading.Thread | None = None
        self._summaries: dict[str, Summary] = {}
        self._touched: set[str] = set()
        self._gone: set[str] = set()
        self._next_summaries_s = 0.0
        self._trouble = ""

    def start(self) -> None:
        """Begin to poll. Waits a moment for the first look: who asks before it would hear that there is no run."""
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)
        self._thread.start()
        self._looked.wait(_FIRST_S)

    def stop(self) -> None:
        """End the streams and the thread."""
        self.close()
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_END_S)  # not for ever: it may be stuck in a read, and ends with the program anyway

    def close(self) -> None:
        """End the streams. Takes no lock: a signal handler calls it, maybe while its thread holds the lock."""
        for stream in self._streams:
            stream.close()

    def subscribe(self, runs: Iterable[str]) -> Subscription:
        """A stream begins to follow runs. In the event loop's thread."""
        stream = Subscription(runs)
        with self._lock:
            self._streams = (*self._streams, stream)
        return stream

    def unsubscribe(self, stream: Subscription) -> None:
        """A stream has ended."""
        with self._lock:
            self._streams = tuple(other for other in self._streams if other is not stream)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def beat(self) -> bool:
        """Look once, and wake the streams that something changed for; whether there is more to read at once."""
        self._want(set().union(*(stream.runs for stream in self._streams)))
        changes = self._library.poll()
        changed = changes.changed | changes.reset
        self._touched |= changed
        self._touched -= set(changes.gone)
        self._gone = (self._gone - changed) | set(changes.gone)
        now_s = time.monotonic()
        summaries, gone = {}, set()
        if now_s >= self._next_summaries_s:
            self._next_summaries_s = now_s + SUMMARIES_S
            summaries = self._new_summaries()
            gone, self._gone = self._gone, set()
        for stream in self._streams:
            if summaries or gone or changed & stream.runs:
                stream.tell(changed, summaries, gone=gone)
        return changes.busy

    def _want(self, followed: set[str]) -> None:
        """Tell the library which runs are looked at, so that it looks at their files each time."""
        for run_id in followed:
            with contextlib.suppress(RunFolderError):
                self._library.run(run_id)

    def _run(self) -> None:
        while not self._stop.is_set():
            busy = False
            try:
                busy = self.beat()
            except Exception as error:  # a folder that cannot be read now may be readable in a second
                self._complain(f"{type(error).__name__}: {error}")
            self._looked.set()
            self._stop.wait(0.0 if busy else self._poll_s)

    def _new_summaries(self) -> dict[str, Summary]:
        """Summaries unlike the last ones: of runs that changed, and of those that can fall silent."""
        for run in self._gone:
            self._summaries.pop(run, None)
        if not self._streams:
            return {}
        new: dict[str, Summary] = {}
        for run in self._library.runs():
            before = self._summaries.get(run.id)
            if before is None or run.id in self._touched or before["state"] in _LIVE_STATES:
                summary = self._summarise(run)
                if summary != before:
                    new[run.id] = summary
        self._touched.clear()
        self._summaries |= new
        return new

    def _complain(self, trouble: str) -> None:
        """Once for each trouble, not ten times a second."""
        if trouble != self._trouble:
            self._trouble = trouble
            print(f"paceline watch: cannot look at the runs just now: {trouble}", file=sys.stderr)
