"""Plays a schedule on one device: what runs when, and what waits for what.

Owns: the clock of one device's compute and of its communication stream.
Not here: how long work or a collective takes (given as numbers), what devices do to each other (`model.order`).
Invariant: total_s = compute_s + contention_s + exposed_s, and communication that is not exposed is hidden.

Two clocks. Compute runs in the order of the timeline. Collectives run one after the other in the order they start, on
a stream of their own (NCCL orders the collectives of a communicator so). While the stream is busy, compute runs slower
by the factor 1 + contention: a collective's kernels hold multiprocessors and memory bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.insight.timeline import Collective, Done, Start, Timeline, Work


@dataclass(frozen=True)
class Replay:
    """Where the time of one step went.

    Args:
      compute_s: work at the speed it has alone.
      contention_s: by how much communication in flight slowed it.
      exposed_s: time in which the device waited for a collective and computed nothing.
      communication_s: time for which the communication stream was busy; hidden is what of it is not exposed.
      waits_s: exposed time by name of the collective that was waited for.
    """

    compute_s: float
    contention_s: float
    exposed_s: float
    communication_s: float
    waits_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        """The step on a device that no other device keeps waiting."""
        return self.compute_s + self.contention_s + self.exposed_s

    @property
    def hidden_s(self) -> float:
        """Communication behind which the device computed."""
        return max(self.communication_s - self.exposed_s, 0.0)


def replay(
    timeline: Timeline,
    *,
    work_s: Callable[[Work], float],
    collective_s: Callable[[Collective], float],
    contention: float,
) -> Replay:
    """The whole timeline, once.

    Args:
      work_s: seconds a piece of work takes alone.
      collective_s: seconds a collective takes alone; 0 for one that does not happen.
      contention: by which fraction compute slows while communication is in flight; 0 or more.
    """
    clock = _Clock(work_s=work_s, collective_s=collective_s, contention=contention)
    clock.run(timeline)
    return Replay(clock.compute, clock.slowed, clock.exposed, clock.busy, clock.waits)


class _Clock:
    """Compute clock `now`; communication stream free at `free`."""

    def __init__(
        self, *, work_s: Callable[[Work], float], collective_s: Callable[[Collective], float], contention: float
    ) -> None:
        self.work_s = work_s
        self.collective_s = collective_s
        self.contention = contention
        self.now = self.free = 0.0
        self.compute = self.slowed = self.exposed = self.busy = 0.0
        self.ends: dict[str, float] = {}
        self.waits: dict[str, float] = {}

    def run(self, timeline: Timeline) -> None:
        for event in timeline:
            if isinstance(event, Work):
                alone = self.work_s(event)
                busy = max(self.free - self.now, 0.0)
                slowed = self.contention * min(alone, busy / (1 + self.contention))
                self.compute += alone
                self.slowed += slowed
                self.now += alone + slowed
            elif isinstance(event, Start):
                seconds = self.collective_s(event.collective)
                self.free = max(self.now, self.free) + seconds
                self.busy += seconds
                self.ends[event.collective.name] = self.free
            elif isinstance(event, Done):
                wait = self.ends.pop(event.name) - self.now
                if wait > 0:
                    self.exposed += wait
                    self.waits[event.name] = self.waits.get(event.name, 0.0) + wait
                    self.now += wait
            else:
                self._repeat(event.body, times=event.times)

    def _repeat(self, body: Timeline, *, times: int) -> None:
        """Trips one by one until one begins and ends with an idle stream; all others are like that one.

        A body ends its own collectives, so a stream that is still busy carries what was started before the loop.
        """
        for trip in range(times):
            idle = self.free <= self.now
            before = (self.now, self.compute, self.slowed, self.exposed, self.busy, dict(self.waits))
            self.run(body)
            if idle and self.free <= self.now:
                self._skip(times - trip - 1, before=before)
                return

    def _skip(self, trips: int, *, before: tuple[float, float, float, float, float, dict[str, float]]) -> None:
        now, compute, slowed, exposed, busy, waits = before
        for name, wait in self.waits.items():
            self.waits[name] = wait + trips * (wait - waits.get(name, 0.0))
        self.compute += trips * (self.compute - compute)
        self.slowed += trips * (self.slowed - slowed)
        self.exposed += trips * (self.exposed - exposed)
        self.busy += trips * (self.busy - busy)
        self.now += trips * (self.now - now)
