"""Gradients in buckets: fewer messages, the same sums, bit for bit."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.base.errors import SchemeError
from paceline.engine.parallel import Parallel
from paceline.engine.reduce import plan_buckets
from tests.engine.helpers import LOCAL_SCHEMES, lowered_text, run, step_of
from tests.engine.test_reduce import sent_bytes

OPTIMIZER = optax.adam(0.05)
SIZES = (3, 5, 4, 2)
"""Widths of the layers: kernels of 15, 20 and 8 floats."""


def loss(params, batch):
    """Three layers, one number a row."""
    hidden = batch["x"]
    for number in range(len(SIZES) - 1):
        hidden = jnp.tanh(hidden @ params[f"layer{number}"])
    return jnp.sum(hidden**2, axis=1)


def params() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    return {
        f"layer{number}": draw.normal(size=shape).astype(np.float32)
        for number, shape in enumerate(itertools.pairwise(SIZES))
    }


def batches(steps: int) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(4)
    return [{"x": draw.normal(size=(16, SIZES[0])).astype(np.float32)} for _ in range(steps)]


def leaf(size: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size,), dtype)


def test_buckets_fill_from_the_last_leaf_and_hold_no_more_than_their_size():
    """Leaves of 4, 8, 8, 40 and 4 bytes in buckets of 16: {4}, {40} alone though larger, {8, 8}, {4}."""
    assert plan_buckets([leaf(1), leaf(2), leaf(2), leaf(10), leaf(1)], 16) == [[4], [3], [2, 1], [0]]


def test_a_bucket_holds_one_type():
    """float32 and bfloat16 in turn, all of them small: two buckets, each in the order of the tree from behind."""
    leaves = [leaf(1), leaf(1, "bfloat16"), leaf(1), leaf(1, "bfloat16")]
    assert plan_buckets(leaves, 100) == [[3, 1], [2, 0]]


@pytest.mark.parametrize("scheme", LOCAL_SCHEMES)
@pytest.mark.parametrize("size, messages", [(None, [32, 60, 80]), (112, [60, 112]), (1, [32, 60, 80]), (999, [172])])
def test_the_messages_are_those_of_the_plan(scheme, size, messages):
    """Kernels of 60, 80 and 32 bytes: each alone; the last two together; in a bucket that none fits in; all in one.
    Beside them the totals of the loss, 8 bytes."""
    text = lowered_text(
        step_of(loss, OPTIMIZER, Parallel(scheme, bucket_bytes=size), devices=4), batches(1)[0], params=params()
    )
    assert sent_bytes(text) == sorted([8, *messages])


@pytest.mark.parametrize("scheme", LOCAL_SCHEMES)
@pytest.mark.parametrize("size", [112, 999])
def test_buckets_change_no_bit(scheme, size):
    """Four updates of adam on four devices in float32: every leaf of the state and every metric equal."""
    plain, packed = (
        run(step_of(loss, OPTIMIZER, Parallel(scheme, bucket_bytes=given), devices=4), batches(4), params=params())
        for given in (None, size)
    )
    assert [leaf.tobytes() for leaf in jax.tree.leaves(plain.state)] == [
        leaf.tobytes() for leaf in jax.tree.leaves(packed.state)
    ]
    assert plain.metrics == packed.metrics


def test_a_bucket_is_measured_in_the_type_on_the_wire():
    """In bfloat16 all kernels are 86 bytes, so that one bucket of that size holds them."""
    parallel = Parallel("per_device", bucket_bytes=86, reduce_dtype="bfloat16")
    text = lowered_text(step_of(loss, OPTIMIZER, parallel, devices=4), batches(1)[0], params=params())
    assert sent_bytes(text) == [8, 86]


@pytest.mark.parametrize(
    "options, fix",
    [
        ({"scheme": "global_view"}, "scheme='per_device'"),
        ({"scheme": "per_device", "placement": "zero1"}, "placement='replicated'"),
        ({"scheme": "per_device", "placement": "fsdp"}, "placement='replicated'"),
    ],
)
def test_buckets_are_refused_where_they_would_do_nothing(options, fix):
    """Under global_view the compiler packs, under a placement each leaf has its own part."""
    with pytest.raises(SchemeError, match="bucket_bytes=1000") as raised:
        Parallel(**options, bucket_bytes=1000)
    assert fix in raised.value.fix


@pytest.mark.parametrize("size", [True, 0, -1, 2.5])
def test_a_bucket_holds_at_least_a_byte(size):
    with pytest.raises(SchemeError, match="bucket_bytes") as raised:
        Parallel("per_device", bucket_bytes=size)
    assert "whole number of bytes" in raised.value.fix
