"""`StepFunction`: compiled once for each shape, the same program from then on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.engine.parallel import Parallel
from paceline.engine.step import StepFunction, batch_sharding
from tests.engine.helpers import SCHEMES, place, run, start, step_of

DESCENT = optax.sgd(1.0)

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def square(params, batch):
    return (batch["x"] * params["w"]) ** 2


def recurrent(params, batch):
    """A scan over a carry of zeros, as any one-device recurrent network has it."""
    carry, _ = jax.lax.scan(
        lambda carry, x: (jnp.tanh(params["w"] * x + 0.5 * carry), None), jnp.zeros(batch["x"].shape[0]), batch["x"].T
    )
    return (carry - batch["y"]) ** 2


def ones(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.ones(rows, np.float32)}


@every_scheme
def test_a_step_compiles_once_for_each_shape_of_batch(scheme, caplog):
    """Three updates of 8 rows and one of 16, on two devices: two programs, and JAX itself compiles no third."""
    step = StepFunction(step_of(square, DESCENT, Parallel(scheme), devices=2).spec)
    state = start(step, {"w": np.float32(1)})
    batches = [place(step, ones(rows)) for rows in (8, 8, 16, 8)]
    with jax.log_compiles():
        for batch in batches:
            state, _ = step(state, *batch)
    messages = [record.getMessage() for record in caplog.records]
    assert step.compilations == 2
    assert len([text for text in messages if text.startswith("Finished XLA compilation")]) == 2


def test_another_dtype_or_mask_shape_is_another_program():
    """float32 and int32 rows of one shape: two; the same again: still two."""
    step = StepFunction(step_of(square, DESCENT, Parallel("per_device"), devices=2).spec)
    state = start(step, {"w": np.float32(1)})
    for dtype in (np.float32, np.int32, np.float32):
        state, _ = step(state, *place(step, {"x": np.ones(8, dtype)}))
    assert step.compilations == 2


def test_a_step_can_be_compiled_without_arrays():
    """From abstract values alone, as a plan does: the program is the one that runs, and its time is told."""
    step = StepFunction(step_of(square, DESCENT, Parallel("global_view"), devices=2).spec)
    concrete = start(step, {"w": np.float32(1)}), *place(step, ones(8))
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), concrete)
    compiled = step.compiled(*abstract)
    assert compiled.compile_s > 0 and "all-reduce" in compiled.program.as_text()
    step(*concrete)
    assert step.compilations == 1 and step.compiled(*concrete) is compiled


@every_scheme
def test_a_loss_with_a_scan_over_zeros_trains(scheme):
    """One-device code as it is: loss equal to numpy's recurrence to 1e-12 (float64) on four devices."""
    draw = np.random.default_rng(0)
    batch = {"x": draw.normal(size=(8, 5)), "y": draw.normal(size=8)}
    with jax.enable_x64(True):
        got = run(step_of(recurrent, DESCENT, Parallel(scheme), devices=4), [batch], params={"w": np.array(0.7)})
    carry = np.zeros(8)
    for x in batch["x"].T:
        carry = np.tanh(0.7 * x + 0.5 * carry)
    assert got.metrics[0]["loss"] == pytest.approx(((carry - batch["y"]) ** 2).mean(), rel=1e-12)


@every_scheme
def test_a_batch_lives_split_over_the_devices(scheme):
    """`batch_sharding`: each of four devices has a quarter of the rows, in order."""
    sharding = batch_sharding(step_of(square, DESCENT, Parallel(scheme), devices=4).spec)
    rows = jax.device_put(np.arange(8.0), sharding)
    assert [shard.data.tolist() for shard in rows.addressable_shards] == [[0, 1], [2, 3], [4, 5], [6, 7]]
