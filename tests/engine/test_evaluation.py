"""The evaluation program: totals of a batch, for any number of devices, split or whole."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.base.errors import LossError, TaskError
from paceline.engine.evaluation import EvaluationFunction
from paceline.engine.parallel import Parallel
from paceline.tasks.losses import Outcome, Weighted
from paceline.tasks.task import task
from paceline.topology.mesh import data_mesh, replicated, split_rows

# Eleven rows in batches of four: 4, 2 and 1 correct; the last batch has one row of padding, which is correct too.
CORRECT = np.array([1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 1, 1], bool)


def training(params, batch):
    raise AssertionError("the training loss must not be evaluated")


def scored(params, model_state, batch, rng):
    rows = batch["x"] * params["w"] + model_state["shift"]
    return Outcome(
        rows, metrics={"accuracy": batch["correct"], "tokens": Weighted(rows, jnp.ones(rows.shape, jnp.int32))}
    )


def scalar(params, batch):
    return (batch["x"] * params["w"]).mean()


def scalar_metric(params, batch):
    return batch["x"] * params["w"], {"largest": batch["x"].max()}


SCORED = task(training, evaluate=scored)


def arguments(batch, valid, *, sharding=None):
    placed = jax.device_put((batch, valid), sharding)
    return {"w": jnp.float32(2)}, {"shift": jnp.float32(1)}, placed[0], placed[1], jax.random.key(0)


def scored_batches():
    for start in (0, 4, 8):
        rows = slice(start, start + 4)
        yield {"x": np.arange(12, dtype=np.float32)[rows], "correct": CORRECT[rows]}, (np.arange(12) < 11)[rows]


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("layout", [split_rows, replicated])
def test_totals_of_all_batches_give_seven_elevenths(devices, layout):
    """Case 24: 7 correct of 11, counted as integers in three batches, padding left out, on 1, 2 and 4 devices."""
    evaluation = EvaluationFunction(SCORED, Parallel("per_device"))
    sharding = layout(data_mesh(jax.devices()[:devices]))
    sums = [evaluation(*arguments(*each, sharding=sharding)) for each in scored_batches()]
    correct, counted = (sum(int(getattr(each["accuracy"], part)) for each in sums) for part in ("total", "weight"))
    assert (correct, counted) == (7, 11) and round(correct / counted, 4) == 0.6364
    assert [int(each["accuracy"].total) for each in sums] == [4, 2, 1]
    assert all(each["accuracy"].total.dtype == jnp.int32 for each in sums)
    # 2 x + 1 over x = 0..10: 110 + 11.
    assert sum(float(each["loss"].total) for each in sums) == 121
    assert sum(float(each["tokens"].total) for each in sums) == 121


def test_an_evaluation_compiles_once_for_equal_shapes(caplog):
    """Three batches of one shape: one program."""
    evaluation = EvaluationFunction(SCORED, Parallel())
    batches = [arguments(*each) for each in scored_batches()]
    with jax.log_compiles():
        for each in batches:
            evaluation(*each)
    assert len([record for record in caplog.records if record.getMessage().startswith("Finished XLA compilation")]) == 1


@functools.cache
def small():
    return arguments({"x": np.arange(4, dtype=np.float32)}, np.ones(4, bool))


@pytest.mark.parametrize(
    "loss, maskable", [(scalar, False), (scalar_metric, False), (lambda p, b: b["x"] * p["w"], True)]
)
def test_what_has_no_entry_a_row_cannot_be_masked(loss, maskable):
    """A scalar loss, or one scalar metric beside rows, is not maskable: its padded batch would be wrong."""
    params, model_state, batch, _, rng = small()
    assert EvaluationFunction(task(loss), Parallel()).is_maskable(params, model_state, batch, rng) is maskable


def test_a_task_without_evaluation_is_evaluated_by_its_loss():
    """Scalar form: total 12 over weight 4, mean 3 of rows 0, 2, 4, 6."""
    totals = EvaluationFunction(task(scalar), Parallel())(*small())["loss"]
    assert (float(totals.total), int(totals.weight), float(totals.mean())) == (12, 4, 3)


def test_an_evaluation_in_half_precision_counts_in_float32():
    """601 ones in bfloat16, which has 600 and 604 but no 601: total 601."""
    ones = arguments({"x": np.full(601, 0.5, np.float32)}, np.ones(601, bool))
    totals = EvaluationFunction(task(lambda p, b: b["x"] * p["w"]), Parallel(precision="bfloat16"))(*ones)["loss"]
    assert float(totals.total) == 601 and totals.total.dtype == jnp.float32


def test_a_mistake_in_the_evaluation_is_told_as_one():
    """Code that raises is named with its task; a loss of the wrong shape with its shape."""
    with pytest.raises(TaskError, match="KeyError") as caught:
        EvaluationFunction(task(scalar, evaluate=lambda params, batch: batch["z"], name="mine"), Parallel())(*small())
    assert "'mine'" in caught.value.what and "test_evaluation" in caught.value.fix
    with pytest.raises(LossError, match=r"\(4, 1\)"):
        EvaluationFunction(task(lambda params, batch: batch["x"][:, None]), Parallel())(*small())
