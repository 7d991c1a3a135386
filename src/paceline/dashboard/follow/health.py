"""Whether a run goes on, has ended, or has fallen silent.

Owns: the states and the rule for each.
Not here: how a state is drawn.
Invariant: a clock that jumps, here or where the run writes, turns no run that goes on into a silent one for longer than
until its next event.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal

State = Literal["running", "finished", "stopped", "failed", "silent", "empty", "damaged"]

ENDED: tuple[State, ...] = ("finished", "stopped", "failed")
SILENT_S = 30.0
SILENT_STEPS = 20.0
SILENT_GAPS = 2.0
STARTING_S = 600.0
_CLOCK_SLACK_S = 1.0
# How a run that ended early without an error says so; anything else is the text of an error.
_EARLY = ("interrupted", "terminated", "callback", "the data ended", "KeyboardInterrupt", "SystemExit")


def end_state(text: str | None) -> State:
    """The state of a run whose last event is its end, by the end's text."""
    if not text:
        return "finished"
    return "stopped" if text.startswith(_EARLY) else "failed"


class Pulse:
    """When a run was last seen to write.

    Args:
      monotonic: a clock that never jumps [s].
      wall: Unix time [s], by which files carry their times.
    """

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:  # fmt: skip
        self._monotonic = monotonic
        self._wall = wall
        self._found_s = monotonic()
        self._grew_s: float | None = None

    def grew(self) -> None:
        """The run wrote just now."""
        self._grew_s = self._monotonic()

    def quiet_s(self, now_s: int | float, *, event_s: float | None, modified_s: float) -> int | float:
        """Seconds without an event.

        Once the run was seen to write, this is told by the clock that never jumps. Before, by the times of the last
        event and of its file, of which one that lies in the future tells nothing.
        """
        ahead_s = now_s - self._wall()
        if self._grew_s is not None and ahead_s > -_CLOCK_SLACK_S:
            return self._monotonic() - self._grew_s + ahead_s
        ages = [now_s - when_s for when_s in (event_s, modified_s) if when_s is not None]
        past = [age_s for age_s in ages if age_s >= -_CLOCK_SLACK_S]
        return max(past) if past else self._monotonic() - self._found_s


def is_silent(quiet_s: int | float, *, step_s: float | None, longest_s: float = 0.0, has_stepped: bool = True) -> bool:
    """Whether a run without an end has written nothing for too long.

    Args:
      step_s: the usual step; None if it is not known.
      longest_s: how long the run was quiet before, in an evaluation, say, and went on.
      has_stepped: whether it has made a step: the program of a large model takes minutes to compile.
    """
    if not has_stepped:
        return quiet_s > STARTING_S
    usual_s = step_s if step_s is not None and math.isfinite(step_s) else 0.0
    return quiet_s > max(SILENT_S, SILENT_STEPS * usual_s, SILENT_GAPS * longest_s)
