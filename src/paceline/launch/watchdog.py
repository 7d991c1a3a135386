"""Which process of a run hangs.

Owns: the limits, and the judgement from what the processes tell of themselves.
Not here: reading their status, stacks, stopping (`launch.attempt`).
Invariant: a process that only waits for another is not blamed while that one may still move.

All processes of a run wait for each other in each step: when one stalls, all do, within a step or two. Those that have
got furthest and are in their step wait; what is behind, or in another phase, is what they wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.telemetry.status import StatusRecord

MEDIANS = 10.0
_GAP_S = 3.0
_LONG_PHASES = ("start", "compile")


@dataclass(frozen=True)
class Stalled:
    """A process without progress.

    Args:
      process: its index.
      record: what it last told.
      stalled_s: seconds since.
      limit_s: seconds allowed.
    """

    process: int
    record: StatusRecord
    stalled_s: float
    limit_s: float

    @property
    def is_over(self) -> bool:
        """Whether it took longer than allowed."""
        return self.stalled_s > self.limit_s


@dataclass(frozen=True)
class Hang:
    """A verdict.

    Args:
      culprits: those that hang; several if they cannot be told apart. The one that stalled first comes first.
      waiting: those that wait for them.
    """

    culprits: tuple[Stalled, ...]
    waiting: tuple[Stalled, ...]


class Watchdog:
    """Follows the events of the processes of one attempt.

    Args:
      hang_timeout_s: see `settings.Launch`; 0 never finds a hang.
      compile_timeout_s: limit of the phases that no step time tells anything of: start and compile.
    """

    def __init__(self, *, hang_timeout_s: float, compile_timeout_s: float) -> None:
        self._hang_timeout_s = hang_timeout_s
        self._compile_timeout_s = compile_timeout_s
        self._moved: dict[int, tuple[int, float]] = {}
        self._looked_s: float | None = None

    def look(self, records: Mapping[int, StatusRecord], *, now_s: float) -> Hang | None:
        """The verdict after this look.

        Args:
          records: by process, those that run and tell their status.
          now_s: `time.monotonic`.
        """
        gap_s = now_s - (self._looked_s if self._looked_s is not None else now_s)
        self._looked_s = now_s
        lost_s = gap_s if gap_s > _GAP_S else 0.0  # the supervisor did not run, so perhaps nothing did
        for process, record in records.items():
            events, moved_s = self._moved.get(process, (-1, now_s))
            self._moved[process] = (events, moved_s + lost_s) if events == record.events else (record.events, now_s)
        if not self._hang_timeout_s:
            return None
        return judge([self._stalled(process, record, now_s) for process, record in records.items()])

    def _stalled(self, process: int, record: StatusRecord, now_s: float) -> Stalled:
        limit_s = max(self._hang_timeout_s, MEDIANS * record.median_s)
        if record.phase in _LONG_PHASES:
            limit_s = max(limit_s, self._compile_timeout_s)
        return Stalled(process, record, now_s - self._moved[process][1], limit_s)


def judge(seen: list[Stalled]) -> Hang | None:
    """Whose fault it is, if any process is over its limit."""
    if not any(one.is_over for one in seen):
        return None
    furthest = max(one.record.step for one in seen)
    waiting = [one for one in seen if one.record.phase == "step" and one.record.step == furthest]
    others = [one for one in seen if one not in waiting]
    if not others:  # all in the same step: nothing that they tell says which
        return Hang(_longest_first(seen), ())
    culprits = [one for one in others if one.is_over]
    if not culprits:  # those ahead wait for one that may yet move
        return None
    return Hang(_longest_first(culprits), tuple(one for one in seen if one not in culprits))


def _longest_first(stalled: list[Stalled]) -> tuple[Stalled, ...]:
    return tuple(sorted(stalled, key=lambda one: (-one.stalled_s, one.process)))
