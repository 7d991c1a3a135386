"""The fingerprint: any changed bit shows, in any dtype, and the order of elements counts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.check.audit import replicas
from paceline.check.fingerprint import fingerprint, from_bits, to_bits, words
from tests.check.planted import flipped, replicas_of

DTYPES = (
    "float32", "bfloat16", "float16", "float8_e4m3fn", "int32", "int8", "uint8", "uint16", "bool", "complex64",
)  # fmt: skip
SIZE = 37  # odd, so that narrow types are not packed


def example(dtype, size=SIZE):
    return np.asarray(jnp.asarray(np.arange(size) % 2, dtype))


def differ(one, other):
    return not replicas(replicas_of([one, one, other])).ok


def numpy_fingerprint(word):
    """The same formulas in numpy's wrapping uint32."""
    word = word.astype(np.uint32)
    place = np.arange(word.size, dtype=np.uint32)
    mixed = (word ^ (place * np.uint32(0x85EBCA77))) * np.uint32(0xC2B2AE3D)
    mixed = (mixed ^ (mixed >> 15)) * np.uint32(0x27D4EB2F)
    mixed = mixed ^ (mixed >> 13)
    weighted = word * (place * np.uint32(0x9E3779B1) | np.uint32(1))
    return [weighted.sum(dtype=np.uint32), mixed.sum(dtype=np.uint32)]


def test_the_fingerprint_is_that_of_numpy():
    """Two words over 1000 random ones, exactly; so it does not depend on how a device orders its sums."""
    word = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32)
    assert fingerprint(jnp.asarray(word)).tolist() == numpy_fingerprint(word)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
def test_one_flipped_bit_is_found(dtype, place):
    """The lowest bit (of a bool the only one) and the highest of the first, a middle and the last element."""
    host = example(dtype)
    highest = 0 if dtype == "bool" else 8 * host.dtype.itemsize - 1
    for bit in {0, highest}:
        assert differ(host, flipped(host, place=place, bit=bit)), (bit, place)
    assert not differ(host, host)


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
def test_narrow_types_are_packed_and_every_bit_of_a_word_counts(dtype):
    """8 elements fill 2 or 4 words; one bit of each element flipped in turn is found."""
    host = example(dtype, 8)
    assert words(jnp.asarray(host)).size == 8 * host.dtype.itemsize // 4
    assert all(differ(host, flipped(host, place=place, bit=place)) for place in range(8))


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_one_flipped_bit_of_eight_bytes_is_found(dtype, x64):
    """Bit 0 and bit 63, first and last element."""
    host = example(dtype)
    for place in (0, SIZE - 1):
        assert differ(host, flipped(host, place=place)) and differ(host, flipped(host, place=place, bit=63))
    assert not differ(host, host)


def test_keys_are_compared_by_their_words():
    """Typed keys of seeds 0 and 1; and equal ones."""
    one, other = jax.random.key(0), jax.random.key(1)
    assert differ(one, other)
    assert not differ(one, one)


def test_a_nan_equals_itself_and_its_payload_counts():
    """Bits, not floats: quiet NaNs with payloads 0 and 1."""
    one, other = (np.array([0x7FC00000 + payload] * 5, np.uint32).view(np.float32) for payload in (0, 1))
    assert np.isnan(one).all() and np.isnan(other).all()
    assert not differ(one, one)
    assert differ(one, other)


def test_minus_zero_is_not_zero():
    """Equal as floats, one bit apart."""
    assert differ(np.zeros(3, np.float32), np.array([0, -0.0, 0], np.float32))


def test_swapped_elements_are_found():
    """1 and 2 swapped; and 1 and -1, whose difference in the sign bit cancels in any sum with odd weights."""
    for a, b in ((1, 2), (1, -1)):
        host = np.array([a, 0, 0, b], np.float32)
        assert differ(host, host[::-1].copy()), (a, b)


def test_two_sign_flips_do_not_cancel():
    """Bit 31 of two elements: their changes add up to 2^32 times an integer in the first word, not in the second."""
    host = np.ones(16, np.float32)
    both = flipped(flipped(host, place=3, bit=31), place=9, bit=31)
    one, other = fingerprint(jnp.asarray(host)).tolist(), fingerprint(jnp.asarray(both)).tolist()
    assert one[0] == other[0] and one[1] != other[1]
    assert differ(host, both)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 31)), min_size=1, max_size=6, unique=True))
def test_any_few_flipped_bits_are_found(flips):
    """Up to six distinct bits of 64 random words."""
    host = np.random.default_rng(1).normal(size=64).astype(np.float32)
    other = host
    for place, bit in flips:
        other = flipped(other, place=place, bit=bit)
    assert fingerprint(jnp.asarray(host)).tolist() != fingerprint(jnp.asarray(other)).tolist()


@pytest.mark.parametrize("dtype", [*DTYPES, "int4"])
def test_bits_are_turned_back_into_the_same_array(dtype):
    """Bytes and dtype."""
    leaf = jnp.asarray(np.arange(SIZE) % 3, dtype)
    back = from_bits(to_bits(leaf), like=leaf)
    assert back.dtype == leaf.dtype
    assert np.asarray(back).tobytes() == np.asarray(leaf).tobytes()
