"""The background feed: batches are assembled and placed while the step before them runs.

Owns: one thread, the bound on finished batches, the time each took to make, the time the reader waited, and the part of
it in which nothing ran.
Not here: how a batch is made (`batch`) or placed (`engine`).
Invariant: at most `depth` placed items exist that were not handed out, the one in the making included; and the thread
ends however the feed ends: exhausted, failed, closed, or collected unfinished.

How: the thread takes a credit before it makes an item, and the reader returns the credit when it takes the item. Both
queues are `queue.SimpleQueue`: it wakes its reader at once, also one that waits for a limited time, Ctrl-C interrupts
it, and its `put` is reentrant. A `threading.Condition` is not: a garbage collection inside its `wait` could close the
feed and lose the wake-up.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar

from paceline.base.errors import OptionError

THREAD_NAME = "paceline-feed"

_LOOKS = 20
_LOOK_S = (1e-3, 50e-3)
"""How often a reader that waits looks whether the devices are still busy: so many times in the time between two items,
but at most each millisecond. What that costs: docs/design/003-loop.md."""

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Taken(Generic[U]):
    """An item as the reader gets it, with its times.

    Args:
      item: what `place` made.
      idle_s: seconds of the wait for it in which the devices had nothing to do.
      begun_s: `time.perf_counter` [s] when the thread began to make it.
      make_s: seconds in which the source made it.
      place_s: seconds in which `place` ran.
    """

    item: U
    idle_s: float
    begun_s: float
    make_s: float
    place_s: float


Begun = Callable[[float, int], None]
"""Called in the thread with `time.perf_counter` [s]: with +1 when it begins to make an item, with -1 if there was none
after all."""


class Feed(Generic[U]):
    """Iterator over ``place(item)`` for each item, in order, made ahead of the reader by one thread.

    Use it in a ``with`` block, so that an exception in the loop ends the thread. `place` runs in the thread: settings
    that JAX keeps per thread, such as ``with jax.enable_x64():``, must be entered inside `place`.

    Args:
      host_batches: any iterable; a generator is closed when the feed stops early.
      place: makes the item that is handed out, such as the transfer to the devices.
      depth: finished items that may wait, at least 1. Each holds its batch in device memory.
      begun: told of each item that is begun; it must be cheap.
    Raises: OptionError: `depth` is below 1. In `next`, after the items before it: what the source or `place` raised.
    """

    def __init__(
        self, host_batches: Iterable[T], place: Callable[[T], U], *, depth: int = 2, begun: Begun | None = None
    ) -> None:
        if depth < 1:
            raise OptionError(
                what=f"a feed depth of {depth}",
                why="without room for one finished batch the step would wait forever",
                fix="use --prefetch 1 or more (2 is the default)",
            )
        self.wait_s: float = 0.0
        """Seconds that the last `next` waited."""
        self.total_wait_s: float = 0.0
        """Seconds that all calls of `next` waited together."""
        self._ended: bool = False
        self._started_s: float = 0.0  # of the last wait
        self._channel: _Channel = _Channel(depth)
        # The thread knows the channel, never the feed: so an abandoned feed is collected, which stops the thread.
        self._thread: threading.Thread = threading.Thread(
            target=_work, args=(self._channel, iter(host_batches), place, begun), name=THREAD_NAME, daemon=True
        )
        self._stop: Callable[[], Any] = weakref.finalize(self, self._channel.stop)
        self._thread.start()

    def __iter__(self) -> Iterator[U]:
        return self

    def __next__(self) -> U:
        return self.take().item

    def watched(self, busy: Callable[[], bool]) -> Iterator[Taken[U]]:
        """Each item with its times, the seconds of the wait in which the devices had nothing to do among them.

        Args:
          busy: whether they still compute what was dispatched before. Asked in this thread while it waits, and never
            where the item is there already; it must be cheap. When they ended is told to half the time between looks.
        """
        while True:
            try:
                taken = self.take(busy)
            except StopIteration:
                return
            yield taken

    def take(self, busy: Callable[[], bool] | None = None) -> Taken[U]:
        """The next item with its times; without `busy` (see `watched`) no wait counts as idle. Raises: as `next`."""
        if self._ended:
            raise StopIteration
        started_s = time.perf_counter()
        each_s = min(max((started_s - self._started_s) / _LOOKS, _LOOK_S[0]), _LOOK_S[1])
        self._started_s = started_s
        (kind, value), idle_s = self._channel.next(busy, each_s=each_s)
        self.wait_s = time.perf_counter() - started_s
        self.total_wait_s += self.wait_s
        if kind == _ITEM:
            self._channel.credits.put(None)
            item, times = value
            return Taken(item, idle_s, *times)
        self._ended = True
        if not self._channel.stopped:  # Closed by another thread, it may be stuck in the source.
            self._thread.join()
        if kind == _END:
            raise StopIteration
        try:
            raise value
        finally:
            del value  # The traceback holds this frame; without this the frame would hold the error: a cycle.

    @property
    def queued(self) -> int:
        """Finished items that wait to be taken, 0 to `depth`."""
        return max(0, self._channel.items.qsize() - self._channel.finished)

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Stops the thread and frees the waiting items; again is harmless.

        Args:
          timeout_s: how long to wait for the item in the making. A source that is stuck for longer keeps its (daemon)
            thread until it returns, so that shutdown does not hang with it.
        """
        self._ended = True
        self._stop()
        self._thread.join(timeout_s)
        self._channel.discard_items()

    def __enter__(self) -> Feed[U]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


_ITEM, _END, _ERROR = range(3)


class _Channel:
    """What the reader and the thread share."""

    def __init__(self, depth: int) -> None:
        self.items: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self.credits: SimpleQueue[None] = SimpleQueue()
        self.stopped: bool = False
        self.finished: bool = False
        for _ in range(depth):
            self.credits.put(None)

    def stop(self) -> None:
        """Runs in any thread, inside garbage collection too: takes no lock."""
        self.stopped = True
        self.credits.put(None)

    def finish(self, kind: int, value: Any) -> None:
        self.finished = True
        self.items.put((kind, value))

    def next(self, busy: Callable[[], bool] | None, *, each_s: float) -> tuple[tuple[int, Any], float]:
        """The next entry, and the seconds of the wait for it in which `busy` said no. It is asked each `each_s`.

        Without `busy` nothing is asked, and the seconds are 0.
        """
        if busy is None:
            return self.items.get(), 0.0
        with contextlib.suppress(Empty):
            return self.items.get_nowait(), 0.0
        last_s = time.perf_counter()
        if not busy():
            return self.items.get(), time.perf_counter() - last_s
        while True:
            entry = self._next_within(each_s)
            now_s = time.perf_counter()
            if not busy():  # since some time between the last look and this one
                entry = entry or self.items.get()
                return entry, time.perf_counter() - (last_s + now_s) / 2
            if entry:
                return entry, 0.0
            last_s = now_s

    def _next_within(self, limit_s: float) -> tuple[int, Any] | None:
        try:
            return self.items.get(timeout=limit_s)
        except Empty:
            return None

    def discard_items(self) -> None:
        try:
            while True:
                self.items.get_nowait()
        except Empty:
            self.items.put((_END, None))  # For a reader in another thread that still waits.


def _work(channel: _Channel, source: Iterator[Any], place: Callable[[Any], Any], begun: Begun | None) -> None:
    try:
        _produce(channel, source, place, begun or _ignored)
    except BaseException as error:
        # Handed over whole: `next` raises it with the traceback that it got here.
        channel.finish(_ERROR, error)
    else:
        channel.finish(_END, None)


def _ignored(at_s: float, change: int) -> None:
    del at_s, change


def _produce(channel: _Channel, source: Iterator[Any], place: Callable[[Any], Any], begun: Begun) -> None:
    try:
        while True:
            channel.credits.get()
            if channel.stopped:
                return
            begun_s = time.perf_counter()
            begun(begun_s, 1)
            try:
                item = next(source)
            except StopIteration:
                begun(time.perf_counter(), -1)
                return
            made_s = time.perf_counter()
            placed = _place(place, item)
            if channel.stopped:
                return
            times = (begun_s, made_s - begun_s, time.perf_counter() - made_s)
            channel.items.put((_ITEM, (placed, times)))
            del item, placed  # Else the thread would keep one batch alive beyond `depth` while it waits.
    finally:
        if isinstance(source, Generator):
            source.close()  # Here, as a generator cannot be closed from another thread while it runs.


def _place(place: Callable[[Any], Any], item: Any) -> Any:
    try:
        return place(item)
    except StopIteration as error:
        # As in a generator (PEP 479): passed on, it would end the loop as if the data had ended.
        raise RuntimeError("place raised StopIteration") from error
