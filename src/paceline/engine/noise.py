"""What the gradient noise scale is estimated from: two scalars that ride in the message of a step's totals.

Owns: the squared norm of a device's own gradient, its mean over the devices.
Not here: the estimate and its smoothing, on the host (`insight.noise`); the norm of the mean gradient, which every
step has (`engine.update`).
Invariant: no collective more, and nothing that the update reads: parameters are the same, bit for bit.

Device d holds rows of weight w_d; its mean gradient is G_d. With W the sum of the w_d, the mean over devices is taken
as ``sum_d (w_d / W) |G_d|^2``. Its expectation is ``|G|^2 + (K' / W) S`` for any split of the rows, K' the devices that
hold rows: unequal shares and padding cost no exactness (docs/design/015-noise-scale.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class LocalSquares(NamedTuple):
    """Of one device, or summed over devices.

    Args:
      square: ``|g_d|^2 / w_d`` with g_d the device's sum of gradients, as they cross the wire; 0 without rows.
      devices: 1 if the device holds rows that count.
    """

    square: Array
    devices: Array


def local_squares(gradients: Any, weight: Array, *, like: Array) -> LocalSquares:
    """Of this device's gradients, before any reduction.

    Args:
      weight: w_d, any type.
      like: a float of the type in which the totals are summed.
    """
    held = weight > 0
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)]
    total = jnp.sum(jnp.stack(squares)).astype(like.dtype)
    safe = jnp.where(held, weight, jnp.ones((), weight.dtype)).astype(like.dtype)
    return LocalSquares(jnp.where(held, total / safe, jnp.zeros((), like.dtype)), held.astype(like.dtype))


def local_gradient_norm(summed: LocalSquares, weight: Array, *, factor: Array) -> Array:
    """``sqrt(sum_d (w_d / W) |G_d|^2)``.

    Args:
      summed: over all devices.
      weight: W.
      factor: what turns the sum of the gradients into their mean.
    """
    return jnp.sqrt(summed.square * weight.astype(summed.square.dtype)) * factor.astype(summed.square.dtype)
