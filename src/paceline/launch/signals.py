"""Waiting, and waking at once for a signal or the end of a process.

Owns: the supervisor's signal handlers while it runs.
Invariant: afterwards the handlers are those from before, and a signal that came is in ``received``.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from types import FrameType, TracebackType
from typing import Any

from paceline.base.exits import INTERRUPTED, TERMINATED

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
_REPEAT_S = 1.0


class Signals:
    """Handlers for SIGINT, SIGTERM and SIGUSR1 (Slurm's warning), and for the ends of processes. Main thread only."""

    def __init__(self) -> None:
        self.received: list[tuple[int, float]] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in _HANDLED:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout_s: float) -> None:
        """Wait, but no longer than until a signal comes or a process ends."""
        ready, _, _ = select.select([self._reader], [], [], timeout_s)
        if ready:
            self._reader.recv(4096)

    @property
    def exit_code(self) -> int | None:
        """130 or 143 if a signal asked for the end, else None."""
        if not self.received:
            return None
        return INTERRUPTED if self.received[0][0] == signal.SIGINT else TERMINATED

    @property
    def is_urgent(self) -> bool:
        """Whether a person asked a second time.

        Ctrl-C reaches a group of processes whose parent may pass it on, so that it comes twice at once; and Slurm
        sends SIGTERM after the SIGUSR1 with which it warned. Neither means that saving should be cut off.
        """
        if not self.received:
            return False
        first, first_s = self.received[0]
        repeats = [number for number, time_s in self.received if time_s - first_s > _REPEAT_S]
        return signal.SIGINT in repeats or (first == signal.SIGTERM and signal.SIGTERM in repeats)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.received.append((number, time.monotonic()))
