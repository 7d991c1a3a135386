"""The form in which a leaf is written, for every dtype that JAX has.

Owns: which dtypes files hold as they are, the other ones as unsigned bytes, key arrays as their data, and back.
Not here: where the bytes lie in a checkpoint (`checkpoint.leaves`), their checksum (`checkpoint.checksum`).
Invariant: written and read back, every bit of a leaf is what it was; a NaN keeps its payload.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array, lax

_AS_THEY_ARE = frozenset(
    np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", ml_dtypes.bfloat16, "float32", "float64", "complex64", "complex128",
    )
)  # fmt: skip


def is_key(dtype: Any) -> bool:
    """Whether this is the dtype of typed random keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


@functools.cache
def dtype_name(dtype: Any) -> str:
    """``float32``, ``bfloat16``, ``key<threefry2x32>``: the name under which a dtype is written."""
    return f"key<{key_impl(dtype)}>" if is_key(dtype) else np.dtype(dtype).name


def key_impl(dtype: Any) -> str:
    """The name of the generator of a key dtype, as `jax.random.wrap_key_data` takes it."""
    return str(dtype._impl.name)  # only arrays of keys have public access to it


def named_dtype(name: str) -> np.dtype[Any] | None:
    """The dtype of a name, or None for keys. Raises: TypeError: no such dtype here."""
    if name.startswith("key<"):
        return None
    return np.dtype(getattr(ml_dtypes, name, name))


@functools.cache
def written_dtype(name: str) -> np.dtype[Any]:
    """The dtype of the file for a leaf of the dtype `name`."""
    dtype = named_dtype(name)
    if dtype is None:
        return np.dtype("uint32")
    if dtype in _AS_THEY_ARE:
        return dtype
    return np.dtype("int8") if jnp.issubdtype(dtype, jnp.signedinteger) else np.dtype("uint8")


@functools.cache
def written_shape(shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """The shape of the file for a leaf of this shape: the data of keys has one more dim."""
    if not name.startswith("key<"):
        return shape
    data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=name[4:-1])))
    return (*shape, *data.shape)


def to_written(leaf: Array) -> Array:
    """The leaf as it is written. Traceable; may return the leaf itself."""
    if is_key(leaf.dtype):
        return jax.random.key_data(leaf)
    if leaf.dtype in _AS_THEY_ARE:
        return leaf
    if jnp.issubdtype(leaf.dtype, jnp.integer):  # of 2 or 4 bits: every value fits a byte
        return leaf.astype(written_dtype(leaf.dtype.name))
    bits = jnp.finfo(leaf.dtype).bits
    return lax.bitcast_convert_type(leaf, f"uint{bits}").astype(jnp.uint8)


def from_written(data: Array, *, name: str) -> Array:
    """The inverse of `to_written`, for the dtype `name`. Traceable."""
    dtype = named_dtype(name)
    if dtype is None:
        return jax.random.wrap_key_data(data, impl=name[4:-1])
    if dtype in _AS_THEY_ARE:
        return data
    if jnp.issubdtype(dtype, jnp.integer):
        return data.astype(dtype)
    return lax.bitcast_convert_type(data.astype(f"uint{jnp.finfo(dtype).bits}"), dtype)


def host_to_written(leaf: np.ndarray) -> np.ndarray:
    """`to_written` of a numpy array."""
    if leaf.dtype in _AS_THEY_ARE:
        return leaf
    wanted = written_dtype(leaf.dtype.name)
    return leaf.astype(wanted) if jnp.issubdtype(leaf.dtype, jnp.integer) else leaf.view(wanted)


def host_from_written(data: np.ndarray, *, name: str) -> np.ndarray:
    """`from_written` for numpy arrays; the data of keys stays data."""
    dtype = named_dtype(name)
    if dtype is None or dtype in _AS_THEY_ARE:
        return data
    return data.astype(dtype) if jnp.issubdtype(dtype, jnp.integer) else data.view(dtype)
