"""`supervise`: starts the processes of a run on this machine, watches them, and starts them again after a failure.

Owns: attempts, restarts, the exit code, the report.
Not here: one attempt (`launch.attempt`), flags (`cli.launch`).
Invariant: the exit code says what to do next: 0 done, 2 mend the command, 75 try again, 130 or 143 stopped.

Exit codes: that of the process that failed first, 128 + number if a signal killed it; 75 if one hung; 130 after Ctrl-C,
143 after SIGTERM or SIGUSR1.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.base.errors import PacelineError
from paceline.base.exits import INTERRUPTED, TERMINATED
from paceline.base.units import format_count
from paceline.launch.attempt import Attempt, Ended
from paceline.launch.screen import Screen
from paceline.launch.sessions import Guard
from paceline.launch.settings import Launch, check, make_logs
from paceline.launch.signals import Signals

_FINAL = (0, PacelineError.exit_code, INTERRUPTED, TERMINATED)


@dataclass(frozen=True)
class Outcome:
    """What a launch came to.

    Args:
      exit_code: see the module.
      attempts: one entry each.
      logs: folder of logs.
    """

    exit_code: int
    attempts: tuple[Ended, ...]
    logs: Path

    def as_dict(self) -> dict[str, Any]:
        """The outcome as ``--json`` writes it."""
        attempts = [dataclasses.asdict(attempt) for attempt in self.attempts]
        return {"exit_code": self.exit_code, "attempts": attempts, "logs": str(self.logs)}


def supervise(launch: Launch) -> int:
    """Run a launch to its end and return the exit code; see `run`."""
    return run(launch).exit_code


def run(launch: Launch, *, screen: Screen | None = None) -> Outcome:
    """Run a launch to its end. Only from the main thread, which alone can receive signals.

    Args:
      launch: what to run.
      screen: what the terminal shows; default: this process's standard output and error.

    Raises: PacelineError: it cannot start; nothing runs then.
    """
    check(launch)
    logs = make_logs(launch)
    screen = screen or Screen()
    screen.say(f"{format_count(launch.processes, 'process')}, logs in {logs}")
    attempts: list[Ended] = []
    with Signals() as signals, closing(Guard()) as guard:
        for number in range(launch.max_restarts + 1):
            attempt = launch.first_attempt + number
            attempts.append(Attempt(launch, attempt, folder=logs, guard=guard, signals=signals, screen=screen).run())
            if signals.received or attempts[-1].exit_code in _FINAL:
                break
            if number < launch.max_restarts:
                screen.say(f"restart {number + 1} of {launch.max_restarts}, because {attempts[-1].words}")
        code = signals.exit_code
    return Outcome(attempts[-1].exit_code if code is None else code, tuple(attempts), logs)
