"""The numbers of the model that no data sheet holds, each with a range that physics and publications give it.

Owns: the parameters, their prior ranges, the values fitted to published efficiencies and how sure they are.
Not here: the fit (`insight.published.fit`), rates (`model.roofline`), costs of collectives (`insight.network`).
Invariant: one set for every model, device and framework.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Parameters:
    """What one step is disturbed by.

    Args:
      contention: by which fraction compute slows while communication is in flight.
      slowdown: how much longer a collective takes within a step than alone in a benchmark.
      spread: standard deviation of the speed of devices of one model, relative.
      interruption_s: mean length of what interrupts a device [s].
      interruptions_per_s: how often one device is interrupted [1/s].
    """

    contention: float
    slowdown: float
    spread: float
    interruption_s: float
    interruptions_per_s: float

    def moved(self, name: str, factor: float) -> Parameters:
        """One parameter multiplied."""
        return replace(self, **{name: getattr(self, name) * factor})


@dataclass(frozen=True)
class Prior:
    """A log-normal range: two of three values lie within a factor exp(log_sd) of the median."""

    median: float
    log_sd: float
    source: str


PRIORS: Mapping[str, Prior] = {
    "contention": Prior(
        0.19,
        0.40,
        "arXiv 2507.03114: compute slows by 18.9 % on average, 40 % at most, while collectives run (A100, H100, MI250)",
    ),
    "slowdown": Prior(
        1.15,
        0.15,
        "arXiv 2507.03114: overlapped steps gain less than their communication; an estimate",
    ),
    "spread": Prior(
        0.02,
        0.40,
        "arXiv 2208.11035: 8 % between the fast and the slow GPUs of a cluster, four standard deviations",
    ),
    "interruption_s": Prior(
        2.0e-3,
        0.70,
        "Petrini, Kerbyson, Pakin 2003 (SC03), The case of the missing supercomputer performance: 1 to 10 ms",
    ),
    "interruptions_per_s": Prior(5.0, 0.70, "the same: a few a second on a node with many services"),
}

# The result of `insight.published.fit` on all rows (`benchmarks/published.py` prints it; a test fits again).
FITTED = Parameters(
    contention=0.1391, slowdown=1.089, spread=0.0149, interruption_s=0.002069, interruptions_per_s=5.114
)
# Standard deviations of their logarithms after the fit.
FITTED_LOG_SD: Mapping[str, float] = {
    "contention": 0.336,
    "slowdown": 0.101,
    "spread": 0.250,
    "interruption_s": 0.513,
    "interruptions_per_s": 0.696,
}

# Noise of one measured efficiency about the true one, and what the model leaves out: single runs, rates printed with
# two or three digits, layers lumped. Set before any fit (`RESIDUAL_FLOOR` where nothing is lost, more where more is).
# Leaving one source out, intervals made with it hold 90 % of the published efficiencies: rather too wide.
RESIDUAL_FLOOR = 0.015
RESIDUAL_SLOPE = 0.15

# 80 % of a normal distribution lie within this many standard deviations of its mean.
EIGHTY_PERCENT = 1.2815515655446004


def residual_sd(efficiency: float) -> float:
    """Standard deviation of measured about predicted efficiency, parameters known."""
    return RESIDUAL_FLOOR + RESIDUAL_SLOPE * max(1.0 - efficiency, 0.0)


def names() -> tuple[str, ...]:
    """Of the parameters, in the order of the class."""
    return tuple(field.name for field in fields(Parameters))


def interval(efficiency: float, *, slopes: Mapping[str, float], log_sd: Mapping[str, float]) -> tuple[float, float]:
    """80 % interval of a predicted efficiency.

    Args:
      slopes: change of the efficiency with the logarithm of each uncertain quantity.
      log_sd: standard deviation of that logarithm.
    Returns: low and high; low never below 0, high above 1 only where the efficiency itself is, and then no higher: a
      placement that splits the update makes K devices faster than K times one.
    Source: first-order propagation of independent errors; the residual is added to them.
    """
    variance = residual_sd(efficiency) ** 2
    variance += sum((slope * log_sd[name]) ** 2 for name, slope in slopes.items())
    half = EIGHTY_PERCENT * math.sqrt(variance)
    return max(efficiency - half, 0.0), min(efficiency + half, max(1.0, efficiency))
