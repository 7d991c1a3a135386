"""Random keys of a step: everything random derives from (seed, step).

Owns: the three dropout streams, and the positional generator behind the `global` one.
Invariant: under the `global` stream a draw with one entry a row has the random bits of the one-device draw for the same
rows, whatever the scheme, the number of devices K and the number of microbatches n. (A mask is then equal bit for bit;
a normal draw to the last place, since compilers vectorise its logarithm by array size.)

How: JAX's partitionable threefry gives entry i of a draw as a hash of (key, i). A part of the batch that holds the
global rows ``start, start + stride, ...`` therefore can compute its entries of the one-device draw alone, with no
communication. `positional_key` makes a typed key that does so for each draw whose leading dim is the number of rows of
the part.

A split into as many keys as there are rows is ambiguous: one key a row (then under vmap), or one key for each of so
many layers? A positional key carries both candidates and the later draw decides: under a vmap over as many keys as
there are rows it is the row's own key, whatever the shape of the draw; else with a leading row dim it is the layers'
key at this part's rows, and without one the row's own key.

Shapes: b = rows of the part, B = rows of the whole batch. A positional key has data ``uint32[6]``: the layers' key (2),
the row's key (2), start, stride.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap
from jax.extend import random as extend_random

_KEY_WORDS = 6


def base_key(seed: int | Array) -> Array:
    """The key of a run: threefry, the generator whose draws do not depend on how an array is split."""
    return jax.random.key(seed, impl="threefry2x32")


def step_key(rng: Array, step: Array) -> Array:
    """The key of one step."""
    return jax.random.fold_in(rng, step)


def positional_key(key: Array, *, rows: int, start: Array | int, stride: Array | int) -> Array:
    """A key whose row-shaped draws are rows ``start + i * stride`` of the one-device draw, i < `rows`.

    Args:
      key: threefry key, the same on every device.
      rows: rows b that the holder of the key sees.
      start: global index of its first row; may be traced.
      stride: distance between the global indices of neighbouring rows; may be traced.
    """
    words = jax.random.key_data(key)
    place = jnp.stack([jnp.asarray(start, jnp.uint32), jnp.asarray(stride, jnp.uint32)])
    return jax.random.wrap_key_data(jnp.concatenate([words, words, place]), impl=_positional_impl(rows))


@functools.cache
def _positional_impl(rows: int) -> Hashable:
    return extend_random.define_prng_impl(
        key_shape=(_KEY_WORDS,),
        seed=_seed,
        split=functools.partial(_split, rows),
        random_bits=functools.partial(_random_bits, rows),
        fold_in=_fold_in,
        name=f"positional_threefry_{rows}",
        tag=f"pos{rows}",
    )


def _seed(seed: Array) -> Array:
    words = jax.random.key_data(base_key(seed))
    return jnp.concatenate([words, words, jnp.array([0, 1], jnp.uint32)])


def _fold_in(key: Array, data: Any) -> Array:
    counts = jnp.stack([jnp.zeros((), jnp.uint32), jnp.asarray(data).astype(jnp.uint32)])
    lanes = [extend_random.threefry_2x32(lane, counts) for lane in (key[:2], key[2:4])]
    return jnp.concatenate([*lanes, key[4:]])


def _split(rows: int, key: Array, shape: tuple[int, ...]) -> Array:
    def split(key: Array, own_counts: tuple[Array, Array]) -> Array:
        layers = jnp.stack(_threefry(key[:2], _plain_counts(shape)), axis=-1)
        own = jnp.stack(_threefry(key[2:4], own_counts), axis=-1)
        return jnp.concatenate([layers, own, jnp.broadcast_to(key[4:], (*shape, 2))], axis=-1)

    return _unless_row_keys(
        rows,
        key,
        usual=lambda key: split(key, _counts(rows, key, shape)),
        row=lambda key: split(key, _plain_counts(shape)),
    )


def _random_bits(rows: int, key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    def bits(lane: Array, counts: tuple[Array, Array]) -> Array:
        high, low = _threefry(lane, counts)
        if bit_width == 64:
            return high.astype(jnp.uint64) << 32 | low.astype(jnp.uint64)
        return (high ^ low).astype(f"uint{bit_width}")

    def usual(key: Array) -> Array:
        return bits(key[:2] if _has_rows(rows, shape) else key[2:4], _counts(rows, key, shape))

    return _unless_row_keys(rows, key, usual=usual, row=lambda key: bits(key[2:4], _plain_counts(shape)))


def _unless_row_keys(rows: int, key: Array, *, usual: Callable[[Array], Array], row: Callable[[Array], Array]) -> Array:
    """``usual(key)``; but ``row`` of each key where the caller maps over one key a row.

    There a draw of as many features as the part has rows must not be taken for one over the rows.
    """
    draw = custom_vmap(usual)

    @draw.def_vmap
    def _(axis_size: int, _: list[bool], keys: Array) -> tuple[Array, bool]:
        if axis_size == rows:
            return jax.vmap(row)(keys), True
        return _unless_row_keys(rows, keys, usual=jax.vmap(usual), row=jax.vmap(row)), True

    return draw(key)


def _has_rows(rows: int, shape: tuple[int, ...]) -> bool:
    return bool(shape) and shape[0] == rows


def _counts(rows: int, key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """High and low word of each entry's index in the one-device draw."""
    if not _has_rows(rows, shape):
        return _plain_counts(shape)
    return _row_counts(key[4] + key[5] * jnp.arange(rows, dtype=jnp.uint32), shape[1:])


def _plain_counts(shape: tuple[int, ...]) -> tuple[Array, Array]:
    size = math.prod(shape)
    if size < 2**32:
        return jnp.zeros(shape, jnp.uint32), jax.lax.iota(jnp.uint32, size).reshape(shape)
    return _row_counts(jax.lax.iota(jnp.uint32, shape[0]), shape[1:])


def _row_counts(row: Array, inner: tuple[int, ...]) -> tuple[Array, Array]:
    """Words of ``row * size(inner) + offset`` for every offset in a row, as 64-bit arithmetic on 32-bit words."""
    high, low = _multiply(row, math.prod(inner))
    offset_high, offset_low = _plain_counts(inner)
    column = (slice(None),) + (None,) * len(inner)
    total_low = low[column] + offset_low
    carry = (total_low < offset_low).astype(jnp.uint32)
    return high[column] + offset_high + carry, total_low


def _multiply(left: Array, right: int) -> tuple[Array, Array]:
    """High and low 32-bit word of a 64-bit product, without 64-bit types (schoolbook, base 2**16)."""
    mask = jnp.uint32(0xFFFF)
    a, b = left >> 16, left & mask
    c, d = jnp.uint32(right >> 16 & 0xFFFF), jnp.uint32(right & 0xFFFF)
    middle = a * d + (b * d >> 16)
    middle_low = (middle & mask) + b * c
    high = a * c + (middle >> 16) + (middle_low >> 16) + left * jnp.uint32(right >> 32)
    return high, left * jnp.uint32(right & 0xFFFFFFFF)


def _threefry(lane: Array, counts: tuple[Array, Array]) -> list[Array]:
    return extend_random.threefry2x32_p.bind(
        jnp.broadcast_to(lane[0], counts[0].shape), jnp.broadcast_to(lane[1], counts[0].shape), *counts
    )
