"""What a loss computes in by itself, and the problem in which it does not."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.check.parity.narrow import loss_type, narrowest_type, throughout
from paceline.check.parity.problem import Batch, Problem
from paceline.engine.parallel import Parallel
from paceline.tasks.task import task

pytestmark = pytest.mark.usefixtures("x64")

X = np.array([[0.3], [0.7]])


def problem(loss, **changes) -> Problem:
    batch = Batch({"x": X, "n": np.arange(2)}, np.ones(2, bool))
    made = dataclasses.replace(task(loss), **changes)
    return Problem(
        made, optax.sgd(1.0), Parallel(), {"w": np.ones(1)}, {}, (batch,), seed=0, maskable=True
    )  # fmt: skip


def plain(params, batch):
    return batch["x"] @ params["w"]


def cast_at_the_end(params, batch):
    return plain(params, batch).astype(np.float32)


def cast_in_a_loop(params, batch):
    rows = plain(params, batch)
    half = jax.lax.fori_loop(0, 2, lambda _, value: (value.astype(jnp.bfloat16) * 2).astype(value.dtype), rows)
    return half.astype(rows.dtype)


def noisy(params, batch, rng):
    return plain(params, batch) + jax.random.uniform(rng, (2,), np.float32)


def counting(params, batch):
    return plain(params, batch) + batch["n"]


LOSSES = {
    "none": (plain, np.float64),
    "integers": (counting, np.float64),
    "the result": (cast_at_the_end, np.float32),
    "bfloat16 in a loop": (cast_in_a_loop, jnp.bfloat16),
    "a float32 draw": (noisy, np.float32),
}


@pytest.mark.parametrize(("loss", "expected"), LOSSES.values(), ids=LOSSES)
def test_the_narrowest_type_of_a_loss_is_found(loss, expected):
    """At the end and within a loop; integers are no floats."""
    assert loss_type(problem(loss)) == expected


@pytest.mark.parametrize(("loss", "expected"), LOSSES.values(), ids=LOSSES)
def test_throughout_leaves_nothing_narrow(loss, expected):
    """float64 afterwards; the problem itself where it was so before."""
    given = problem(loss)
    found = throughout(given)
    assert loss_type(found) == np.float64
    assert (found is given) == (expected == np.float64)


def test_the_task_with_synced_statistics_is_widened_too():
    """`per_device` with batch_norm='synced' runs another loss: 0.3 w, not its float32."""
    synced = task(lambda params, batch: plain(params, batch).astype(np.float32) * 2)
    found = throughout(problem(cast_at_the_end, synced=lambda axis: synced)).task.synced
    assert found is not None
    outcome = found("data").loss({"w": np.ones(1)}, {}, {"x": X}, jax.random.key(0))
    np.testing.assert_array_equal(outcome.loss, 2 * X[:, 0])


def test_what_a_callback_computes_in_is_told():
    """It cannot be widened: float32 is left."""

    def loss(params, batch):
        rows = plain(params, batch)
        noise = jax.pure_callback(lambda: np.float32(0), jax.ShapeDtypeStruct((), np.float32))
        return rows + jax.lax.stop_gradient(noise)

    assert loss_type(throughout(problem(loss))) == np.float32


def test_a_cast_alone_computes_nothing():
    """A float32 number that goes back to float64 at once, as the bits of a draw do."""
    there_and_back = jax.make_jaxpr(lambda x: x.astype(np.float32).astype(np.float64))(1.0)
    assert narrowest_type(there_and_back) == np.float64
