"""`task()`: short forms to the full signature."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

from paceline.base.errors import TaskError
from paceline.tasks.losses import Outcome
from paceline.tasks.task import RunningStatistics, full_signature, task

STATE = {"count": 3}
KEY = jax.random.key(0)


def call(function):
    return full_signature(function)({"w": 2.0}, STATE, {"x": 5.0}, KEY)


def test_two_arguments_are_parameters_and_batch():
    """The loss of w = 2 and x = 5; the model state passes through."""
    outcome = call(lambda params, batch: params["w"] * batch["x"])
    assert (outcome.loss, outcome.metrics, outcome.model_state) == (10.0, {}, STATE)


def test_three_arguments_are_parameters_batch_and_key():
    """The key is the one given."""
    assert call(lambda params, batch, rng: (params["w"] * batch["x"], {"key": rng})).metrics["key"] is KEY


def test_four_arguments_are_the_full_signature():
    """The new model state is the one returned."""
    outcome = call(lambda params, state, batch, rng: Outcome(batch["x"], {"a": 1}, {"count": state["count"] + 1}))
    assert (outcome.loss, outcome.metrics, outcome.model_state) == (5.0, {"a": 1}, {"count": 4})


def test_a_pair_with_a_dict_is_loss_and_metrics():
    """Any other tuple is left for the check of the loss's form to name."""
    assert call(lambda params, batch: (batch["x"], {"a": 1})).metrics == {"a": 1}
    assert call(lambda params, batch: (batch["x"], 1)).loss == (5.0, 1)


def test_arguments_with_defaults_do_not_count():
    """``f(params, batch, scale=1.0)`` and partials are short forms."""
    assert call(lambda params, batch, scale=3.0: scale * batch["x"]).loss == 15.0
    assert call(functools.partial(lambda scale, params, batch: scale * batch["x"], 3.0)).loss == 15.0


@pytest.mark.parametrize("function", [lambda: 0.0, lambda params: 0.0, lambda a, b, c, d, e: 0.0])
def test_another_number_of_arguments_is_refused(function):
    """The fix shows the three signatures."""
    with pytest.raises(TaskError, match="positional arguments") as caught:
        task(function)
    for signature in ("f(params, batch)", "f(params, batch, rng)", "f(params, model_state, batch, rng)"):
        assert signature in caught.value.fix


def test_a_task_is_named_after_its_loss():
    """Unless it is given a name."""

    def squared(params, batch):
        return batch["x"] ** 2

    assert task(squared).name == "squared" and task(squared, name="linear").name == "linear"
    assert task(functools.partial(squared)).name == "task"


def test_evaluation_may_have_another_signature():
    """Each function is brought to the full signature by itself."""
    made = task(lambda params, batch: batch["x"], evaluate=lambda params, state, batch, rng: Outcome(jnp.zeros(())))
    assert made.evaluate is not None
    assert made.evaluate({}, STATE, {"x": 5.0}, KEY).loss == 0 and made.loss({}, STATE, {"x": 5.0}, KEY).loss == 5.0


def test_statistics_are_kept_as_a_tuple():
    """A task is frozen, and so is what it holds."""
    entry = RunningStatistics("bn.mean", "bn.var", 0.9)
    assert task(lambda params, batch: 0.0, statistics=[entry]).statistics == (entry,)
