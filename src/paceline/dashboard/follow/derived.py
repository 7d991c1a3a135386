"""Numbers that the reader adds to what a run recorded.

Owns: the moving median and 95th percentile of the step time, the moving throughput and what follows from it by Little's
law, the share of a step that waits for input.
Not here: numbers that need more than one event's file (`views.series`).
Invariant: a derived number stands in a row only if what it is made of does, and depends on earlier rows alone.

Rates are of windows, not of single steps: steps that are sent off ahead of the device seem to take next to nothing, and
the one that waits for them takes their time too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from paceline.dashboard.follow.spans import MISSING
from paceline.telemetry.metrics import INPUT_WAIT_S, SPEED_LATENCY_S, SPEED_STEP_S, TRAIN_ROWS, Metric
from paceline.telemetry.summary import quantile

WINDOW_STEPS = 50

STEP_P50_S = Metric("speed/step_p50_s", "s", f"Median step time of the last {WINDOW_STEPS} steps.", "lower")
STEP_P95_S = Metric(
    "speed/step_p95_s", "s", f"Step time that 95 % of the last {WINDOW_STEPS} steps keep within.", "lower"
)
RECENT_STEP_S = Metric("speed/recent_step_s", "s", f"Mean step time of the last {WINDOW_STEPS} timed steps.", "lower")
RECENT_SAMPLES_PER_S = Metric(
    "speed/recent_samples_per_s", "samples/s",
    f"Valid rows trained on in the last {WINDOW_STEPS} timed steps, by the seconds that these took.", "higher",
)  # fmt: skip
LITTLE_ROWS = Metric(
    "speed/little_rows", "rows",
    f"Rows in flight by Little's law: mean latency of a row by throughput, over the last {WINDOW_STEPS} timed steps.",
    "none",
)  # fmt: skip
WAIT_SHARE = Metric(
    "input/wait_share",
    "",
    f"Part of the last {WINDOW_STEPS} timed steps in which the devices waited for input.",
    "lower",
)
COMMUNICATION_SHARE = Metric(
    "communication/share", "",
    f"Part of the last {WINDOW_STEPS} timed steps that communication takes beyond compute: modelled.", "lower",
)  # fmt: skip
_OTHERS = (TRAIN_ROWS.key, SPEED_LATENCY_S.key, INPUT_WAIT_S.key)
_SUMMED = 8  # numbers of a step that are summed over the window
_STORED = (STEP_P50_S, STEP_P95_S, RECENT_STEP_S, RECENT_SAMPLES_PER_S, LITTLE_ROWS, WAIT_SHARE)
DERIVED = {metric.key: metric for metric in (*_STORED, COMMUNICATION_SHARE)}


class StepWindow:
    """The last `WINDOW_STEPS` rows that have a step time, and what is derived from rows as they come."""

    def __init__(self) -> None:
        self._last_s: list[float] = []
        self._last = np.zeros((_SUMMED, WINDOW_STEPS - 1))

    def derive(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Columns to add to ``values``, which hold the next rows ``[R]``."""
        step_s = values.get(SPEED_STEP_S.key, np.empty(0))
        known = np.isfinite(step_s)
        if not known.any():
            return {}
        others = [values[key][known] if key in values else np.full(known.sum(), math.nan) for key in _OTHERS]
        p50_s, p95_s = self._quantiles(step_s[known])
        found = {STEP_P50_S: p50_s, STEP_P95_S: p95_s} | self._means(step_s[known], *others)
        added = {}
        for metric, numbers in found.items():
            finite = np.isfinite(numbers)
            if finite.any():
                added[metric.key] = column = np.full(len(known), MISSING)
                column[known] = np.where(finite, numbers, MISSING)
        return added

    def derive_one(self, values: Mapping[str, float]) -> dict[str, float]:
        """As `derive` for one row, in a tenth of the time."""
        step_s = values.get(SPEED_STEP_S.key, math.nan)
        if not math.isfinite(step_s):
            return {}
        window_s = sorted([*self._last_s, step_s])
        self._last_s = [*self._last_s, step_s][-(WINDOW_STEPS - 1) :]
        means = self._means(np.array([step_s]), *(np.array([values.get(key, math.nan)]) for key in _OTHERS))
        found = {STEP_P50_S: quantile(window_s, 0.5), STEP_P95_S: quantile(window_s, 0.95)}
        found |= {metric: float(numbers[0]) for metric, numbers in means.items()}
        return {metric.key: value for metric, value in found.items() if math.isfinite(value)}

    def _means(
        self, step_s: np.ndarray, rows: np.ndarray, latency_s: np.ndarray, wait_s: np.ndarray
    ) -> dict[Metric, np.ndarray]:
        """Behind each of these steps ``[R]``, of those before as well; not finite where there is none.

        A step that lacks a number counts for none that is made of it.
        """
        there = [np.isfinite(column) for column in (rows, latency_s, wait_s)]
        has_rows, has_latency, has_wait = there
        new = np.zeros((_SUMMED, len(step_s)))
        new[0], new[1], new[2] = step_s, 1, has_latency
        new[3:6] = np.where(there, (rows, latency_s, wait_s), 0)
        new[6:8] = np.where((has_rows, has_wait), step_s, 0)
        joined = np.concatenate([self._last, new], axis=1)
        self._last = joined[:, -(WINDOW_STEPS - 1) :]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # numbers of any size may be on the line
            sums = _window_sums(joined)
            seconds, steps, latencies, all_rows, all_latency_s, all_wait_s, seconds_of_rows, seconds_of_waits = sums
            rate = np.where(has_rows, all_rows / seconds_of_rows, math.nan)
            little = np.where(has_latency, all_latency_s / latencies * rate, math.nan)
            share = np.where(has_wait, all_wait_s / seconds_of_waits, math.nan)
            return {RECENT_STEP_S: seconds / steps, RECENT_SAMPLES_PER_S: rate, LITTLE_ROWS: little, WAIT_SHARE: share}

    def _quantiles(self, step_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """p50 and p95 behind each of these steps, of those before as well, linear between neighbours."""
        early = len(self._last_s)
        joined = np.concatenate([self._last_s, step_s])
        self._last_s = joined[-(WINDOW_STEPS - 1) :].tolist()
        p50, p95 = np.empty(len(step_s)), np.empty(len(step_s))
        short = min(len(step_s), max(0, WINDOW_STEPS - 1 - early))
        for place in range(short):  # the window fills once in a run
            ordered_s = sorted(joined[: early + place + 1].tolist())
            p50[place], p95[place] = quantile(ordered_s, 0.5), quantile(ordered_s, 0.95)
        if short < len(step_s):
            windows = np.lib.stride_tricks.sliding_window_view(joined, WINDOW_STEPS)
            ordered = np.sort(windows[len(windows) - (len(step_s) - short) :], axis=1)
            p50[short:], p95[short:] = _between(ordered, 0.5), _between(ordered, 0.95)
        return p50, p95


def _window_sums(joined: np.ndarray) -> np.ndarray:
    """Of each `WINDOW_STEPS` neighbours along the second axis."""
    if joined.shape[1] == WINDOW_STEPS:  # one step that came alone: views take longer than the sum
        return joined.sum(axis=1, keepdims=True)
    return np.lib.stride_tricks.sliding_window_view(joined, WINDOW_STEPS, axis=1).sum(axis=2)


def _between(ordered: np.ndarray, share: float) -> np.ndarray:
    position = share * (WINDOW_STEPS - 1)
    below = int(position)
    return ordered[:, below] + (position - below) * (ordered[:, below + 1] - ordered[:, below])
