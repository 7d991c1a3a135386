"""Sums and means over the ``data`` axis, for code that runs once a device.

Owns: every reduction that a `per_device` or `pmap` step performs.
Not here: the compiler's own reductions under `global_view`.
Invariant: one gradient reduction an update, whatever the number of microbatches; small values share one message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from paceline.engine.parallel import ReduceDtype


def sum_gradients(gradients: Any, axis: str, *, dtype: ReduceDtype | None) -> Any:
    """Sum of every device's gradients; on the wire as `dtype` (default: as they are), then in their own type again."""

    def reduce(leaf: Array) -> Array:
        wire = leaf if dtype is None else leaf.astype(dtype)
        return lax.psum(wire, axis).astype(leaf.dtype)

    return jax.tree.map(reduce, gradients)


def sum_packed(tree: Any, axis: str) -> Any:
    """Sum of small leaves over the axis, one message a dtype instead of one a leaf."""
    return _packed(tree, lambda flat: lax.psum(flat, axis))


def mean_packed(tree: Any, axis: str) -> Any:
    """Mean of small floating-point leaves over the axis, one message a dtype."""
    return _packed(tree, lambda flat: lax.pmean(flat, axis))


def _packed(tree: Any, reduce: Callable[[Array], Array]) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    reduced: list[Array] = list(leaves)
    for dtype in {leaf.dtype for leaf in leaves}:
        members = [number for number, leaf in enumerate(leaves) if leaf.dtype == dtype]
        flat = reduce(jnp.concatenate([leaves[number].ravel() for number in members]))
        start = 0
        for number in members:
            size = leaves[number].size
            reduced[number] = flat[start : start + size].reshape(leaves[number].shape)
            start += size
    return jax.tree.unflatten(structure, reduced)
