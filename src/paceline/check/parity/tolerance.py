"""How far K devices may be from one.

Owns: 1e-10 in float64; in any other type the rounding of one device, measured, as unit.
Invariant: a tolerance is derived from types and from one device alone, never from what K devices gave.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from paceline.check.parity.trace import (
    EXACT_FLOOR,
    KINDS,
    ROUNDED_FLOOR,
    Deviation,
    Trace,
    deviations,
    flat_leaves,
    kind_of,
)
from paceline.engine.parallel import Parallel

EPS64 = float(jnp.finfo(jnp.float64).eps)
EXACT = 1e-10
"""Relative tolerance in float64."""

_ULPS = 64
"""Sums over rows in another order move the last places of a value by a few units, more after some updates."""

_ROUNDINGS = 8
"""Two programs, each with a rounding like that of one device, of which one sample is known."""


_MOST = 0.5
"""Where rounding alone moves a value by more than that, or to infinity, nothing is shown, and so nothing is allowed."""

_MOST_FLAT = 1e9
"""Of a leaf that holds rounding by its nature, whatever is finite (`trace.flat_leaves`)."""


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

    def holds(self, observed: Trace, wanted: Trace) -> bool:
        """Whether no leaf goes beyond its limit."""
        found = self.farthest(observed, wanted)
        return found.value <= self.limit(found.leaf)

    def limit(self, leaf: str) -> float:
        """Of one leaf."""
        return self.limits.get(leaf, self.limits[kind_of(leaf)])


def exact(*, wanted: Trace = (), nudged: Sequence[Trace] = ()) -> Tolerances:
    """In float64.

    Args:
      wanted, nudged: one device, and the same from starts moved by the rounding of float64. A leaf that this moves by
        more than 1e-10 is no more exact: Adam divides a gradient of 0, in front of BatchNorm, by its rounding.
    """
    flat = flat_leaves(wanted) if wanted else ()
    return _measured(EXACT, EXACT_FLOOR, wanted=wanted, others=nudged, flat=flat)


def _measured(
    least: float, floor: float, *, wanted: Trace, others: Sequence[Trace], flat: Collection[str]
) -> Tolerances:
    """`least`, but for leaves that rounding moves farther."""
    moved: dict[str, float] = {}
    for other in others:
        for found in deviations(other, wanted, floor=floor):
            most = _MOST_FLAT if found.leaf in flat else _MOST
            moved[found.leaf] = max(moved.get(found.leaf, 0.0), min(_ROUNDINGS * found.value, most))
    leaves = {leaf: value for leaf, value in moved.items() if value > least}
    return Tolerances({**dict.fromkeys(KINDS, least), **leaves}, floor)


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


def own(eps: float, *, rounded: Trace = (), others: Sequence[Trace] = (), flat: Collection[str] = ()) -> Tolerances:
    """In the task's own precision.

    Args:
      eps: see `unit`.
      rounded, others: one device in that precision, and the same with other rounding: from starts that are moved by it,
        and in float64, unless the task draws random numbers, which are others there.
      flat: see `trace.flat_leaves`.
    """
    return _measured(_ULPS * eps, ROUNDED_FLOOR, wanted=rounded, others=others, flat=flat)
