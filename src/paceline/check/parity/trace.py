"""What a few updates came to, as named arrays on the host, and how far two such traces are apart.

Owns: the names of what is compared, the measure of deviation.
Invariant: a deviation of 0 means equal values; that of NaN from a number is infinite.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from paceline.engine.precision import is_key
from paceline.tasks.tree import named_leaves

Values = Mapping[str, np.ndarray]
"""One update by name: ``loss``, ``gradient.w``, ``opt_state.0.mu.w``, ``model_state.bn.mean``, ``metrics.accuracy``."""

Trace = Sequence[Values]
"""One entry an update."""

KINDS = ("loss", "gradient", "params", "opt_state", "model_state", "ema", "metrics")

EXACT_FLOOR, ROUNDED_FLOOR = 1e-4, 1e-2
"""A leaf is measured against its own largest value in any update (a parameter may pass through 0), but not less than
this share of the largest of its kind: the gradient of a bias in front of BatchNorm is 0, and what two programs make of
that is rounding. The first is for float64, the second for the task's own precision, where a sum of large terms that
cancel is mostly rounding too."""


_FLAT = 1e-12
"""A gradient this much smaller than the largest is rounding in float64: a thousand times 2e-16, and some more."""

_OF_PARAMS = ("params", "opt_state", "ema")


class Deviation(NamedTuple):
    """The largest relative deviation and where it is."""

    value: float
    leaf: str
    update: int


def flatten(**kinds: Any) -> dict[str, np.ndarray]:
    """Named host arrays of trees: ``flatten(params={"w": w})`` is ``{"params.w": ...}``; None is left out."""
    found: dict[str, np.ndarray] = {}
    for kind, tree in kinds.items():
        for name, leaf in named_leaves(tree):
            found[kind if name == "(whole)" else f"{kind}.{name}"] = words(leaf)
    return found


def words(leaf: Any) -> np.ndarray:
    """The leaf in numpy; of a typed key its words."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def kind_of(name: str) -> str:
    """``gradient`` of ``gradient.w``."""
    return name.partition(".")[0]


def deviations(observed: Trace, wanted: Trace, *, floor: float = EXACT_FLOOR) -> Iterator[Deviation]:
    """Deviation of every leaf of `wanted` at every update; a leaf that `observed` lacks is not compared."""
    scales = _scales(wanted, floor=floor)
    for update, (seen, right) in enumerate(zip(observed, wanted, strict=True), start=1):
        for name, expected in right.items():
            if name in seen:
                yield Deviation(_distance(seen[name], expected, scale=scales.get(name, 0.0)), name, update)


def worst(observed: Trace, wanted: Trace, *, kinds: Sequence[str] = KINDS) -> Deviation:
    """The largest deviation among leaves of these kinds; infinite if there is nothing to compare."""
    found = [deviation for deviation in deviations(observed, wanted) if kind_of(deviation.leaf) in kinds]
    return max(found, key=lambda deviation: deviation.value, default=Deviation(np.inf, "nothing", 0))


def worst_by_kind(observed: Trace, wanted: Trace, *, floor: float = EXACT_FLOOR) -> dict[str, Deviation]:
    """The largest deviation of each kind."""
    found: dict[str, Deviation] = {}
    for deviation in deviations(observed, wanted, floor=floor):
        kind = kind_of(deviation.leaf)
        if kind not in found or deviation.value > found[kind].value:
            found[kind] = deviation
    return found


def flat_leaves(right: Trace) -> frozenset[str]:
    """Leaves of parameters whose gradient is 0 but for rounding in every update, as of a bias in front of BatchNorm.

    Adam divides that rounding by itself, so two right programs may give such a leaf any value.

    Args:
      right: one device in float64.
    """
    largest: dict[str, float] = {}
    for values in right:
        for name, leaf in values.items():
            if kind_of(name) == "gradient" and leaf.size:
                path = name.removeprefix("gradient.")
                largest[path] = max(largest.get(path, 0.0), float(np.abs(_wide(leaf)).max()))
    least = _FLAT * max(largest.values(), default=0.0)

    def is_flat(name: str) -> bool:
        path = max((path for path in largest if name.endswith(f".{path}")), key=len, default=None)
        return kind_of(name) in _OF_PARAMS and path is not None and largest[path] <= least

    return frozenset(filter(is_flat, right[0]))


def without(trace: Trace, names: Collection[str]) -> Trace:
    """The trace without these leaves."""
    return [{name: leaf for name, leaf in values.items() if name not in names} for values in trace]


def _scales(trace: Trace, *, floor: float) -> dict[str, float]:
    """What each floating-point leaf is measured against."""
    largest: dict[str, float] = {}
    for values in trace:
        for name, leaf in values.items():
            if _is_float(leaf) and leaf.size:
                finite = np.abs(_wide(leaf)[np.isfinite(_wide(leaf))])
                largest[name] = max(largest.get(name, 0.0), float(finite.max(initial=0.0)))
    kinds: dict[str, float] = {}
    for name, value in largest.items():
        kinds[kind_of(name)] = max(kinds.get(kind_of(name), 0.0), value)
    return {name: max(value, floor * kinds[kind_of(name)]) for name, value in largest.items()}


def _distance(seen: np.ndarray, expected: np.ndarray, *, scale: float) -> float:
    if seen.shape != expected.shape:
        return np.inf
    if not expected.size or np.array_equal(seen, expected):
        return 0.0
    if not _is_float(expected):
        return np.inf
    unequal = seen != expected
    distance = float(np.abs(_wide(seen)[unequal] - _wide(expected)[unequal]).max())
    return distance / scale if scale and np.isfinite(distance) else np.inf


def _is_float(leaf: np.ndarray) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _wide(leaf: np.ndarray) -> np.ndarray:
    return leaf.astype(np.float64)
