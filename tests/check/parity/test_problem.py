"""The batches that are verified: which rows, how many, in which type; and what cannot be verified."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import paceline
from paceline.base.errors import BatchSizeError, DataError, TaskError
from paceline.check.parity.problem import Problem, make_problem, to_float64
from paceline.engine.parallel import Parallel
from paceline.tasks.losses import Outcome
from paceline.tasks.task import Initial, task


def row_loss(params: Any, batch: Any) -> Any:
    return (batch["x"] * jnp.sum(params["w"]) - 1) ** 2


def mean_loss(params: Any, batch: Any) -> Any:
    return row_loss(params, batch).mean()


def with_scalar_metric(params: Any, batch: Any) -> Any:
    return row_loss(params, batch), {"largest": batch["x"].max()}


def with_state(params: Any, model_state: Any, batch: Any, rng: Any) -> Any:
    return Outcome(row_loss(params, batch), {}, {"mean": 0.9 * model_state["mean"] + 0.1 * batch["x"].mean()})


def reducing(params: Any, model_state: Any, batch: Any, rng: Any) -> Any:
    mean = jax.lax.pmean(batch["x"].mean(), "data")
    return Outcome(row_loss(params, batch), {}, {"mean": 0.9 * model_state["mean"] + 0.1 * mean})


STATE = {"mean": np.zeros((), np.float32)}


def problem(loss: Any = row_loss, *, rows: int = 100, **changes: Any) -> Problem:
    """Of data whose row r holds r."""
    options = {
        "data": {"x": np.arange(rows, dtype=np.float32)}, "parallel": Parallel(), "batch": 16, "updates": 3, "seed": 0,
        "params": {"w": np.float32(0.5)}, "model_state": None,
    }  # fmt: skip
    return make_problem(task(loss), optax.sgd(0.1), **{**options, **changes})


def rows_of(found: Problem) -> np.ndarray:
    """Numbers of the rows of all batches, in order; padding left out."""
    return np.concatenate([batch.rows["x"][batch.valid] for batch in found.batches]).astype(int)


def test_no_row_is_taken_twice_while_others_are_left():
    """45 rows of full batches of 100: all different, and not in the order of the data."""
    taken = rows_of(problem(mean_loss, batch=15))
    assert len(taken) == len(set(taken)) == 45
    assert np.abs(np.diff(taken)).max() > 1


def test_a_small_data_set_is_used_up_before_it_repeats():
    """48 rows of 10: each 4 or 5 times, every 10 in a row all different, no order twice."""
    taken = rows_of(problem(mean_loss, rows=10))
    rounds = [taken[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(round_) == list(range(10)) for round_ in rounds)
    assert len({tuple(round_) for round_ in rounds}) == 4
    assert len(set(taken[40:])) == 8


def test_every_run_of_a_problem_has_the_same_rows():
    """Made twice, bitwise; another seed of the parameters changes no row."""
    assert np.array_equal(rows_of(problem()), rows_of(problem(seed=1)))


@pytest.mark.parametrize(("batch", "kept"), [(16, 13), (64, 55), (8, 6), (2, 1), (1, 1)])
def test_one_batch_has_fewer_rows_if_padding_can_be_masked(batch, kept):
    """The second of three: B - B/8 - 1 rows, one at least; the others are full; all have B rows in memory."""
    found = problem(batch=batch, rows=256)
    assert [int(part.valid.sum()) for part in found.batches] == [batch, kept, batch]
    assert all(part.rows["x"].shape == part.valid.shape == (batch,) for part in found.batches)
    assert found.batches[1].valid[:kept].all()
    assert found.maskable


def test_of_8_devices_one_has_no_rows_and_another_fewer():
    """64 rows: 8 a device; 55 are 6 full devices, one with 7, one with none."""
    valid = problem(batch=64, rows=256).batches[1].valid
    assert valid.reshape(8, 8).sum(1).tolist() == [8] * 6 + [7, 0]


def test_a_single_update_is_the_uneven_one():
    """There is no second."""
    assert [int(part.valid.sum()) for part in problem(updates=1).batches] == [13]


@pytest.mark.parametrize(
    ("loss", "model_state", "maskable"),
    [(mean_loss, None, False), (with_scalar_metric, None, False), (with_state, STATE, True)],
    ids=["scalar loss", "scalar metric", "model state"],
)
def test_batches_stay_full_where_training_refuses_padding(loss, model_state, maskable):
    """No row is padding; rows that can be masked but enter the model state are not padded either."""
    found = problem(loss, model_state=model_state)
    assert [int(part.valid.sum()) for part in found.batches] == [16] * 3
    assert found.maskable is maskable
    assert found.has_model_state is (model_state is not None)


@pytest.mark.parametrize(
    ("loss", "batch_norm", "synced"),
    [(with_state, None, False), (with_state, "local", False), (with_state, "synced", True), (reducing, None, True)],
)
def test_batch_norm_is_synced_if_asked_or_if_the_loss_reduces(loss, batch_norm, synced):
    """A loss that names the axis `data` reduces by itself."""
    found = problem(loss, model_state=STATE, parallel=Parallel(scheme="per_device", batch_norm=batch_norm))
    assert found.synced is synced


def batches(*sizes: int) -> list[dict[str, np.ndarray]]:
    """Ready batches of so many rows; batch i holds 100 i and on."""
    return [{"x": np.arange(size, dtype=np.float32) + 100 * index} for index, size in enumerate(sizes)]


def test_a_stream_is_taken_as_it_comes():
    """The first rows of its first batches, in order; what is longer is cut."""
    found = problem(mean_loss, data=paceline.stream(batches(20, 16, 30, 16)))
    wanted = np.concatenate([np.arange(16) + 100 * index for index in range(3)])
    assert np.array_equal(rows_of(found), wanted)


@pytest.mark.parametrize("kind", [list, iter], ids=["starts again", "one shot"])
def test_a_stream_that_is_too_short_repeats_its_last_batch(kind):
    """Two batches for three updates."""
    found = problem(mean_loss, data=paceline.stream(kind(batches(16, 16))))
    assert np.array_equal(rows_of(found).reshape(3, 16)[1], rows_of(found).reshape(3, 16)[2])


def test_a_stream_is_not_read_further_than_needed():
    """Three updates, three batches."""
    given = iter(batches(16, 16, 16, 16))
    problem(data=paceline.stream(given))
    assert next(given)["x"][0] == 300


@pytest.mark.parametrize("sizes", [(12,), (16, 12), (16, 16, 12)])
def test_a_stream_with_too_small_batches_is_refused(sizes):
    """12 of 16, be it the last: the size is named, and the flag that makes it fit."""
    with pytest.raises(BatchSizeError, match="batches of 12 rows, and 16 are needed") as caught:
        problem(data=paceline.stream(batches(*sizes)))
    assert "--batch 12" in caught.value.fix


@pytest.mark.parametrize("data", [paceline.stream([]), paceline.stream(iter(()))], ids=["list", "iterator"])
def test_a_stream_without_batches_is_refused(data):
    """Nothing to compare on."""
    with pytest.raises(DataError, match="the data gave no batch"):
        problem(data=data)


def test_data_without_rows_are_refused():
    """A length of 0."""
    with pytest.raises(DataError, match="no rows"):
        problem(rows=0)


def test_the_start_is_that_of_the_init_and_its_seed():
    """Parameters and model state as numpy, the same for the same seed, others for another."""

    def init(rng: Any) -> Any:
        return Initial({"w": jax.random.normal(rng, ())}, {"mean": jnp.ones(())})

    def made(seed: int) -> Problem:
        data = {"x": np.ones(32, np.float32)}
        return make_problem(
            task(with_state, init=init), optax.sgd(0.1), data=data, parallel=Parallel(), params=None, model_state=None,
            batch=16, updates=1, seed=seed,
        )  # fmt: skip

    first, same, other = made(0), made(0), made(1)
    assert isinstance(first.params["w"], np.ndarray)
    assert first.params["w"] == same.params["w"] != other.params["w"]
    assert first.model_state == {"mean": 1}


def test_parameters_given_come_before_those_of_init():
    """0.5 as given."""
    assert problem().params["w"] == np.float32(0.5)


def test_neither_parameters_nor_init_are_refused():
    """With both ways out."""
    with pytest.raises(TaskError, match="has no init, and no parameters were given") as caught:
        problem(params=None)
    assert "params=..." in caught.value.fix


def test_a_loss_that_does_not_trace_is_named_with_its_line():
    """The user's words: the missing leaf."""
    with pytest.raises(TaskError, match="'pixels'"):
        problem(lambda params, batch: batch["pixels"] * params["w"])


def mixed() -> dict[str, Any]:
    """Float, integer, truth and key."""
    return {
        "f": np.float32(0.1) * np.ones(2, np.float32), "h": np.ones(1, np.float16), "i": np.arange(2, dtype=np.int32),
        "b": np.ones(2, bool), "k": jax.random.key(3),
    }  # fmt: skip


def test_only_floats_become_float64():
    """The values stay as they are: float32(0.1), not 0.1; the rest keeps its type."""
    wide = to_float64(mixed())
    assert {name: str(leaf.dtype) for name, leaf in wide.items()} == {
        "f": "float64", "h": "float64", "i": "int32", "b": "bool", "k": "key<fry>",
    }  # fmt: skip
    assert float(wide["f"][0]) == float(np.float32(0.1)) != 0.1


def test_the_wide_problem_has_the_same_rows_and_start(x64):
    """float64 rows, parameters, model state; full precision, and no narrow type on the wire; the rest is kept."""
    own = problem(
        with_state, model_state=STATE,
        parallel=Parallel(scheme="per_device", precision="bfloat16", reduce_dtype="bfloat16", clip_norm=1.0),
    )  # fmt: skip
    wide = own.widened()
    leaves = jax.tree.leaves((wide.params, wide.model_state, [batch.rows for batch in wide.batches]))
    assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float64)}
    assert wide.parallel == Parallel(scheme="per_device", clip_norm=1.0)
    assert np.array_equal(rows_of(wide), rows_of(own))
    assert wide.rows == own.rows == 16


def test_a_nudge_moves_every_float_by_half_a_unit_at_most():
    """By 2^-11 of its size up and down, type kept; zeros, integers and masks stay. rtol 1e-6."""
    own = problem(params={"w": np.float32(0.5) * np.ones(64, np.float32), "n": np.arange(3)})
    moved = own.nudged(2.0**-10)
    ratio = moved.params["w"] / own.params["w"] - 1
    np.testing.assert_allclose(np.abs(ratio), 2.0**-11, rtol=1e-6)
    assert {True, False} == set((ratio > 0).tolist())
    assert moved.params["w"].dtype == np.float32
    assert np.array_equal(moved.params["n"], own.params["n"])
    assert all(np.array_equal(a.valid, b.valid) for a, b in zip(moved.batches, own.batches, strict=True))
    assert not np.array_equal(moved.batches[0].rows["x"], own.batches[0].rows["x"])


def test_a_nudge_is_determined_by_its_seed():
    """The same bits for the same seed, others for another."""
    own = problem(params={"w": np.ones(64, np.float32)})
    first, same, other = (own.nudged(2.0**-10, seed=seed).params["w"] for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
