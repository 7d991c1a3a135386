"""How fast a run is, from the times of its steps.

Owns: sums, quantiles and the recent rate, in memory that does not grow with the run.
Not here: taking the times (`train.loop`) and drawing them (`telemetry.progress`).
Invariant: sums, rates and the maximum are exact; quantiles are exact up to `KEPT_STEPS` steps, and after that those of
a uniform random sample of that size (standard error of the p95's rank: 0.35 %).
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import dataclass
from random import Random

KEPT_STEPS = 4096
RECENT_STEPS = 20


@dataclass(frozen=True)
class Summary:
    """The speed of the steps so far. Every number is NaN while there is no step.

    Args:
      steps: steps counted, warm-up left out.
      rows: valid rows of these steps.
      total_s: their time together [s]; evaluations and checkpoints between steps are not in it.
      samples_per_s: rows / total_s: not the mean of per-step rates, which slow steps would hardly lower.
      step_p50_s: median latency of a step [s].
      step_p95_s: latency that 95 % of steps keep within [s].
      step_max_s: the slowest step [s].
      input_wait_share: part of total_s that waited for a batch, in [0, 1].
    """

    steps: int
    rows: int
    total_s: float
    samples_per_s: float
    step_p50_s: float
    step_p95_s: float
    step_max_s: float
    input_wait_share: float


class StepClock:
    """Accumulates steps. Add only steps after warm-up: one compilation outweighs thousands of steps."""

    def __init__(self) -> None:
        self.steps: int = 0
        self._rows: int = 0
        self._total_s: float = 0.0
        self._wait_s: float = 0.0
        self._max_s: float = math.nan
        self._kept_s = array("d")
        self._recent: deque[tuple[int | float, int]] = deque(maxlen=RECENT_STEPS)
        self._random = Random(0)  # its own, so that sampling moves nobody else's random numbers

    @property
    def total_s(self) -> float:
        """Time of all steps together [s]."""
        return self._total_s

    def add(self, step_s: int | float, *, wait_s: int | float, rows: int) -> None:
        """One step.

        Args:
          step_s: from the end of the step before to the end of this one [s], the wait included.
          wait_s: the part of it that waited for the batch [s].
          rows: valid rows of the global batch, over all processes.
        """
        self.steps += 1
        self._rows += rows
        self._total_s += step_s
        self._wait_s += wait_s
        if not step_s <= self._max_s:  # also true while the maximum is NaN
            self._max_s = step_s
        self._recent.append((step_s, rows))
        if self.steps <= KEPT_STEPS:
            self._kept_s.append(step_s)
        else:
            place = int(self._random.random() * self.steps)  # reservoir sampling, algorithm R
            if place < KEPT_STEPS:
                self._kept_s[place] = step_s

    def summary(self) -> Summary:
        """All steps so far. Sorts the kept ones, some 0.4 ms at most: for reports and redraws, not for every step."""
        ordered = sorted(self._kept_s)
        return Summary(
            steps=self.steps,
            rows=self._rows,
            total_s=self._total_s,
            samples_per_s=ratio(self._rows, self._total_s),
            step_p50_s=quantile(ordered, 0.50),
            step_p95_s=quantile(ordered, 0.95),
            step_max_s=self._max_s,
            input_wait_share=ratio(self._wait_s, self._total_s),
        )

    def recent_samples_per_s(self) -> float:
        """Rows per second over the last `RECENT_STEPS` steps; NaN before the first."""
        return ratio(sum(rows for _, rows in self._recent), sum(step_s for step_s, _ in self._recent))

    def recent_step_s(self) -> float:
        """Mean time of the last `RECENT_STEPS` steps [s]; NaN before the first."""
        return ratio(sum(step_s for step_s, _ in self._recent), len(self._recent))

    def remaining_s(self, steps: int) -> float:
        """Time that ``steps`` more would take at the recent pace [s]; NaN before the first."""
        return steps * self.recent_step_s()


def quantile(ordered: list[float], share: float) -> float:
    """The value below which ``share`` of an ascending list lies, linear between neighbours as `numpy.quantile`."""
    if not ordered:
        return math.nan
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def ratio(part: int | float, whole: int | float) -> float:
    """``part / whole``; NaN when nothing was measured."""
    return part / whole if whole > 0 else math.nan
