"""Where functions run that may block, so that the event loop goes on.

Owns: a few threads, and waiting for what they do.
Not here: which functions may block (`serve.app`).
Invariant: a thread that is stuck, for instance in a read from a network disk that went away, holds up its own request
alone and never the end of the program; what was asked for by somebody who left is not begun.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_IDLE_S = 10.0

T = TypeVar("T")


class Threads:
    """Not those of `concurrent.futures` or anyio: Python waits for these at its end, also for a stuck one.

    Args:
      most: that run at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()

    async def run(self, function: Callable[[], T], /) -> T:
        """What the function returns or raises."""
        future: Future[T] = Future()
        with self._lock:
            self._queue.put((future, function))
            is_new = self._running < self._most
            self._running += is_new
        if is_new:
            threading.Thread(target=self._work, name="answer", daemon=True).start()
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        while True:
            try:
                future, function = self._queue.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if not self._queue.empty():
                        continue
                    self._running -= 1
                    return
            if future.set_running_or_notify_cancel():
                _answer(future, function)
            del future, function  # an idle thread keeps no document


def _answer(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # whatever it is belongs to who waits
        future.set_exception(error)
