"""Steps that Paceline did not write: what they are called with, and what is said when that does not fit."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from paceline.base.errors import OptionError, StateError
from paceline.check.replication import drifting

K = 4
AXIS = "data"


def step(state, batch):
    """The batch's own sum goes into `mean` unreduced."""
    gradient = lax.pmean(batch["x"].sum(0), AXIS)
    return {"w": state["w"] - gradient, "mean": batch["x"].sum()}


def state(*axes):
    return {"w": jnp.ones((*axes, 3)), "mean": jnp.zeros(axes)}


def test_a_state_without_the_device_axis_of_pmap_is_named():
    """The leaf, its shape, and the leading size that the rows have; stacked as the fix says, it is judged."""
    with pytest.raises(
        StateError, match=r"'state.mean' has shape \(\), without a leading device axis of size 4"
    ) as caught:
        drifting(jax.pmap(step, axis_name=AXIS), state(), {"x": jnp.ones((K, 2, 3))})
    assert "stack 4 copies" in caught.value.fix
    (drift,) = drifting(jax.pmap(step, axis_name=AXIS), state(K), {"x": jnp.ones((K, 2, 3))})
    assert drift.leaf == "mean"


def test_a_batch_without_the_device_axis_of_pmap_is_named():
    """The state leads with 4; of a global batch [8, 3] the rows are named, with the shape to give them."""
    with pytest.raises(
        StateError, match=r"'batch.x' has shape \(8, 3\), without a leading device axis of size 4"
    ) as caught:
        drifting(jax.pmap(step, axis_name=AXIS), state(K), {"x": jnp.ones((8, 3))})
    assert "[4, B/4, ...]" in caught.value.fix


WRONG_OPTIONS = {
    "an argument that is not there": ({"state_argnums": (5,)}, "state_argnums=(5,)"),
    "no argument": ({"state_argnums": ()}, "state_argnums=()"),
    "an argument by name": ({"state_argnums": "state"}, "state_argnums='state'"),
    "devices by name": ({"devices": "a"}, "devices='a'"),
    "no device": ({"devices": 0}, "devices=0"),
}


@pytest.mark.parametrize(("options", "what"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_options_that_cannot_be_are_refused(options, what):
    """Named with the value."""
    with pytest.raises(OptionError) as caught:
        inspect.unwrap(drifting)(step, state(), {"x": jnp.ones((2, 3))}, **options)
    assert what in caught.value.what


def test_one_argument_may_be_the_state():
    """A number alone means the same as a tuple of it."""
    batch = {"x": jnp.ones((2, 3))}
    by_number, by_tuple = (drifting(step, state(), batch, state_argnums=given) for given in (0, (0,)))
    assert [drift.leaf for drift in by_number] == [drift.leaf for drift in by_tuple] == ["mean"]
