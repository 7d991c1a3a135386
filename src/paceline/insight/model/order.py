"""How long the slowest of K devices keeps the others waiting.

Owns: the expected maximum of K step times, minus their mean.
Not here: how far step times spread (`model.parameters`).
Invariant: nothing for one device; grows with K, without end but ever more slowly.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

_EULER = 0.5772156649015329
_NEGLIGIBLE = 1e-12
_LARGE = 256


def normal_maximum(devices: int) -> float:
    """Expected largest of K standard normal draws [standard deviations].

    For what differs between devices and stays: chips of one model do not run at one clock.
    Within 0.03 of the exact value for every K: 0.5895 for 0.5642 with two, nearer with more.
    Source: Blom 1958, "Statistical Estimates and Transformed Beta-Variables" (alpha = 0.375).
    """
    assert devices >= 1
    return NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25)) if devices > 1 else 0.0


def interrupted_maximum(devices: int, *, chance: float) -> float:
    """Expected longest interruption among K devices, less that of one device [means of an interruption].

    Each device is interrupted with probability q, for a time that is exponential: rare, with a long tail. With all
    interrupted it is the harmonic number H_K less 1.
    Args:
      chance: q, from 0 to 1.
    Source: the maximum exceeds x with probability 1 - (1 - q e^-x)^K; integrated over x that is the sum over j to K of
      (1 - (1-q)^j) / j. For q = 1: Renyi 1953, "On the theory of order statistics".
    """
    assert devices >= 1
    assert 0 <= chance <= 1
    if devices == 1:
        return 0.0
    free, total = 1.0, 0.0
    for j in range(1, devices + 1):
        free *= 1 - chance
        if free < _NEGLIGIBLE:
            return total + _harmonic(devices) - _harmonic(j - 1) - chance
        total += (1 - free) / j
    return total - chance


@cache
def _harmonic(count: int) -> float:
    if count < _LARGE:
        return sum((1.0 / i for i in range(1, count + 1)), 0.0)
    return math.log(count) + _EULER + 1 / (2 * count)
