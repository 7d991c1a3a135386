"""The stream of one browser: new events of the runs that it follows, and what changes in the list of runs.

Owns: the messages, their order, the cursor that each carries, when a stream begins anew (`reset`).
Not here: reading files (`dashboard.follow`), waking (`serve.pulse`), HTTP (`serve.app`).
Invariant: the cursor of a message stands behind everything sent up to it and before everything after it; so a reader
that goes on from the last cursor it saw gets every event once, over any number of connections. The server keeps
nothing between two connections.

Messages: ``events`` {"run", "process", "events"}; ``runs`` {"runs", "gone", "all"}; ``reset`` {"run", "why"}.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from paceline.base.errors import RunFolderError
from paceline.dashboard.follow.cursor import Position, Positions, encode_cursor
from paceline.dashboard.follow.run import Fresh, Run
from paceline.dashboard.serve.pulse import Pulse, Summary
from paceline.telemetry.events import encode

RETRY_MS = 1000
"""What a browser waits before it connects again."""

RESET = "its files are not those of before, or too much is new: fetch the series again"

_SIGN = "+"
_CHECKED_BYTES = 64
_LARGEST_OFFSET = 2**62
_NOWHERE = Position("nowhere", 1)

T = TypeVar("T")


@runtime_checkable
class InThread(Protocol):
    """Runs a function in a thread, so that the event loop goes on."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """What the function returns."""
        ...


class Stream:
    """What one connection has sent. Its methods block: they run in a thread, one at a time.

    Args:
      find: the run of an id. Raises: RunFolderError: there is none.
      runs: ids of those that it follows.
      positions: where the connection goes on, by run; a run that is missing begins where its series end now.
    """

    def __init__(self, find: Callable[[str], Run], *, runs: Sequence[str], positions: Positions) -> None:
        self._find = find
        self._positions: Positions = {run: dict(positions[run]) for run in runs if run in positions}
        for run in runs:
            if run not in self._positions:
                self._positions[run] = self._now(find(run))

    @property
    def cursor(self) -> str:
        """Behind everything that was read so far; `follow.cursor.ANEW` where that is too much to say in a header."""
        return encode_cursor(self._positions)

    def opening(self, summaries: Sequence[Summary]) -> bytes:
        """The first message: all runs, and a cursor, so that even a connection that broke at once can go on."""
        return f"retry: {RETRY_MS}\n".encode() + runs_message(summaries, [], whole=True, cursor=self.cursor)

    def read(self, run_id: str) -> list[bytes]:
        """Messages with what is new in a run; none when it was deleted, which the list of runs tells."""
        try:
            run = self._find(run_id)
        except RunFolderError:
            return []
        with run.lock:
            if not run.caught_up:
                return []  # its series are still being read: they would be short of what is sent
            fresh = self._after(run)
            if fresh is None:
                self._positions[run_id] = self._now(run)
                return [message("reset", msgspec.json.encode({"run": run_id, "why": RESET}), cursor=self.cursor)]
            messages: list[bytes] = []
            for part in fresh:
                self._positions[run_id][part.process] = signed(run, part.position, process=part.process)
                if part.events:
                    messages.append(message("events", events_data(run_id, part), cursor=self.cursor))
        return messages

    def _after(self, run: Run) -> list[Fresh] | None:
        positions = {
            process: unsigned(run, position, process=process) for process, position in self._positions[run.id].items()
        }
        return run.events_after(positions)

    def _now(self, run: Run) -> dict[int, Position]:
        with run.lock:
            return {process: signed(run, position, process=process) for process, position in run.positions.items()}


async def messages(
    stream: Stream, pulse: Pulse, *, runs: Sequence[str], summaries: Callable[[], list[Summary]], in_thread: InThread
) -> AsyncIterator[bytes]:
    """The body of the response, until the server ends or the browser leaves.

    Args:
      runs: ids that the stream follows.
      summaries: of all runs, now.
      in_thread: runs a function where it may block.
    """
    subscription = pulse.subscribe(runs)
    try:
        yield stream.opening(await in_thread(summaries))
        while not subscription.closed:
            await subscription.wait()
            changed, changed_summaries, gone = subscription.take()
            for run in sorted(changed):
                for one in await in_thread(lambda run=run: stream.read(run)):
                    yield one
            if changed_summaries or gone:
                yield runs_message(changed_summaries, gone, whole=False)
    finally:
        pulse.unsubscribe(subscription)


def signed(run: Run, position: Position, *, process: int) -> Position:
    """The position with a checksum of the bytes before it in its generation.

    File systems use the numbers of deleted files again, so a run that takes the place of another may look like it.
    """
    return Position(_sign(run, process=process, position=position), position.offset)


def anew(runs: Iterable[str]) -> Positions:
    """Positions of no file: a stream that goes on from them begins with `reset` for each run."""
    return {run: {0: _NOWHERE} for run in runs}


def unsigned(run: Run, position: Position, *, process: int) -> Position:
    """The position as the run knows it; of no file if the file is another one or the bytes before it are others."""
    feed = run.feed(process)
    if feed is None or not position.generation.startswith(_SIGN):
        return position
    now = Position(feed.tail.generation, position.offset)
    return now if _sign(run, process=process, position=now) == position.generation else Position("", position.offset)


def _sign(run: Run, *, process: int, position: Position) -> str:
    """A checksum over the generation and the bytes before the offset; `follow.cursor` packs this form tightly."""
    feed = run.feed(process)
    before = b""
    if feed is not None and position.offset < _LARGEST_OFFSET:
        begin = max(0, position.offset - _CHECKED_BYTES)
        before = feed.tail.piece(begin, position.offset - begin)
    return f"{_SIGN}{zlib.crc32(before, zlib.crc32(position.generation.encode())):08x}"


def events_data(run_id: str, part: Fresh) -> bytes:
    """Events as in their file: numbers that JSON lacks are strings, what is absent is left out."""
    head = msgspec.json.encode({"run": run_id, "process": part.process})
    return head[:-1] + b',"events":[' + b",".join(encode(event).rstrip(b"\n") for event in part.events) + b"]}"


def runs_message(summaries: Sequence[Summary], gone: Sequence[str], *, whole: bool, cursor: str | None = None) -> bytes:
    """Summaries that changed; all there are if ``whole``, so that others are no more."""
    data = msgspec.json.encode({"runs": summaries, "gone": gone, "all": whole})
    return message("runs", data, cursor=cursor)


def message(name: str, data: bytes, *, cursor: str | None = None) -> bytes:
    """One server-sent event. JSON has no line breaks outside of strings and escapes those inside, so one line does."""
    head = "" if cursor is None else f"id: {cursor}\n"
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"
