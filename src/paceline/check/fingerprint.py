"""The bytes of an array as unsigned words, and the fingerprint of these words.

Owns: bits of every dtype and back, the hash, the program that hashes all leaves where they lie.
Not here: which devices should hold the same bytes (`check.layout`), what follows when they do not (`check.audit`).
Invariant: one word changed, at any place, always changes both words of the fingerprint: floats are never compared, so
a NaN equals itself and -0.0 is not 0.0.

Shapes: ``[n]`` words of a leaf as one device holds it, ``[K, leaves, 2]`` fingerprints by device and leaf.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import UInt32


@functools.partial(jax.jit, static_argnames=("mesh", "specs"))
def fingerprints(leaves: tuple[Array, ...], *, mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Array:
    """Fingerprints ``[K, leaves, 2]`` uint32, on every device, in the order of ``mesh.devices.flat``.

    Every device hashes what it holds, whatever the sharding says of the others; one all-gather follows. A function of
    the module, so that one program serves every trainer.
    """

    def local(*own: Array) -> Array:
        return lax.all_gather(jnp.stack([fingerprint(leaf) for leaf in own]), mesh.axis_names)

    # The replication check is off: that devices hold the same is what is to be found out.
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    return mapped(*leaves)


@jax.jit
def fingerprint(leaf: Array) -> UInt32[Array, "2"]:
    """Two hashes of the words of a leaf, in one pass; traced once for each shape.

    First a sum with odd weights, which no change of one word leaves as it was. A sum alone would miss changes that
    cancel, such as two swapped signs, so the second word sums a mix of word and place that is one-to-one in the word
    and linear in nothing.
    """
    word = words(leaf)
    place = lax.iota(jnp.uint32, word.size)
    weighted = word * (place * jnp.uint32(0x9E3779B1) | jnp.uint32(1))
    mixed = (word ^ (place * jnp.uint32(0x85EBCA77))) * jnp.uint32(0xC2B2AE3D)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x27D4EB2F)
    mixed = mixed ^ (mixed >> 13)
    # One reduction of two operands: as two sums XLA's CPU compiler reads the leaf twice and is 20 times slower.
    zero = jnp.uint32(0)
    return jnp.stack(lax.reduce((weighted, mixed), (zero, zero), _add, (0,)))


def _add(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    return a[0] + b[0], a[1] + b[1]


def words(leaf: Array) -> UInt32[Array, "n"]:
    """The bits of a leaf in row order; narrow types are packed where their number allows, else widened. Traceable."""
    bits = to_bits(leaf).reshape(-1)
    count = 4 // bits.dtype.itemsize
    if count > 1 and bits.size % count == 0:
        return lax.bitcast_convert_type(bits.reshape(-1, count), jnp.uint32)
    return bits.astype(jnp.uint32)


def to_bits(leaf: Array) -> Array:
    """The leaf as uint8, uint16 or uint32; 8-byte and complex types and keys get a trailing dim. Traceable."""
    dtype = leaf.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    if dtype == jnp.bool_:
        return leaf.astype(jnp.uint8)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.stack([to_bits(lax.real(leaf)), to_bits(lax.imag(leaf))], axis=-1)
    width = _width(dtype)
    if width < 8:
        return lax.bitcast_convert_type(leaf, f"uint{width}").astype(jnp.uint8)
    return lax.bitcast_convert_type(leaf, jnp.uint32 if width == 64 else f"uint{width}")


def from_bits(bits: Array, *, like: Array) -> Array:
    """The array of the dtype (and key type) of `like` that has these bits: the inverse of `to_bits`. Traceable."""
    dtype = like.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(like))
    if dtype == jnp.bool_:
        return bits.astype(jnp.bool_)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return lax.complex(from_bits(bits[..., 0], like=lax.real(like)), from_bits(bits[..., 1], like=lax.imag(like)))
    width = _width(dtype)
    return lax.bitcast_convert_type(bits.astype(f"uint{width}") if width < 8 else bits, dtype)


def _width(dtype: Any) -> int:
    """Bits of one number; 4 for int4, which the item size rounds up to a byte."""
    info = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    return info(dtype).bits
