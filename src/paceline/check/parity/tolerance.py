"""How far K devices may be from one.

Owns: 1e-10 in float64; in any other type the rounding of one device, measured, as unit.
Invariant: a tolerance is derived from types and from one device alone, never from what K devices gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


_MOST = 0.5
"""Where rounding alone moves a value by more than that, or to infinity, nothing is shown, and so nothing is allowed."""


class Tolerances(NamedTuple):
    """What may differ by how much.

    Args:
      limits: relative deviation by kind of value (`trace.KINDS`), or of a single leaf.
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
        return self.limits.get(leaf, self.limits[kind_of(leaf)])


def exact(*, wanted: Trace = (), nudged: Sequence[Trace] = ()) -> Tolerances:
    """In float64.

    Args:
      wanted, nudged: one device, and the same from starts moved by the rounding of float64. A leaf that this moves by
        more than 1e-10 is no more exact: Adam divides a gradient of 0, in front of BatchNorm, by its rounding.
    """
    moved: dict[str, float] = {}
    for other in nudged:
        for found in deviations(other, wanted):
            moved[found.leaf] = max(moved.get(found.leaf, 0.0), min(_ROUNDINGS * found.value, _MOST))
    leaves = {leaf: value for leaf, value in moved.items() if value > EXACT}
    return Tolerances({**dict.fromkeys(KINDS, EXACT), **leaves}, EXACT_FLOOR)


def unit(parallel: Parallel, *, inside: Any) -> float:
    """The largest relative rounding [distance from 1 to the next number] in the task's own precision.

    Args:
      parallel: names the types of computation and of the wire.
      inside: the narrowest type that the task casts to by itself.
    """
    types = [parallel.precision, inside, *([parallel.reduce_dtype] if parallel.reduce_dtype else [])]
    return max(float(jnp.finfo(dtype).eps) for dtype in types)


def inside(dtype: object) -> Tolerances:
    """For a loss with a part that cannot be computed in float64, such as a kernel or a callback."""
    return Tolerances(dict.fromkeys(KINDS, _ULPS * float(jnp.finfo(dtype).eps)), EXACT_FLOOR)


def own(eps: float, *, rounded: Trace, other: Trace) -> Tolerances:
    """In the task's own precision.

    Args:
      eps: see `unit`.
      rounded, other: one device in that precision, and the same with other rounding: in float64, or, if the task draws
        random numbers, which are others there, from a start that is moved by its rounding (`Problem.nudged`).
    """
    measured = worst_by_kind(rounded, other, floor=ROUNDED_FLOOR)
    rounding = {kind: min(_ROUNDINGS * found.value, _MOST) for kind, found in measured.items()}
    limits = {kind: max(_ULPS * eps, rounding.get(kind, 0.0)) for kind in KINDS}
    return Tolerances(limits, ROUNDED_FLOOR)
