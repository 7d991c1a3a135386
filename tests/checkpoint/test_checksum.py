"""The checksum: the same for any placement, changed by any bit, right for every dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from paceline.checkpoint.bits import dtype_name, from_written, host_from_written, host_to_written, to_written
from paceline.checkpoint.checksum import host_sums, odd_replicas, owned, sums_by_device, total

DTYPES = (
    "bool", "int4", "uint4", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32",
    "float8_e4m3fn", "float8_e5m2", "complex64",
)  # fmt: skip
WIDE = ("int64", "uint64", "float64", "complex128")


def numpy_sums(words):
    """The formulas, word by word, in Python's integers."""
    first = second = 0
    for place, word in enumerate(int(one) for one in words):
        first += word * ((place * 0x9E3779B1) | 1)
        mixed = (word ^ (place * 0x85EBCA77 % 2**32)) * 0xC2B2AE3D % 2**32
        mixed = (mixed ^ (mixed >> 15)) * 0x27D4EB2F % 2**32
        second += mixed ^ (mixed >> 13)
    return first % 2**32, second % 2**32


def random_of(dtype, shape=(8, 6)):
    values = np.random.default_rng(0).integers(0, 7, shape)
    return values.astype(getattr(ml_dtypes, dtype, dtype))


def sums_of(leaf):
    found = sums_by_device({"leaf": leaf})["leaf"]
    assert not odd_replicas(found, sharding=leaf.sharding, shape=leaf.shape)
    return owned(found, sharding=leaf.sharding, shape=leaf.shape)


def mesh_of(*shape):
    names = ("a", "b")[: len(shape)]
    devices = np.asarray(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(shape))


def test_the_sums_are_those_of_pencil_and_paper():
    words = np.random.default_rng(0).integers(0, 2**32, 50, dtype=np.uint32)
    assert host_sums(words) == numpy_sums(words)
    assert sums_of(jnp.asarray(words)) == numpy_sums(words)


@pytest.mark.parametrize("dtype", DTYPES)
def test_device_and_host_agree_for_every_dtype_and_every_bit_comes_back(dtype):
    """Sums on the devices equal those of numpy; the written form is undone exactly, on the device and on the host."""
    host = random_of(dtype)
    leaf = jnp.asarray(host)
    assert leaf.dtype == host.dtype
    written = host_to_written(host)
    np.testing.assert_array_equal(np.asarray(jax.jit(to_written)(leaf)), written)
    assert sums_of(leaf) == host_sums(written)
    name = dtype_name(leaf.dtype)
    assert np.asarray(from_written(jnp.asarray(written), name=name)).tobytes() == host.tobytes()
    assert host_from_written(written, name=name).tobytes() == host.tobytes()


@pytest.mark.parametrize("dtype", WIDE)
def test_the_same_for_wide_dtypes(x64, dtype):
    host = random_of(dtype) + np.asarray(2**40, dtype)
    assert sums_of(jnp.asarray(host)) == host_sums(host)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_have_the_sums_of_their_data(impl):
    key = jax.random.split(jax.random.key(3, impl=impl), 4)
    assert sums_of(key) == host_sums(np.asarray(jax.random.key_data(key)))
    written = to_written(key)
    assert jnp.array_equal(jax.random.key_data(from_written(written, name=dtype_name(key.dtype))), written)


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((1,), ()), ((8,), ()), ((8,), ("a",)), ((2,), (None, "a")), ((2, 3), ("a", "b")), ((2, 3), (None, "b", "a")),
        ((2, 2), (("a", "b"),)), ((2, 2), (None, None, "b")), ((4, 2), ("b", None, "a")),
    ],
)  # fmt: skip
def test_the_sums_do_not_depend_on_devices_or_placement(shape, spec):
    """One to eight devices, one or two mesh axes, any dim split: the sums of the whole."""
    host = np.random.default_rng(1).normal(size=(8, 6, 4)).astype(np.float32)
    leaf = jax.device_put(host, NamedSharding(mesh_of(*shape), PartitionSpec(*spec)))
    assert sums_of(leaf) == host_sums(host)


@settings(max_examples=30)
@given(place=st.integers(0, 191), bit=st.integers(0, 31), cut=st.integers(1, 191))
def test_any_flipped_bit_changes_both_sums_and_parts_add_up(place, bit, cut):
    words = np.arange(192, dtype=np.uint32) * np.uint32(2654435761)
    changed = words.copy()
    changed[place] ^= np.uint32(1) << np.uint32(bit)
    assert all(one != other for one, other in zip(host_sums(words), host_sums(changed), strict=True))
    rest = words.copy()
    rest[:cut] = 0
    zeros = np.zeros_like(words)
    first = words - rest
    assert (host_sums(first)[0] + host_sums(rest)[0]) % 2**32 == host_sums(words)[0]
    assert total([host_sums(zeros), (0, 0)]) == host_sums(zeros)


def test_two_swapped_words_and_two_flipped_signs_are_found():
    words = np.random.default_rng(2).normal(size=64).astype(np.float32)
    swapped, signs = words.copy(), words.copy()
    swapped[[3, 40]] = swapped[[40, 3]]
    signs[[3, 40]] *= -1
    assert len({host_sums(words), host_sums(swapped), host_sums(signs)}) == 3


def test_a_nan_keeps_its_payload_and_a_negative_zero_its_sign():
    host = np.array([0x7FC00001, 0x7F800003, 0x80000000], np.uint32).view(np.float32)
    plain = np.array([np.nan, np.nan, 0.0], np.float32)
    assert sums_of(jnp.asarray(host)) == host_sums(host) != host_sums(plain)


def test_replicas_that_differ_are_noticed():
    sharding = NamedSharding(mesh_of(4), PartitionSpec())
    pieces = [
        jax.device_put(np.full(5, index == 2, np.float32), device) for index, device in enumerate(jax.devices()[:4])
    ]
    leaf = jax.make_array_from_single_device_arrays((5,), sharding, pieces)
    assert odd_replicas(sums_by_device({"leaf": leaf})["leaf"], sharding=sharding, shape=(5,))


def test_scalars_and_empty_leaves_have_sums():
    assert sums_of(jnp.float32(2.5)) == numpy_sums(np.array([2.5], np.float32).view(np.uint32))
    assert sums_of(jnp.zeros((0, 3))) == (0, 0)
