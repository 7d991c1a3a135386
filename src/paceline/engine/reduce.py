"""Sums and means over the ``data`` axis, for code that runs once a device.

Owns: every reduction and gather that a `per_device` or `pmap` step performs on its own rows.
Not here: the compiler's own collectives under `global_view` and around split states.
Invariant: one gradient reduction an update, whatever the number of microbatches; small values share one message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding

from paceline.engine.parallel import ReduceDtype
from paceline.engine.placement import sharded_dim


def sum_gradients(
    gradients: Any, axis: str, *, dtype: ReduceDtype | None, bucket_bytes: int | None = None
) -> Any:  # fmt: skip
    """Sum of every device's gradients; on the wire as `dtype` (default: as they are), then in their own type again.

    Args:
      bucket_bytes: pack leaves into messages of at most that size (see `plan_buckets`); None: a message a leaf.
    """
    leaves, structure = jax.tree.flatten(gradients)
    wire = [leaf if dtype is None else leaf.astype(dtype) for leaf in leaves]
    if bucket_bytes is None:
        summed = [lax.psum(leaf, axis) for leaf in wire]
    else:
        summed = _sum_in_buckets(wire, axis, plan_buckets(wire, bucket_bytes))
    return jax.tree.unflatten(structure, [got.astype(leaf.dtype) for got, leaf in zip(summed, leaves, strict=True)])


def plan_buckets(leaves: Sequence[Any], bucket_bytes: int) -> list[list[int]]:
    """Which leaves share a message, as their numbers: of one dtype, the last leaf first, at most so many bytes.

    Backward produces the gradients of the last layers first, and trees are usually in the order of the layers.
    A leaf that alone is larger gets a message of its own.
    """
    done: list[list[int]] = []
    opened: dict[Any, list[int]] = {}
    filled: dict[Any, int] = {}
    for number in reversed(range(len(leaves))):
        dtype, size = leaves[number].dtype, leaves[number].size * leaves[number].dtype.itemsize
        if dtype not in opened or filled[dtype] + size > bucket_bytes:
            opened[dtype], filled[dtype] = [], 0
            done.append(opened[dtype])
        opened[dtype].append(number)
        filled[dtype] += size
    return done


def _sum_in_buckets(leaves: list[Array], axis: str, buckets: list[list[int]]) -> list[Array]:
    summed = list(leaves)
    for numbers in buckets:
        if len(numbers) == 1:  # nothing to pack with: no copy
            summed[numbers[0]] = lax.psum(leaves[numbers[0]], axis)
            continue
        packed = [leaves[number] for number in numbers]
        for number, leaf in zip(numbers, _packed(packed, lambda flat: lax.psum(flat, axis)), strict=True):
            summed[number] = leaf
    return summed


def scatter_gradients(gradients: Any, shardings: Any, *, axis: str, dtype: ReduceDtype | None) -> Any:
    """As `sum_gradients`, but of a leaf whose sharding splits a dim each device gets its own part of the sum only.

    Args:
      shardings: for each leaf, how the sum is split over the axis (`placement.split_shardings`).
    """

    def reduce(leaf: Array, sharding: NamedSharding) -> Array:
        dim = sharded_dim(sharding)
        if dim is None:
            return sum_gradients(leaf, axis, dtype=dtype)
        wire = leaf if dtype is None else leaf.astype(dtype)
        return lax.psum_scatter(wire, axis, scatter_dimension=dim, tiled=True).astype(leaf.dtype)

    return jax.tree.map(reduce, gradients, shardings)


def gather_leaves(tree: Any, shardings: Any, *, axis: str) -> Any:
    """Whole leaves on every device, from this device's parts of those that a sharding splits."""

    def gather(leaf: Array, sharding: NamedSharding) -> Array:
        dim = sharded_dim(sharding)
        return leaf if dim is None else lax.all_gather(leaf, axis, axis=dim, tiled=True)

    return jax.tree.map(gather, tree, shardings)


def sum_packed(tree: Any, axis: str) -> Any:
    """Sum of small leaves over the axis in one message: int32 counts ride with the floats, exactly (see `_digits`)."""
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    counts = [leaf for leaf in leaves if leaf.dtype == jnp.int32]
    if len(counts) == len(leaves):  # nothing to ride with
        return _packed(tree, lambda flat: lax.psum(flat, axis))
    carrier = max((leaf.dtype for leaf in leaves if leaf.dtype != jnp.int32), key=lambda dtype: dtype.itemsize)
    sent = [_digits(leaf).astype(carrier) if leaf.dtype == jnp.int32 else leaf for leaf in leaves]
    arrived = _packed(sent, lambda flat: lax.psum(flat, axis))
    summed = [_number(got) if leaf.dtype == jnp.int32 else got for leaf, got in zip(leaves, arrived, strict=True)]
    return jax.tree.unflatten(structure, summed)


_DIGIT_BITS = 11
"""float32 is exact below 2**24, so sums of such digits are exact for up to 2**13 devices."""


def _digits(count: Array) -> Array:
    """int32 as digits of 11, 11 and 10 bits along a new leading dim, the last one signed."""
    low = (1 << _DIGIT_BITS) - 1
    return jnp.stack([count & low, (count >> _DIGIT_BITS) & low, count >> 2 * _DIGIT_BITS])


def _number(digits: Array) -> Array:
    """int32 from summed digits; beyond 2**31 it wraps around, as a sum of int32 does."""
    ones, middle, top = digits.astype(jnp.int32)
    return ones + (middle << _DIGIT_BITS) + (top << 2 * _DIGIT_BITS)


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
