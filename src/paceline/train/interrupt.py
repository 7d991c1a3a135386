"""Ctrl-C, and the signals by which schedulers announce the end: finish the step, save, write the report, then stop.

Owns: the handlers of SIGINT, SIGTERM and, under Slurm, SIGUSR1 while a run lasts.
Invariant: the first signal never interrupts a step; a second Ctrl-C stops at once, as Python does; a second SIGTERM
changes nothing, since whoever sends it will kill the process anyway and the save may still be in time.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from paceline.base.exits import TERMINATED
from paceline.train.votes import Stop

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


class Terminated(SystemExit):
    """SIGTERM (or SIGUSR1 under Slurm) ended `fit` after a whole step, and the state was saved if `fit` keeps
    checkpoints.

    A script that does not catch it exits with code 143, by which schedulers know that the job may be queued again.

    Args:
      state: the state after the last step.
      report: the report of the steps made.
    """

    def __init__(self, state: TrainState, report: Report) -> None:
        super().__init__(TERMINATED)
        self.state = state
        self.report = report

    def __str__(self) -> str:
        return f"terminated after step {self.report.last_step}"


class InterruptGuard:
    """Inside it a signal sets `stop` and `asked`; a second SIGINT raises KeyboardInterrupt. Inert outside the main
    thread."""

    def __init__(self) -> None:
        self.stop: Stop = Stop.NO
        self._previous: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self.stop is not Stop.NO

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT, signal.SIGTERM]
            if "SLURM_JOB_ID" in os.environ:
                numbers.append(signal.SIGUSR1)
            self._previous = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.stop is Stop.INTERRUPT:
                raise KeyboardInterrupt
            self.stop = max(self.stop, Stop.INTERRUPT)
        else:
            self.stop = Stop.TERMINATE
