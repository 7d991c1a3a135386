"""How far K devices may be from one.

Owns: 1e-10 in float64; in any other type the rounding of one device, measured, as unit.
Invariant: a tolerance is derived from types and from one device alone, never from what K devices gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp

from paceline.check.parity.trace import (
    EXACT_FLOOR,
    KINDS,
    ROUNDED_FLOOR,
    Deviation,
    Trace,
    deviations,
    kind_of,
    worst_by_kind,
)
from paceline.engine.parallel import Parallel

EXACT = 1e-10
"""Relative tolerance in float64."""

_ULPS = 64
"""Sums over rows in another order move the last places of a value by a few units, more after some updates."""

_ROUNDINGS = 8
"""Two programs, each with a rounding like that of one device, of which one sample is known."""


class Tolerances(NamedTuple):
    """What may differ by how much.

    Args:
      limits: relative deviation by kind of value (`trace.KINDS`).
      floor: see `trace.EXACT_FLOOR`.
    """

    limits: Mapping[str, float]
    floor: float

    def farthest(self, observed: Trace, wanted: Trace) -> Deviation:
        """The deviation that is largest in units of its limit."""
        found = deviations(observed, wanted, floor=self.floor)
        return max(found, key=lambda deviation: deviation.value / self.limit(deviation.leaf))

    def limit(self, leaf: str) -> float:
        """Of one leaf."""
        return self.limits[kind_of(leaf)]


def exact() -> Tolerances:
    """In float64."""
    return Tolerances(dict.fromkeys(KINDS, EXACT), EXACT_FLOOR)


def inside(dtype: object) -> Tolerances:
    """For a loss that computes in a narrower type inside, though it was given float64."""
    return Tolerances(dict.fromkeys(KINDS, _ULPS * float(jnp.finfo(dtype).eps)), EXACT_FLOOR)


def own(parallel: Parallel, *, rounded: Trace, wide: Trace) -> Tolerances:
    """In the task's own precision.

    Args:
      parallel: names the types of computation and of the wire.
      rounded, wide: one device in that precision, and in float64.
    """
    types = [parallel.precision, *([parallel.reduce_dtype] if parallel.reduce_dtype else [])]
    eps = max(float(jnp.finfo(dtype).eps) for dtype in types)
    measured = worst_by_kind(rounded, wide, floor=ROUNDED_FLOOR)
    limits = {kind: max(_ULPS * eps, _ROUNDINGS * measured[kind].value if kind in measured else 0.0) for kind in KINDS}
    return Tolerances(limits, ROUNDED_FLOOR)
