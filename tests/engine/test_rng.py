"""Positional keys: a part of the batch draws, alone, its rows of what one device would draw."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.extend.random import threefry_2x32

from paceline.engine.rng import _multiply, base_key, positional_key, step_key

ROWS, PART = 24, 4
INNER = (3, 2, 5)
WIDTHS_OF_RANK = {1: (32, 64), 2: (8, 32), 3: (16, 32), 4: (32, 64)}

# A device's share of the batch, every sixth row of it, every second row of a share, and one row again and again.
parts = pytest.mark.parametrize("start, stride", [(0, 1), (8, 1), (20, 1), (0, 6), (5, 6), (9, 2), (23, 0)])


def row_draws(key, rows):
    """Draws with one entry a row, under every kind of derivation; each ``[rows, ...]`` in the end."""
    draws = {}
    for rank, widths in WIDTHS_OF_RANK.items():
        for width in widths:
            draws[f"uint{width} rank {rank}"] = jax.random.bits(key, (rows, *INNER[: rank - 1]), f"uint{width}")
    draws["mask"] = jax.random.bernoulli(key, 0.3, (rows, 7))
    bits = functools.partial(jax.random.bits, shape=(rows, 3))
    draws["folded"] = bits(jax.random.fold_in(jax.random.fold_in(key, 2**32 - 1), 0))
    draws["as many layers as rows"] = bits(jax.random.split(key, PART)[2])
    draws["grid of layers"] = bits(jax.random.split(key, (2, 3))[1, 2])
    draws["layers of layers"] = bits(jax.random.split(jax.random.split(key)[1], 3)[2])
    draws["layers by scan"] = jax.lax.map(bits, jax.random.split(key, 3)).swapaxes(0, 1)
    draws["layers by vmap"] = jax.vmap(bits, out_axes=1)(jax.random.split(key, 3))
    return draws | per_row_draws(key, rows)


def per_row_draws(key, rows):
    """One key a row, drawn from under vmap. Shapes of PART entries must not be taken for one entry a row."""
    keys = jax.random.split(key, rows)
    return {
        "row keys": jax.vmap(lambda own: jax.random.bits(own, (5,)))(keys),
        "row keys, as many entries as rows": jax.vmap(lambda own: jax.random.bits(own, (PART, 2)))(keys),
        "row keys, two layers": jax.vmap(lambda own: jax.random.bits(jax.random.split(own)[1], (5,)))(keys),
        "row keys, as many layers as rows": jax.vmap(
            lambda own: jax.vmap(jax.random.bits)(jax.random.split(own, PART))
        )(keys),
        "row keys, three layers by vmap": jax.vmap(
            lambda own: jax.vmap(lambda layer: jax.random.bits(layer, (PART,)))(jax.random.split(own, 3))
        )(keys),
        "row keys of a layer, folded": jax.vmap(lambda own: jax.random.bits(jax.random.fold_in(own, 3)))(
            jax.random.split(jax.random.split(key, 3)[1], rows)
        ),
        "row keys by map": jax.lax.map(lambda own: jax.random.bits(own, (5,)), keys),
    }


def common_draws(key, rows):
    """Draws without a dim of rows: one device has them once, so every part must have the same."""
    return {
        "scalar": jax.random.bits(key),
        "vector": jax.random.bits(key, (rows + 1,))[:3],
        "weights": jax.random.bits(key, (7, 2)),
        "weights of a layer": jax.random.bits(jax.random.split(key, 3)[2], (7, 2)),
        "empty": jax.random.bits(key, (0, 2)),
    }


def normal_draws(key, rows):
    return {"float32": jax.random.normal(key, (rows, 3)), "bfloat16": jax.random.normal(key, (rows, 3), jnp.bfloat16)}


@functools.cache
def programs(draws):
    """The draws of the whole batch, and a function of (start, stride) for those of a part."""
    key = jax.random.fold_in(base_key(3), 1)
    whole = jax.jit(lambda: draws(key, ROWS)).lower().compile()
    word = jax.ShapeDtypeStruct((), jnp.uint32)
    part = jax.jit(lambda start, stride: draws(positional_key(key, rows=PART, start=start, stride=stride), PART))
    return jax.tree.map(np.asarray, whole()), part.lower(word, word).compile()


def equal(got, wanted):
    return got.dtype == wanted.dtype and np.array_equal(got, wanted)


@parts
def test_a_part_draws_the_bits_of_its_rows(start, stride, x64):
    """Widths 8 to 64, ranks 1 to 4, folded, split into layers or one key a row: bit for bit the one-device rows."""
    whole, part = programs(row_draws)
    rows = start + stride * np.arange(PART)
    different = [
        name for name, got in part(np.uint32(start), np.uint32(stride)).items() if not equal(got, whole[name][rows])
    ]
    assert not different


@parts
def test_a_part_draws_the_normal_numbers_of_its_rows(start, stride):
    """To the last places (float32 and bfloat16, 4 eps): compilers vectorise the logarithm by array size."""
    whole, part = programs(normal_draws)
    for name, got in part(np.uint32(start), np.uint32(stride)).items():
        wanted = whole[name][start + stride * np.arange(PART)].astype(np.float32)
        np.testing.assert_allclose(got.astype(np.float32), wanted, rtol=4 * float(jnp.finfo(name).eps))


@parts
def test_a_draw_without_rows_is_the_same_in_every_part(start, stride):
    whole, part = programs(common_draws)
    got = part(np.uint32(start), np.uint32(stride))
    for name in ("scalar", "weights", "weights of a layer", "empty"):
        np.testing.assert_array_equal(got[name], whole[name], err_msg=name, strict=True)
    assert (got["vector"] == part(np.uint32(0), np.uint32(1))["vector"]).all()


def test_parts_together_draw_every_row_once():
    """Six parts of four rows, in a row or interleaved, put together give the one-device draw."""
    key = base_key(0)
    whole = np.asarray(jax.random.bits(key, (ROWS, 2)))

    def part(start, stride):
        return jax.random.bits(positional_key(key, rows=PART, start=start, stride=stride), (PART, 2))

    np.testing.assert_array_equal(np.concatenate([part(start, 1) for start in range(0, ROWS, PART)]), whole)
    interleaved = np.stack([part(start, 6) for start in range(6)], axis=1).reshape(ROWS, 2)
    np.testing.assert_array_equal(interleaved, whole)


@pytest.mark.parametrize("start, inner", [(2**31 + 7, 3), ((2**32 - 1) // 3 - 1, 3), (2**32 - PART, 6)])
def test_a_row_beyond_32_bits_of_entries_is_still_its_own(start, inner):
    """Index 2**32 before, between and within these rows: bits equal the hash of index words of Python's integers."""
    key = base_key(9)
    indices = [(start + row) * inner + entry for row in range(PART) for entry in range(inner)]
    part = positional_key(key, rows=PART, start=jnp.uint32(start), stride=1)
    np.testing.assert_array_equal(jax.random.bits(part, (PART, inner)).ravel(), hashed(key, indices))


def hashed(key, indices: list[int]) -> np.ndarray:
    """Bits of entries of a draw: threefry of the two words of each index, folded to 32 bits."""
    words = [index >> 32 for index in indices] + [index & 0xFFFFFFFF for index in indices]
    high, low = np.split(np.asarray(threefry_2x32(jax.random.key_data(key), jnp.array(words, jnp.uint32))), 2)
    return high ^ low


words = st.integers(0, 2**32 - 1)


@settings(max_examples=60)
@given(left=st.lists(words, min_size=4, max_size=4), right=st.integers(0, 2**40))
@example(left=[2**32 - 1, 0, 1, 2**16], right=2**32 - 1)
@example(left=[0x1FFFF, 0xFFFF, 0x10000, 2**32 - 1], right=0x1FFFF)
def test_the_64_bit_product_of_words_equals_that_of_pythons_integers(left, right):
    """High and low word modulo 2**64, for any word and any number of entries a row up to 2**40."""
    high, low = _multiply(jnp.array(left, jnp.uint32), right)
    products = [number * right % 2**64 for number in left]
    assert [int(word) for word in high] == [product >> 32 for product in products]
    assert [int(word) for word in low] == [product & 0xFFFFFFFF for product in products]


def test_the_key_of_a_run_is_threefry_whatever_the_default():
    """Under a default of `rbg` the draw is the same: only threefry does not depend on how an array is split."""
    usual = jax.random.bits(base_key(5), (4,))
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(jax.random.bits(base_key(5), (4,)), usual)
    np.testing.assert_array_equal(usual, jax.random.bits(jax.random.key(5, impl="threefry2x32"), (4,)))


def test_steps_and_seeds_have_keys_of_their_own():
    """A hundred steps of two seeds: 200 distinct draws."""
    draw = jax.jit(lambda seed, step: jax.random.bits(step_key(base_key(seed), step), (2,)))
    assert len({draw(seed, step).tobytes() for seed in (0, 1) for step in range(100)}) == 200
