"""Ctrl-C: finish the step, write the report, then stop.

Owns: the SIGINT handler while a run lasts.
Invariant: the first Ctrl-C never interrupts a step; the second stops at once, as Python does.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.engine.state import TrainState
    from paceline.train.report import Report


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended `fit` after a whole step. A script that does not catch it exits with code 130, as after any Ctrl-C.

    Args:
      state: the state after the last step, ready to go on from.
      report: the report of the steps made.
    """

    def __init__(self, state: TrainState, report: Report) -> None:
        super().__init__(f"interrupted after step {report.last_step}")
        self.state = state
        self.report = report


class InterruptGuard:
    """Inside it the first SIGINT sets `asked`, the second raises KeyboardInterrupt. Inert outside the main thread."""

    def __init__(self) -> None:
        self.asked: bool = False
        self._previous: Any = None
        self._installed = False

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
