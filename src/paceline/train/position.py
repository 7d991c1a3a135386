"""Where this process is in the run, for whoever must tell a slow process from one that hangs.

Owns: one call at each change, told to the supervisor's status file and to the heartbeat that peers hear.
"""

from __future__ import annotations

from paceline.telemetry.status import Phase, open_status
from paceline.topology.processes import processes


class Position:
    """Phase and step of this process. A change costs about a microsecond."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.phase: Phase = "start"
        self._status = open_status()
        monitor = processes().monitor
        if monitor is not None:
            monitor.where = self._where

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """Begin a phase; `step` updates are complete (default: as before)."""
        self.phase = phase
        if step is not None:
            self.step = step
        self._status.phase(phase, self.step)

    def median(self, step_s: float) -> None:
        """The median time of a step so far [s]."""
        self._status.median(step_s)

    def failed(self, error: BaseException) -> None:
        """This process ends with an error of its own."""
        self.phase = "failed"
        self._status.failed(f"{type(error).__name__}: {error}")

    def _where(self) -> str:
        """For the heartbeat; behind the last step nobody waits for this process."""
        return "" if self.phase in ("end", "failed") else f"step {self.step} ({self.phase})"
