"""Compute types, float32 masters and the dynamic loss scale of float16.

Owns: the casts around the user's loss; growth and backoff of the loss scale.
Invariant: parameters, optimizer state, sums and statistics never leave float32 (float64 under x64).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from paceline.base.errors import StateError
from paceline.engine.parallel import Precision
from paceline.tasks.tree import map_named

INITIAL_SCALE = 2.0**15
GROWTH_INTERVAL = 2000
MINIMUM_SCALE = 1.0


@functools.partial(jax.tree_util.register_dataclass, data_fields=("scale", "good_steps"), meta_fields=())
@dataclass(frozen=True)
class LossScale:
    """The dynamic loss scale (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2).

    Args:
      scale: float32 scalar that multiplies the loss before differentiation.
      good_steps: int32, finite updates since the last change.
    """

    scale: Array
    good_steps: Array


def initial_loss_scale() -> LossScale:
    """The scale 2**15, no step seen."""
    return LossScale(jnp.asarray(INITIAL_SCALE, jnp.float32), jnp.zeros((), jnp.int32))


def next_loss_scale(current: LossScale, finite: Array) -> LossScale:
    """Half the scale after an overflow (not below 1), twice after 2000 finite updates in a row."""
    grown = current.good_steps + 1 >= GROWTH_INTERVAL
    up = jnp.where(grown, current.scale * 2, current.scale)
    scale = jnp.where(finite, up, jnp.maximum(current.scale / 2, MINIMUM_SCALE))
    good_steps = jnp.where(finite & ~grown, current.good_steps + 1, 0)
    return LossScale(scale.astype(jnp.float32), good_steps.astype(jnp.int32))


def cast_floats(tree: Any, precision: Precision) -> Any:
    """The tree with its floating-point leaves in the compute type; float32 leaves everything as it is."""
    if precision == "float32":
        return tree
    return jax.tree.map(lambda leaf: leaf.astype(precision) if is_float(leaf) else leaf, tree)


def master_params(params: Any) -> Any:
    """Parameters in at least float32.

    Raises: StateError: a leaf is not a floating-point array, or there is no leaf.
    """
    if not jax.tree.leaves(params):
        raise StateError(
            what="the tree of parameters has no leaf",
            why="there is nothing to train",
            fix="pass at least one floating-point array as parameter",
        )
    return map_named(_master, params)


def _master(name: str, leaf: Any) -> Any:
    if not is_float(leaf):
        raise StateError(
            what=f"parameter {name!r} has dtype {getattr(leaf, 'dtype', type(leaf).__name__)}",
            why="only floating-point parameters have gradients",
            fix="keep it in the model state, or cast it to float32",
        )
    array = leaf if hasattr(leaf, "astype") else jnp.asarray(leaf)  # a Python number is a parameter too
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def is_float(leaf: Any) -> bool:
    """Whether a leaf, an array or the shape of one, is of a floating-point type; keys and integers are not."""
    return jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.floating)


def is_key(leaf: Any) -> bool:
    """Whether a leaf, an array or the shape of one, holds typed random keys, which numpy cannot."""
    return jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jax.dtypes.prng_key)
