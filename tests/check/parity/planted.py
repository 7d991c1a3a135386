"""Tasks and steps with one mistake each, as users make them, and the same without it.

Owns: the mistakes. Not here: what is expected of them (the tests).

Steps are written the three ways that users write them: for `jax.pmap`, with a `jax.shard_map`, or to be mapped.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import paceline

RATE = 0.05
SGD = optax.sgd(RATE, momentum=0.9)
SCHEDULED = optax.sgd(optax.linear_schedule(RATE, 0.0, 16))
ROWS = 96


def table(seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of different kinds: devices that see different rows must differ where nothing is reduced."""
    generator = np.random.default_rng(seed)
    return {
        "x": generator.normal(size=(ROWS, 3)).astype(np.float32),
        "y": generator.normal(size=ROWS).astype(np.float32),
        "tokens": generator.integers(1, 9, ROWS).astype(np.float32),
    }


def params() -> dict[str, np.ndarray]:
    """Parameters of every task here."""
    return {"w": np.array([0.3, -0.2, 0.1], np.float32), "b": np.zeros((), np.float32)}


def error(params: Any, batch: Any) -> Any:
    """One squared error a row."""
    return (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2


def mean_error(params: Any, batch: Any) -> Any:
    return error(params, batch).mean()


def with_accuracy(params: Any, batch: Any) -> Any:
    rows = error(params, batch)
    return rows, {"small": rows < 1}


def token_error(params: Any, batch: Any) -> Any:
    return paceline.Weighted(error(params, batch) * batch["tokens"], batch["tokens"])


def dropped_error(params: Any, batch: Any, rng: Any) -> Any:
    kept = jax.random.bernoulli(rng, 0.5, batch["x"].shape)
    return error(params, {**batch, "x": jnp.where(kept, 2 * batch["x"], 0)})


MOMENTUM = 0.9
STATISTICS = [paceline.RunningStatistics("mean", "spread", MOMENTUM)]


def model_state() -> dict[str, np.ndarray]:
    """Running statistics; `spread` is a variance under a name that does not say so."""
    return {"mean": np.zeros(3, np.float32), "spread": np.ones(3, np.float32)}


def normalised(params: Any, model_state: Any, batch: Any) -> Any:
    """Errors after BatchNorm over the rows at hand, and the next running statistics."""
    mean, spread = batch["x"].mean(0), batch["x"].var(0)
    rows = error(params, {**batch, "x": (batch["x"] - mean) / jnp.sqrt(spread + 1e-5)})
    kept = {
        "mean": MOMENTUM * model_state["mean"] + (1 - MOMENTUM) * mean,
        "spread": MOMENTUM * model_state["spread"] + (1 - MOMENTUM) * spread,
    }
    return rows, kept


def batch_norm_loss(params: Any, model_state: Any, batch: Any, rng: Any) -> Any:
    rows, kept = normalised(params, model_state, batch)
    return paceline.Outcome(rows, {}, kept)


# --- steps ---


def sharded(axis: str, devices: int, *, check_vma: bool) -> Any:
    """Decorator: a `jax.shard_map` over its own mesh, whose last argument is split by rows."""
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:devices]), (axis,), axis_types=(AxisType.Auto,))
    whole, rows = PartitionSpec(), PartitionSpec(axis)

    def decorate(function: Any) -> Any:
        mapped = jax.shard_map(function, mesh=mesh, in_specs=(whole, whole, rows), out_specs=whole, check_vma=check_vma)
        return jax.jit(functools.wraps(function)(lambda params, opt_state, batch: mapped(params, opt_state, batch)))

    return decorate


def apply(gradients: Any, opt_state: Any, params: Any, optimizer: Any = SGD) -> Any:
    changes, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, changes), opt_state


def step_with(reduce: Any, *, loss: Any = mean_error, before: Any = lambda gradients: gradients) -> Any:
    """A step as one device runs it, over axis ``i``, with its gradients reduced by `reduce`."""

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        params, opt_state = apply(reduce(before(gradients), "i"), opt_state, params)
        return params, opt_state, lax.pmean(value, "i")

    return step


right_bare = step_with(lax.pmean)
right_pmap = jax.pmap(step_with(lax.pmean), axis_name="i", donate_argnums=(0, 1))
never_reduced = jax.pmap(step_with(lambda gradients, axis: gradients), axis_name="i")


def right_sharded() -> Any:
    return sharded("i", 4, check_vma=False)(step_with(lax.pmean))


def times_k() -> Any:
    """Fact: under check_vma=True the gradient is summed already."""
    return sharded("i", 4, check_vma=True)(step_with(lax.pmean))


def times_k_squared() -> Any:
    return sharded("i", 4, check_vma=True)(step_with(lax.psum))


def over_k(params: Any, opt_state: Any, batch: Any) -> Any:
    """Divides by the rows of the global batch, then takes the mean."""

    def loss(params: Any) -> Any:
        return error(params, batch).sum() / (len(batch["y"]) * lax.axis_size("i"))

    params, opt_state = apply(lax.pmean(jax.grad(loss)(params), "i"), opt_state, params)
    return params, opt_state


def local_token_mean(params: Any, batch: Any) -> Any:
    return (error(params, batch) * batch["tokens"]).sum() / batch["tokens"].sum()


mean_of_means = step_with(lax.pmean, loss=local_token_mean)


def right_tokens(params: Any, opt_state: Any, batch: Any) -> Any:
    tokens = lax.psum(batch["tokens"].sum(), "i")
    value, gradients = jax.value_and_grad(lambda p: (error(p, batch) * batch["tokens"]).sum() / tokens)(params)
    return *apply(lax.psum(gradients, "i"), opt_state, params), lax.psum(value, "i")


def clip(gradients: Any) -> Any:
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradients)))
    return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, 0.5 / norm), gradients)


clip_first = step_with(lax.pmean, before=clip)
clip_last = step_with(lambda gradients, axis: clip(lax.pmean(gradients, axis)))


def masked_step(*, uses_mask: bool) -> Any:
    def step(params: Any, opt_state: Any, batch: Any, valid: Any) -> Any:
        weight = valid.astype(batch["x"].dtype) if uses_mask else jnp.ones_like(batch["y"])
        count = lax.psum(weight.sum(), "i")
        value, gradients = jax.value_and_grad(lambda p: (error(p, batch) * weight).sum() / count)(params)
        return *apply(lax.psum(gradients, "i"), opt_state, params), lax.psum(value, "i")

    return step


def dropout_step(key_of: Any) -> Any:
    def step(params: Any, opt_state: Any, batch: Any, rng: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: dropped_error(p, batch, key_of(rng)).mean())(params)
        return *apply(lax.pmean(gradients, "i"), opt_state, params), lax.pmean(value, "i")

    return step


same_mask = dropout_step(lambda rng: rng)
mask_of_device = dropout_step(lambda rng: jax.random.fold_in(rng, lax.axis_index("i")))
constant_key = dropout_step(lambda rng: jax.random.key(7))


def shared_key_step(params: Any, opt_state: Any, batch: Any, rng: Any) -> Any:
    """One key for the masks and for the noise."""
    rows = batch["x"].shape

    def loss(params: Any) -> Any:
        noise = jax.random.normal(rng, rows)
        return dropped_error(params, {**batch, "x": batch["x"] + 0.1 * noise}, rng).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    return *apply(lax.pmean(gradients, "i"), opt_state, params), lax.pmean(value, "i")


def batch_norm_step(merge: Any) -> Any:
    def step(params: Any, opt_state: Any, model_state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            rows, kept = normalised(params, model_state, batch)
            return rows.mean(), kept

        (value, kept), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        params, opt_state = apply(lax.pmean(gradients, "i"), opt_state, params)
        return params, opt_state, merge(kept, model_state), lax.pmean(value, "i")

    return step


def union(kept: Any, before: Any) -> Any:
    """Law of total variance over the axis."""
    mean = (kept["mean"] - MOMENTUM * before["mean"]) / (1 - MOMENTUM)
    spread = lax.pmean(mean**2, "i") - lax.pmean(mean, "i") ** 2
    averaged = lax.pmean(kept, "i")
    return {**averaged, "spread": averaged["spread"] + (1 - MOMENTUM) * spread}


statistics_drift = jax.pmap(batch_norm_step(lambda kept, before: kept), axis_name="i")
variance_averaged = batch_norm_step(lambda kept, before: lax.pmean(kept, "i"))
right_statistics = batch_norm_step(union)


def metric_step(reduce: Any) -> Any:
    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        (value, small), gradients = jax.value_and_grad(
            lambda p: (mean_error(p, batch), (error(p, batch) < 1).astype(batch["x"].dtype).mean()), has_aux=True
        )(params)
        params, opt_state = apply(lax.pmean(gradients, "i"), opt_state, params)
        return params, opt_state, {"loss": lax.pmean(value, "i"), "small": reduce(small, "i")}

    return step


metric_summed = metric_step(lax.psum)
metric_right = metric_step(lax.pmean)


def schedule_step(params: Any, opt_state: Any, batch: Any) -> Any:
    """Asks the optimizer once a microbatch, though only the last answer is applied."""
    parts = jax.tree.map(lambda leaf: leaf.reshape(4, -1, *leaf.shape[1:]), batch)
    total = jax.tree.map(jnp.zeros_like, params)
    for number in range(4):
        part = jax.tree.map(lambda leaf, number=number: leaf[number], parts)
        total = jax.tree.map(jnp.add, total, jax.grad(mean_error)(params, part))
        gradients = lax.pmean(jax.tree.map(lambda leaf: leaf / 4, total), "i")
        changes, opt_state = SCHEDULED.update(gradients, opt_state, params)
    return optax.apply_updates(params, changes), opt_state


# --- tasks ---


def sum_loss(params: Any, batch: Any) -> Any:
    return error(params, batch).sum()


def own_mean(params: Any, batch: Any) -> Any:
    return local_token_mean(params, batch)


def contrastive(params: Any, batch: Any) -> Any:
    """The loss of a row depends on the other rows."""
    score = batch["x"] @ params["w"]
    return error(params, batch) + jax.nn.logsumexp(score) - score


def constant_dropout(params: Any, batch: Any) -> Any:
    return dropped_error(params, batch, jax.random.key(3))


def one_key_twice(params: Any, batch: Any, rng: Any) -> Any:
    noise = jax.random.normal(rng, batch["x"].shape)
    return dropped_error(params, {**batch, "x": batch["x"] + 0.1 * noise}, rng)


def two_keys(params: Any, batch: Any, rng: Any) -> Any:
    noise_key, mask_key = jax.random.split(rng)
    noise = jax.random.normal(noise_key, batch["x"].shape)
    return dropped_error(params, {**batch, "x": batch["x"] + 0.1 * noise}, mask_key)


def flat_draw(params: Any, batch: Any, rng: Any) -> Any:
    """Draws the masks of all rows as one flat array."""
    kept = jax.random.bernoulli(rng, 0.5, (batch["x"].size,)).reshape(batch["x"].shape)
    return error(params, {**batch, "x": jnp.where(kept, 2 * batch["x"], 0)})


def metric_sum(params: Any, batch: Any) -> Any:
    rows = error(params, batch)
    return rows, {"small": (rows < 1).astype(rows.dtype).sum()}


def noise_of_the_host(params: Any, batch: Any) -> Any:
    """numpy's generator, at trace time: another constant in every program."""
    return error(params, batch) * (1 + 0.1 * np.random.default_rng().normal())


def callback_noise(params: Any, batch: Any) -> Any:
    """numpy's generator, at run time."""
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    noise = jax.pure_callback(lambda: np.float32(np.random.default_rng().normal()), shape)
    return error(params, batch) + lax.stop_gradient(noise)


def summed_over_devices(params: Any, batch: Any) -> Any:
    """Already reduced over the device axis inside the loss."""
    return lax.psum(error(params, batch), "data")


def counts_rows(params: Any, model_state: Any, batch: Any, rng: Any) -> Any:
    """Keeps a count and a sum of what it saw."""
    rows = error(params, batch)
    seen = {"count": model_state["count"] + (batch["y"] > 0).sum(), "sum": model_state["sum"] + batch["x"].sum()}
    return paceline.Outcome(rows, {}, seen)


def centred(params: Any, batch: Any) -> Any:
    """Rows less the mean of the rows that are there, whatever is random."""
    return error(params, {**batch, "x": batch["x"] - batch["x"].mean(0)})


def flat(params: Any, batch: Any) -> Any:
    """A loss without a slope."""
    return error(jax.tree.map(jax.lax.stop_gradient, params), batch)
