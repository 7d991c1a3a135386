"""What only the NNX adapter has to get right: streams by path, lists of layers, stacked layers, sown values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from paceline.base.errors import TaskError
from paceline.engine.rng import base_key, positional_key
from paceline.tasks.adapters.nnx import from_nnx
from paceline.tasks.tree import named_leaves

ONES = {"x": np.ones((8, 16), np.float32)}


class TwoMasks(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(16, 1, rngs=rngs)
        self.left, self.right = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)


def run(task, seed=0):
    params, state = task.init(jax.random.key(0))
    return task.loss(params, state, ONES, jax.random.key(seed))


def test_two_dropout_layers_draw_two_masks():
    """Both hold a stream named ``dropout``; 128 entries of two independent masks of rate 0.5 do not agree."""

    def loss(model, batch):
        return model.linear(batch["x"])[:, 0], {"equal": jnp.mean(model.left(batch["x"]) == model.right(batch["x"]))}

    task = from_nnx(TwoMasks, loss)
    assert 0.2 < run(task).metrics["equal"] < 0.8


def test_a_stream_starts_anew_at_every_step():
    """Same key, same mask; another key, another: no count is carried from step to step."""
    task = from_nnx(TwoMasks, lambda model, batch: jnp.sum(model.left(batch["x"]), axis=1))
    first, again, other = (np.asarray(run(task, seed).loss) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()


class Layered(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(16, 16, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        self.sow(nnx.Intermediate, "hidden", x)
        return x


def test_layers_in_a_list_are_named_by_their_number():
    """Every key of the tree is a string, so that a checkpoint can hold it."""
    initial = from_nnx(Layered, lambda model, batch: model(batch["x"])[:, 0]).init(jax.random.key(0))
    names = [name for name, _ in named_leaves(initial.params)]
    assert names == ["layers.0.bias", "layers.0.kernel", "layers.1.bias", "layers.1.kernel"]
    assert set(initial.params["layers"]) == {"0", "1"}


def test_sown_values_do_not_enter_the_model_state():
    """The state after a step has the tree of the state before it."""
    assert run(from_nnx(Layered, lambda model, batch: model(batch["x"])[:, 0])).model_state == {}


def test_initialisation_is_that_of_the_library():
    """Same key, same parameters as ``build(nnx.Rngs(key))`` (float32, 1e-6)."""
    task = from_nnx(Layered, lambda model, batch: model(batch["x"])[:, 0])
    wanted = Layered(nnx.Rngs(jax.random.key(7))).layers[1].kernel[...]
    np.testing.assert_allclose(task.init(jax.random.key(7)).params["layers"]["1"]["kernel"], wanted, rtol=1e-6)


class Stacked(nnx.Module):
    """Three layers as one with a leading dim, as `nnx.vmap` makes them and `nnx.scan` runs them."""

    def __init__(self, rngs):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs):
            return TwoMasks(rngs)

        self.blocks = make(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def forward(block, x):
            return block.left(x)

        return forward(self.blocks, x)


def test_stacked_layers_draw_a_mask_each_for_any_split_of_the_rows():
    """Three masks of rate 0.5 leave about an eighth of ones; 4 of 8 rows draw what the whole batch draws for them."""
    task = from_nnx(Stacked, lambda model, batch: jnp.sum(model(batch["x"]) * jnp.arange(16), axis=1))
    params, state = task.init(jax.random.key(0))
    key = base_key(1)
    whole = task.loss(params, state, ONES, key).loss
    half = {"x": ONES["x"][4:]}
    part = task.loss(params, state, half, positional_key(key, rows=4, start=4, stride=1)).loss
    np.testing.assert_array_equal(part, whole[4:])
    left = task.loss(params, state, {"x": np.ones((64, 16), np.float32)}, key).loss / (8 * 120)
    assert 0.08 < np.mean(left) < 0.18


def test_a_module_where_its_builder_belongs_is_refused():
    """The fix shows the function to write."""
    with pytest.raises(TaskError, match="Layered") as caught:
        from_nnx(Layered(nnx.Rngs(0)), lambda model, batch: 0.0)  # pyright: ignore[reportArgumentType]: the mistake that is tested
    assert "lambda rngs" in caught.value.fix


def test_a_builder_of_something_else_is_refused():
    """A dict of arrays is no module."""
    with pytest.raises(TaskError, match="dict") as caught:
        from_nnx(lambda rngs: {"w": jnp.zeros(3)}, lambda model, batch: 0.0)  # pyright: ignore[reportArgumentType]: the mistake that is tested
    assert "returns a new module" in caught.value.fix
