"""What a trainer refuses, each before its first step: the class of the error, what it names, and a fix that works."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

from paceline.base.errors import (
    BatchSizeError,
    DataError,
    DeviceError,
    LossError,
    OptionError,
    ReplicationError,
    RunFolderError,
    SchemeError,
    StateError,
    TaskError,
)
from paceline.engine.parallel import Parallel
from paceline.tasks.task import task
from paceline.train.trainer import Trainer
from tests.train.linear import line, squared_error, trainer_of, zeros

RUN = {"batch": 16, "steps": 2}

BAD_RUNS = {
    "no batch": ({"steps": 2}, OptionError, "no batch size", "batch="),
    "steps and epochs": ({**RUN, "epochs": 1}, OptionError, "both steps and epochs", "not both"),
    "neither steps nor epochs": ({"batch": 16}, OptionError, "neither steps nor epochs", "steps="),
    "no step": ({"batch": 16, "steps": 0}, OptionError, "steps=0", "steps=1 or more"),
    "no epoch": ({"batch": 16, "epochs": 0}, OptionError, "epochs=0", "epochs=1 or more"),
    "a batch of 0": ({"batch": 0, "steps": 2}, BatchSizeError, "a batch of 0", "--batch 4"),
    "a batch that does not split": ({"batch": 18, "steps": 2}, BatchSizeError, "18 rows", "--batch 16 or 20"),
    "a batch above the rows": ({"batch": 128, "steps": 2}, BatchSizeError, "64 rows", "--batch 64 or less"),
    "no evaluation": ({**RUN, "evaluate_every": 0}, OptionError, "evaluate_every=0", "1 or more"),
    "no prefetch": ({**RUN, "prefetch": 0}, OptionError, "depth of 0", "--prefetch 1"),
    "a negative seed": ({**RUN, "seed": -3}, OptionError, "-3", "--seed 3"),
}


@pytest.mark.parametrize(("arguments", "kind", "what", "fix"), BAD_RUNS.values(), ids=BAD_RUNS)
def test_a_run_that_makes_no_sense_is_refused(arguments, kind, what, fix):
    """Named with its number, before anything is compiled."""
    trainer = trainer_of()
    state = trainer.init(zeros())
    with pytest.raises(kind) as caught:
        trainer.fit(state, line(), **arguments)
    assert what in caught.value.what and fix in caught.value.fix
    assert trainer.compilations == 0 and not state.step.is_deleted()


X = np.ones(64, np.float32)

BAD_DATA = {
    "no rows": ({"x": X[:0], "y": X[:0]}, "0 rows", "check the path"),
    "no leaf": ({}, "holds no array", "pass arrays"),
    "ragged leaves": ({"x": X, "y": X[:60]}, "'y' has 60 rows, but data leaf 'x' has 64", "60 rows are in both"),
    "a scalar leaf": ({"x": X, "y": np.float32(1)}, "'y' is a scalar", "np.full"),
    "text": ({"x": X, "y": np.array(["a"] * 64)}, "'y' is of type <U1", "token ids"),
    "objects": ({"x": X, "y": np.array([None] * 64)}, "'y' is of type object", "encode"),
    "nothing": (None, "NoneType is no source", "paceline.rows"),
    "a number": (3, "int is no source", "paceline.rows"),
    "an empty generator": ((batch for batch in []), "the stream of batches is empty", "generator that was used"),
    "a bad first batch of a generator": (iter([{"x": X, "y": X[:60]}]), "'y' has 60 rows", "leading dim"),
}


@pytest.mark.parametrize(("data", "what", "fix"), BAD_DATA.values(), ids=BAD_DATA)
def test_data_without_proper_rows_is_refused(data, what, fix):
    """A DataError that names the leaf and its sizes."""
    trainer = trainer_of()
    with pytest.raises(DataError) as caught:
        trainer.fit(trainer.init(zeros()), data, batch=16, steps=2)
    assert what in caught.value.what and fix in caught.value.fix
    assert trainer.compilations == 0


BAD_LOSSES = {
    "the wrong shape": (lambda params, batch: (params["w"] * batch["x"])[:, None], "(16, 1) for 16 rows"),
    "a string": (lambda params, batch: "loss", "of type str"),
    "nothing": (lambda params, batch: None, "NoneType"),
    "an integer": (lambda params, batch: jnp.ones(16, jnp.int32), "dtype int32"),
}


@pytest.mark.parametrize(("loss", "what"), BAD_LOSSES.values(), ids=BAD_LOSSES)
def test_a_loss_of_no_known_form_is_refused(loss, what):
    """LossError with the shape or type that it has."""
    trainer = trainer_of(loss)
    with pytest.raises(LossError) as caught:
        trainer.fit(trainer.init(zeros()), line(), **RUN)
    assert what in caught.value.what


def misspelled(params, batch):
    return params["w"] * batch["z"]


def test_a_loss_that_raises_is_pointed_at():
    """TaskError with the exception, this file and the line of the misspelled key; the cause is kept."""
    trainer = trainer_of(misspelled)
    with pytest.raises(TaskError, match="raised KeyError: 'z'") as caught:
        trainer.fit(trainer.init(zeros()), line(), **RUN)
    line_number = misspelled.__code__.co_firstlineno + 1
    assert caught.value.fix == f"look at {__file__}:{line_number} in misspelled"
    assert isinstance(caught.value.__cause__, KeyError)


def test_parameters_are_needed_from_somewhere():
    """Neither an init in the task nor parameters: both ways out are named."""
    with pytest.raises(TaskError, match="has no init") as caught:
        trainer_of().init()
    assert "init=" in caught.value.fix


def test_a_plain_function_is_no_task():
    """Trainer(loss): the fix is the wrapper."""
    with pytest.raises(TaskError, match="of type function") as caught:
        Trainer(squared_error, optax.sgd(0.1))
    assert "paceline.task(loss)" in caught.value.fix


@pytest.mark.parametrize("optimizer", [optax.sgd, 0.1, None])
def test_what_is_no_optimizer_is_refused(optimizer):
    """`optax.sgd` without its call, a number, nothing."""
    with pytest.raises(TaskError, match="the optimizer is of type") as caught:
        Trainer(task(squared_error), optimizer)
    assert "optax.sgd(0.1)" in caught.value.fix


@pytest.mark.parametrize("scheme", ["per_device", "pmap"])
def test_an_optimizer_that_differs_between_devices_is_refused(tmp_path, scheme):
    """By `fit` and by `step`, before the first step: the parameters are named, and no folder and no program is left."""

    def update(updates, state, params=None):
        return jax.tree.map(lambda leaf: leaf + 1e-3 * jax.lax.axis_index("data"), updates), state

    trainer = trainer_of(optimizer=optax.GradientTransformation(lambda _: (), update), scheme=scheme)
    state = trainer.init(zeros())
    calls = (
        lambda: trainer.fit(state, line(), **RUN, run=tmp_path / "run"),
        lambda: trainer.step(state, line(16)),
    )
    for call in calls:
        with pytest.raises(ReplicationError) as caught:
            call()
        assert "params.b, params.w" in caught.value.what and "jax.lax.axis_index" in caught.value.fix
    assert trainer.compilations == 0 and not state.step.is_deleted() and not (tmp_path / "run").exists()


def test_more_devices_than_there_are_is_refused():
    """9 of 8: both numbers, and --devices 8 as the fix."""
    with pytest.raises(DeviceError, match="9 devices asked for, 8 cpu devices visible") as caught:
        trainer_of(devices=9)
    assert "--devices 8" in caught.value.fix


def test_batch_norm_that_cannot_be_synced_is_refused():
    """A plain loss does not say how; the fix names the adapters."""
    with pytest.raises(SchemeError, match="synced") as caught:
        Trainer(task(squared_error), optax.sgd(0.1), parallel=Parallel("per_device", batch_norm="synced"))
    assert "from_nnx" in caught.value.fix


def test_parameters_that_are_no_floats_are_refused():
    """An int32 leaf has no gradient: its name."""
    with pytest.raises(StateError, match="'w'"):
        trainer_of().init({"w": np.int32(3), "b": np.float32(0)})


def test_a_state_that_was_used_up_is_named():
    """The state before a step cannot be used again: in fit, step and evaluate; the fix names donate=False."""
    trainer = trainer_of()
    state = trainer.init(zeros())
    trainer.fit(state, line(), **RUN)
    for use in (
        lambda: trainer.fit(state, line(), **RUN),
        lambda: trainer.step(state, line(16)),
        lambda: trainer.evaluate(state, line()),
    ):
        with pytest.raises(StateError, match="reused its memory") as caught:
            use()
        assert "donate=False" in caught.value.fix


def test_a_state_that_would_train_nothing_is_refused():
    """One update left out before, and the policy is to stop after the first: named, with the fix; skip trains it."""
    skipping = trainer_of(nonfinite="skip")
    bad = {"x": np.full(16, np.nan, np.float32), "y": X[:16]}
    state, metrics = skipping.step(skipping.init(zeros()), bad)
    assert metrics.fetch()["skipped_updates"] == 1
    with pytest.raises(StateError, match="counts 1 update left out") as caught:
        trainer_of().fit(state, line(), **RUN)
    assert "nonfinite='skip'" in caught.value.fix
    _, report = skipping.fit(state, line(), **RUN)
    assert (report.steps, report.skipped_updates) == (2, 0)


BAD_EVALUATIONS = {
    "leaves that the loss does not know": ({"u": X}, TaskError, "raised KeyError"),
    "no rows": ({"x": X[:0], "y": X[:0]}, DataError, "0 rows"),
    "no source": (3, DataError, "int is no source"),
}


@pytest.mark.parametrize(("data", "kind", "what"), BAD_EVALUATIONS.values(), ids=BAD_EVALUATIONS)
def test_a_bad_evaluation_is_refused_before_the_training(data, kind, what):
    """It comes after the last step, where it would cost the whole run."""
    trainer = trainer_of()
    with pytest.raises(kind, match=what):
        trainer.fit(trainer.init(zeros()), line(), **RUN, evaluation=data)
    assert trainer.compilations == 0


def test_an_iterator_cannot_be_evaluated_again_and_again():
    """With evaluate_every it would be empty the second time; without, it is evaluated once."""
    trainer = trainer_of()
    with pytest.raises(DataError, match="generator, which is empty after one evaluation") as caught:
        trainer.fit(trainer.init(zeros()), line(), **RUN, evaluation=(line(8) for _ in range(2)), evaluate_every=1)
    assert "evaluate_every" in caught.value.fix
    _, report = trainer.fit(trainer.init(zeros()), line(), **RUN, evaluation=(line(8) for _ in range(2)))
    assert report.evaluation["evaluate/rows"] == 16


def test_a_run_folder_in_use_is_refused_and_left_alone(tmp_path):
    """Its one file keeps its words, and no other appears; the fix names a free folder."""
    (tmp_path / "run.json").write_text("mine")
    trainer = trainer_of()
    with pytest.raises(RunFolderError, match="exists and is not empty") as caught:
        trainer.fit(trainer.init(zeros()), line(), **RUN, run=tmp_path)
    assert f"{tmp_path.name}-2" in caught.value.fix
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_text() == "mine"


def test_a_refused_run_makes_no_folder(tmp_path):
    """18 rows on 4 devices are refused before the folder is made."""
    trainer = trainer_of()
    with pytest.raises(BatchSizeError):
        trainer.fit(trainer.init(zeros()), line(), batch=18, steps=2, run=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("data", "arguments"), [(line(), {"prefetch": 0}), (iter([{"x": X, "y": X[:60]}]), {})])
def test_data_that_cannot_be_read_makes_no_folder(tmp_path, data, arguments):
    """The first batch is there before the folder is."""
    trainer = trainer_of()
    with pytest.raises((OptionError, DataError)):
        trainer.fit(trainer.init(zeros()), data, **RUN, **arguments, run=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_state_on_the_host_is_refused_with_the_way_to_place_it():
    """numpy leaves, or no TrainState at all; placed as the fix says, it steps."""
    trainer = trainer_of()
    batch = {name: leaf[:16] for name, leaf in line().items()}
    state = trainer.init(zeros())
    host = dataclasses.replace(jax.tree.map(np.asarray, dataclasses.replace(state, rng=None)), rng=state.rng)
    with pytest.raises(StateError, match="arrays of the host") as caught:
        trainer.step(host, batch)
    assert "trainer.place(state)" in caught.value.fix
    trainer.step(trainer.place(host), batch)


def test_a_trainer_under_a_mesh_of_explicit_axes_is_refused():
    """By init and by step, with the axes; outside of it the same calls work."""
    trainer = trainer_of()
    batch = {name: leaf[:16] for name, leaf in line().items()}
    state = trainer.init(zeros())
    with jax.set_mesh(jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])):
        for call in (lambda: trainer.init(zeros()), lambda: trainer.step(state, batch)):
            with pytest.raises(SchemeError, match="explicit axes") as caught:
                call()
            assert "'rows'" in caught.value.what
    trainer.step(state, batch)
