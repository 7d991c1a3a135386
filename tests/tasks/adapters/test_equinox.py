"""What only the Equinox adapter has to get right: state by name, BatchNorm by running values, modules without keys."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.base.errors import StateError, TaskError
from paceline.engine.parallel import Parallel
from paceline.tasks.adapters.equinox import from_equinox
from paceline.tasks.tree import named_leaves
from tests.tasks.adapters.models import LIBRARIES, Net, take_steps

ROWS = {"x": np.repeat(np.arange(4.0, dtype=np.float32), 2)[:, None], "y": np.zeros(8, np.float32)}
EMA = Net(1, (("bn", "norm"), ("last", 1)), mode="ema")


def first_output(model, batch):
    return model(batch["x"])[:, 0] ** 2


def names_of(tree):
    return [name for name, _ in named_leaves(tree)]


@pytest.fixture(scope="module")
def ema():
    return LIBRARIES["equinox"].task(EMA, first_output, None)


def test_a_batch_norm_by_running_values_is_refused_on_local_rows(ema):
    """The error names the variance, and offers to sync."""
    with pytest.raises(StateError, match=r"layers\.bn\.variance") as caught:
        take_steps(ema, Parallel("per_device"), ROWS, devices=4)
    assert "batch_norm='synced'" in caught.value.fix and "scheme='global_view'" in caught.value.fix


def test_a_batch_norm_by_running_values_may_be_synced(ema):
    """Its first step sets the running values to those of all 8 rows: mean 1.5, variance 1.25 (float32, 1e-6)."""
    state = take_steps(ema, Parallel("per_device", batch_norm="synced"), ROWS, devices=4).model_state
    mean, variance = LIBRARIES["equinox"].statistics(state)
    np.testing.assert_allclose([mean[0], variance[0]], [1.5, 1.25], rtol=1e-6)
    assert not state["layers"]["bn"]["first_time"]


def test_a_batch_norm_by_running_values_is_that_of_the_library():
    """Two steps, against `eqx.nn.BatchNorm` itself under vmap: output and running values (float32, 1e-6)."""
    task = LIBRARIES["equinox"].task(
        Net(1, (("bn", "norm"),), mode="ema"), lambda model, batch: model(batch["x"])[:, 0], None
    )
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(1, "batch", momentum=0.9, mode="ema")
    params, model_state = task.init(jax.random.key(0))
    for scale in (1.0, 3.0):
        wanted, state = jax.vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(
            scale * ROWS["x"], state
        )
        outcome = task.loss(params, model_state, {"x": scale * ROWS["x"]}, jax.random.key(0))
        model_state = outcome.model_state
        np.testing.assert_allclose(outcome.loss, wanted[:, 0], rtol=1e-6)
    assert norm.ema_state_index is not None
    np.testing.assert_allclose(LIBRARIES["equinox"].statistics(model_state), state.get(norm.ema_state_index), rtol=1e-6)


def test_a_module_without_state_is_called_without_one():
    """As many equinox modules are: ``module(x)``, with or without a key."""
    task = from_equinox(lambda key: eqx.nn.MLP(1, 1, 4, 1, key=key), first_output)
    initial = task.init(jax.random.key(0))
    assert "layers.0.weight" in names_of(initial.params) and initial.model_state == {}
    assert task.loss(*initial, ROWS, jax.random.key(0)).loss.shape == (8,)


class Keyless(eqx.Module):
    weight: jax.Array
    table: jax.Array

    def __call__(self, x):
        return x * self.weight[self.table]


def test_arrays_that_are_no_parameters_are_model_state():
    """An integer table has no gradient; it stays, and stays the same."""
    task = from_equinox(lambda key: Keyless(jax.random.normal(key, (3,)), jnp.array([2])), first_output)
    initial = task.init(jax.random.key(0))
    assert (names_of(initial.params), names_of(initial.model_state)) == (["weight"], ["table"])
    outcome = task.loss(*initial, ROWS, jax.random.key(0))
    np.testing.assert_array_equal(outcome.model_state["table"], [2])
    np.testing.assert_allclose(outcome.loss, (ROWS["x"][:, 0] * initial.params["weight"][2]) ** 2, rtol=1e-6)


def norm_in_sequence(key):
    return eqx.nn.Sequential([eqx.nn.BatchNorm(1, "batch", mode="batch"), eqx.nn.Linear(1, 1, key=key)])


@pytest.mark.parametrize(
    "build",
    [
        norm_in_sequence,
        lambda key: eqx.nn.make_with_state(norm_in_sequence)(key),
        lambda key: (module := norm_in_sequence(key), eqx.nn.State(module)),
    ],
    ids=["module", "make_with_state", "by hand"],
)
def test_state_is_named_after_its_layer_however_it_was_made(build):
    """Also where Equinox files it under an object that no second build would make again; it can be stepped."""
    task = from_equinox(build, first_output)
    initial = task.init(jax.random.key(0))
    assert names_of(initial.model_state) == ["layers.0.count", "layers.0.mean", "layers.0.variance"]
    assert names_of(initial.params) == ["layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"]
    state = task.loss(*initial, ROWS, jax.random.key(0)).model_state["layers"]["0"]
    np.testing.assert_allclose([state["mean"][0], state["variance"][0]], [0.015, 0.99 + 0.0125], rtol=1e-5)


class Calls(eqx.Module):
    seen: eqx.nn.StateIndex
    weight: jax.Array

    def __call__(self, x, state):
        return x * self.weight, state.set(self.seen, state.get(self.seen) + 1)


class Counter(eqx.Module):
    seen: eqx.nn.StateIndex
    weight: jax.Array

    def __call__(self, x, state):
        calls, total = state.get(self.seen)
        return x * self.weight, state.set(self.seen, (calls + 1, total + 0.5))


def test_other_state_is_named_by_its_path_and_threaded_from_call_to_call():
    """Two calls in one step count two."""
    build = eqx.nn.make_with_state(lambda key: Counter(eqx.nn.StateIndex((jnp.array(0), jnp.array(0.0))), jnp.ones(1)))
    task = from_equinox(build, lambda model, batch: first_output(model, batch) + first_output(model, batch))
    initial = task.init(jax.random.key(0))
    assert names_of(initial.model_state) == ["seen.0", "seen.1"]
    assert task.loss(*initial, ROWS, jax.random.key(0)).model_state["seen"] == {"0": 2, "1": 1.0}


def test_evaluation_gives_back_the_state_also_of_a_model_that_changes_it():
    """A module that counts in any mode has counted nothing after an evaluation."""
    index = eqx.nn.StateIndex(jnp.array(0))
    task = from_equinox(eqx.nn.make_with_state(lambda key: Calls(index, jnp.ones(1))), first_output)
    params, state = task.init(jax.random.key(0))
    assert task.evaluate is not None
    assert task.evaluate(params, state, ROWS, jax.random.key(0)).model_state["seen"] == 0


class Keyed(eqx.Module):
    weight: jax.Array
    key: Any


def test_a_module_that_keeps_a_random_key_is_refused():
    """The error names the leaf; the fix says where keys come from."""
    with pytest.raises(TaskError, match="random key at 'key'") as caught:
        from_equinox(lambda key: Keyed(jnp.ones(1), key), first_output)
    assert "at each call" in caught.value.fix


@pytest.mark.parametrize("build", [eqx.nn.Identity(), lambda key: {"w": jnp.ones(1)}], ids=["module", "dict"])
def test_what_builds_no_module_is_refused(build):
    """The fix says what to pass."""
    with pytest.raises(TaskError, match="is needed") as caught:
        from_equinox(build, first_output)
    assert "make_with_state" in caught.value.fix
