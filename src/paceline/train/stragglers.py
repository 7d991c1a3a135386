"""Which process holds up the others, and what it costs.

Owns: the comparison of what each process did between its steps: waiting for input, callbacks.
Invariant: the cost is what would be gained if the slowest process spent no more than the median of all on these.

Steps themselves take the same time in every process, since each waits for the reduction of all: a slow device does
not show here.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass

from paceline.base.units import format_duration, format_percent
from paceline.topology.processes import Processes

_WORDS = {"input_s": "waiting for input", "host_s": "in callbacks"}
_WORTH_NAMING = 0.01


@dataclass(frozen=True)
class StragglerReport:
    """The slowest process.

    Args:
      process: its index.
      machine: where it runs.
      cause: ``input_s`` or ``host_s``: where it differs most from the others.
      cost_s: seconds of the run that it cost.
      cost_share: the part of the time of all steps.
      own_s: for each process, the seconds that its devices waited for it, by cause.
    """

    process: int
    machine: str
    cause: str
    cost_s: float
    cost_share: float
    own_s: tuple[dict[str, float], ...]

    def __str__(self) -> str:
        if self.cost_share < _WORTH_NAMING:
            share = format_percent(self.cost_share)
            return f"none holds up the others (the slowest, process {self.process}, by {share})"
        own = self.own_s[self.process][self.cause]
        median = statistics.median_low(entry[self.cause] for entry in self.own_s)
        return (
            f"process {self.process} ({self.machine}) is the slowest: {format_duration(own)} {_WORDS[self.cause]} "
            f"against {format_duration(median)} in the median; it costs {format_percent(self.cost_share)} of the time"
        )


def compare(processes: Processes, own: dict[str, float], *, total_s: float) -> StragglerReport:
    """Ask all processes; every one gets the same answer. All must call it.

    Args:
      own: seconds that the devices of this process waited for it, by cause.
      total_s: of all steps, by the clock of this process; that of process 0 counts.
    """
    said = [json.loads(text) for text in processes.exchange("own times", json.dumps([own, total_s]))]
    heard, total_s = [entry for entry, _ in said], said[0][1]
    sums = [sum(entry.values()) for entry in heard]
    slowest = max(range(len(heard)), key=lambda index: sums[index])
    # The lower median: of two processes it is the faster one, which shows what the run could need.
    usual = {cause: statistics.median_low(entry[cause] for entry in heard) for cause in own}
    cause = max(own, key=lambda name: heard[slowest][name] - usual[name])
    cost_s = max(0.0, sums[slowest] - statistics.median_low(sums))
    return StragglerReport(
        slowest, processes.machine(slowest), cause, cost_s, cost_s / total_s if total_s > 0 else 0.0, tuple(heard)
    )
