"""What only the Linen adapter has to get right: mode flags, methods, streams, nested BatchNorms."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.base.errors import TaskError
from paceline.tasks.adapters.linen import from_linen
from paceline.tasks.task import RunningStatistics
from paceline.tasks.tree import named_leaves

ONES = {"x": np.ones((8, 16), np.float32)}
EXAMPLE = {"x": jax.ShapeDtypeStruct((2, 16), jnp.float32)}


class Flags(nn.Module):
    """Returns how it was called, one number a row."""

    @nn.compact
    def __call__(self, x, training: bool, deterministic: bool = False, train: bool = True):
        nn.Dense(1)(x)
        return jnp.full(len(x), 100.0 * training + 10.0 * deterministic + train)


def task_of(module, loss, **options):
    return from_linen(module, loss, example=EXAMPLE, **options)


def run(task, function="loss", seed=0):
    params, state = task.init(jax.random.key(0))
    return getattr(task, function)(params, state, ONES, jax.random.key(seed))


def test_mode_flags_are_filled_in():
    """training=True, deterministic=False, train=True in training; the opposite in evaluation."""
    task = task_of(Flags(), lambda model, batch: model(batch["x"]))
    assert run(task).loss[0] == 101
    assert run(task, "evaluate").loss[0] == 10


def test_a_flag_that_the_loss_gives_is_left_alone():
    """By position or by name."""
    task = task_of(Flags(), lambda model, batch: model(batch["x"], False, train=False))
    assert run(task).loss[0] == 0


class Watching(nn.Module):
    """Returns whether its statistics may change, as some modules ask to know whether they train."""

    @nn.compact
    def __call__(self, x):
        self.variable("batch_stats", "seen", jnp.zeros, ())
        return nn.Dense(1)(x)[:, 0] * 0 + self.is_mutable_collection("batch_stats")


def test_collections_are_mutable_in_training_only():
    """1 in training, 0 in evaluation."""
    task = task_of(Watching(), lambda model, batch: model(batch["x"]))
    assert run(task).loss[0] == 1
    assert run(task, "evaluate").loss[0] == 0


class Coder(nn.Module):
    def setup(self):
        self.encoder, self.decoder = nn.Dense(4), nn.Dense(16)

    def encode(self, x):
        return self.encoder(x)

    def decode(self, code):
        return self.decoder(code)


def test_a_loss_may_call_several_methods():
    """Initialisation makes the parameters of every method that the loss calls; each is called by name."""

    def loss(model, batch):
        return jnp.mean(model(model(batch["x"], method="encode"), method=Coder.decode), axis=1)

    task = task_of(Coder(), loss)
    names = [name for name, _ in named_leaves(task.init(jax.random.key(0)).params)]
    assert names == ["decoder.bias", "decoder.kernel", "encoder.bias", "encoder.kernel"]
    assert run(task).loss.shape == (8,)


class Noisy(nn.Module):
    stream: str = "dropout"

    @nn.compact
    def __call__(self, x):
        nn.Dense(1)(x)
        return jnp.sum(nn.Dropout(0.5, deterministic=False, rng_collection=self.stream)(x) * jnp.arange(16), axis=1)


def test_two_calls_in_one_step_draw_two_masks():
    """As the consistency losses need it; the same step draws the same two again."""
    task = task_of(Noisy(), lambda model, batch: model(batch["x"]) - model(batch["x"]))
    first, again = np.asarray(run(task).loss), np.asarray(run(task).loss)
    assert (first != 0).any() and (first == again).all()


def test_a_stream_of_another_name_is_given_when_it_is_asked_for():
    """``rng_streams=("noise",)`` feeds a module that draws from ``noise``."""
    task = task_of(Noisy("noise"), lambda model, batch: model(batch["x"]), rng_streams=("noise",))
    assert (run(task).loss != run(task, seed=1).loss).any()


def test_initialisation_is_that_of_the_library():
    """Same key, same parameters as ``module.init(key, x)`` (float32, 1e-6)."""
    task = task_of(Noisy(), lambda model, batch: model(batch["x"]))
    wanted = Noisy().init({"params": jax.random.key(7), "dropout": jax.random.key(0)}, ONES["x"])["params"]
    got = task.init(jax.random.key(7)).params
    np.testing.assert_allclose(got["Dense_0"]["kernel"], wanted["Dense_0"]["kernel"], rtol=1e-6)


class Block(nn.Module):
    norm: nn.Module

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.BatchNorm(not train, momentum=0.8)(self.norm(x, use_running_average=not train))


class Blocks(nn.Module):
    norm: nn.Module

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.remat(Block, static_argnums=(2,))(self.norm, name="block")(x, train)


def test_batch_norms_are_found_wherever_they_are():
    """Inside a nested and rematerialised module, made there or handed in."""
    task = task_of(Blocks(nn.BatchNorm(momentum=0.7)), lambda model, batch: model(batch["x"])[:, 0])
    inner = "batch_stats.block.BatchNorm_0"
    handed = "batch_stats.norm"
    assert set(task.statistics) == {
        RunningStatistics(f"{inner}.mean", f"{inner}.var", 0.8),
        RunningStatistics(f"{handed}.mean", f"{handed}.var", 0.7),
    }


def test_synced_reaches_every_batch_norm_and_leaves_the_module_alone():
    """Two devices, zeros and twos: batch mean 1 and variance 1 in both, from mean 0 and variance 1 (float32, 1e-6)."""
    norm = nn.BatchNorm(momentum=0.7)
    task = task_of(Blocks(norm), lambda model, batch: model(batch["x"])[:, 0])
    params, state = task.init(jax.random.key(0))
    assert task.synced is not None
    x = np.stack([np.zeros((4, 16)), np.full((4, 16), 2.0)]).astype(np.float32)
    outcome = jax.vmap(
        lambda rows: task.synced("data").loss(params, state, {"x": rows}, jax.random.key(0)), axis_name="data"
    )(x)
    stats = outcome.model_state["batch_stats"]
    np.testing.assert_allclose(stats["norm"]["mean"], np.full((2, 16), 0.3), rtol=1e-6)
    np.testing.assert_allclose(stats["norm"]["var"], np.full((2, 16), 1.0), rtol=1e-6)
    np.testing.assert_allclose(stats["block"]["BatchNorm_0"]["var"], np.full((2, 16), 1.0), rtol=1e-4)
    assert norm.axis_name is None


def test_a_class_where_a_module_belongs_is_refused():
    """The fix shows the parentheses."""
    with pytest.raises(TaskError, match="the class Coder") as caught:
        task_of(Coder, lambda model, batch: 0.0)
    assert "Net()" in caught.value.fix
