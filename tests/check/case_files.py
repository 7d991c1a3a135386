"""Files as users write them, one for each public report: a task, and steps for `jax.pmap` with and without its mistake.

Owns: the sources. Not here: what Paceline has to say of them (`test_cases`).
"""

from __future__ import annotations

HEADER = """\
import functools
import jax
import jax.numpy as jnp
import numpy as np
import optax
import paceline
from jax import lax

RATE = 1.0
OPTIMIZER = optax.sgd(RATE)

def each_device(count):
    return functools.partial(jax.pmap, axis_name="data", devices=jax.devices()[:count])

def descend(grads, opt_state, params):
    changes, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, changes), opt_state

def job(loss, init, rows, outcome=None, **task):
    return paceline.Job(
        task=paceline.task(loss, init=init, **task), optimizer=OPTIMIZER, data=paceline.rows(rows),
        evaluation=paceline.rows(rows), outcome=outcome,
    )
"""

REPLICATION = """
def loss(params, batch):
    return (batch["x"] @ params["w"] - batch["y"]) ** 2

def task():
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    return job(loss, lambda rng: {"w": jnp.zeros(3)}, {"x": x, "y": x.sum(-1)})

@each_device(4)
def step(state, batch):
    grads = lax.pmean(jax.grad(lambda p: loss(p, batch).mean())(state["params"]), "data")
    params, opt_state = descend(grads, state["opt_state"], state["params"])
    return {"params": params, "opt_state": opt_state}

def create(params, opt_state):
    return {"params": params, "opt_state": opt_state}

def replicated(params, opt_state):
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), create(params, opt_state))

@functools.partial(jax.pmap, devices=jax.devices()[:4])
def nameless(params, opt_state, batch):
    grads = lax.pmean(jax.grad(lambda p: loss(p, batch).mean())(params), "batch")
    return descend(grads, opt_state, params)
"""

AXIS_NAME = """
def loss(params, model_state, batch, rng):
    mean = lax.pmean(batch["x"].mean(), "AXIS")
    square = lax.pmean((batch["x"] ** 2).mean(), "AXIS")
    kept = {"mean": 0.9 * model_state["mean"] + 0.1 * mean, "var": 0.9 * model_state["var"] + 0.1 * (square - mean**2)}
    return paceline.Outcome((params["w"] * (batch["x"] - mean) / jnp.sqrt(square - mean**2 + 0.1) - 1) ** 2, {}, kept)

def task():
    x = np.random.default_rng(0).normal(size=64).astype("float32")
    start = paceline.Initial({"w": jnp.ones(())}, {"mean": jnp.zeros(()), "var": jnp.ones(())})
    statistics = [paceline.RunningStatistics("mean", "var", 0.9)]
    return job(loss, lambda rng: start, {"x": x}, statistics=statistics)
"""

DROPOUT = """
KEY = jax.random.key(0)

def noisy(params, batch, key):
    kept = jax.random.bernoulli(key, 0.5, batch["x"].shape)
    return (jnp.where(kept, 2 * batch["x"], 0) @ params["w"] - 1) ** 2

def closed(params, batch):
    return noisy(params, batch, KEY)

LOSS = noisy

def task():
    return job(LOSS, lambda rng: {"w": jnp.ones(16) / 16}, {"x": np.ones((64, 16), np.float32)})

@each_device(4)
def closed_step(params, opt_state, batch):
    grads = lax.pmean(jax.grad(lambda p: noisy(p, batch, KEY).mean())(params), "data")
    return descend(grads, opt_state, params)

@each_device(4)
def shared_step(params, opt_state, batch, rng):
    grads = lax.pmean(jax.grad(lambda p: noisy(p, batch, rng).mean())(params), "data")
    return descend(grads, opt_state, params)

@each_device(4)
def folded_step(params, opt_state, batch, rng):
    key = jax.random.fold_in(rng, lax.axis_index("data"))
    grads = lax.pmean(jax.grad(lambda p: noisy(p, batch, key).mean())(params), "data")
    return descend(grads, opt_state, params)
"""

STATISTICS = """
def loss(params, model_state, batch, rng):
    mean, var = batch["x"].mean(), batch["x"].var()
    kept = {"mean": 0.9 * model_state["mean"] + 0.1 * mean, "var": 0.9 * model_state["var"] + 0.1 * var}
    return paceline.Outcome((params["w"] * (batch["x"] - mean) - 1) ** 2, {}, kept)

def task():
    start = paceline.Initial({"w": jnp.ones(())}, {"mean": jnp.zeros(()), "var": jnp.ones(())})
    statistics = [paceline.RunningStatistics("mean", "var", 0.9)]
    rows = {"x": np.repeat(np.arange(4, dtype=np.float32), 2)}
    return job(loss, lambda rng: start, rows, statistics=statistics, outcome=lambda state: {
        name: float(leaf) for name, leaf in state.model_state.items()
    })

def stepper(merge):
    @each_device(4)
    def step(params, opt_state, model_state, batch):
        def mean_loss(p):
            outcome = loss(p, model_state, batch, None)
            return outcome.loss.mean(), outcome.model_state
        grads, kept = jax.grad(mean_loss, has_aux=True)(params)
        return *descend(lax.pmean(grads, "data"), opt_state, params), merge(kept)
    return step

averaged = stepper(lambda kept: lax.pmean(kept, "data"))
apart = stepper(lambda kept: kept)
"""

SUM_OVER_DEVICES = """
def loss(params, batch):
    return paceline.Weighted((params["w"] ** 2 + 1) * batch["d"], jnp.full(batch["d"].shape, 0.5))

def task():
    rows = {"d": np.array([0, 1], np.float32)}
    return job(loss, lambda rng: {"w": jnp.ones(())}, rows, outcome=lambda state: {"w": float(state.params["w"])})

def local(params, batch):
    return ((params["w"] ** 2 + 1) * batch["d"]).sum()

@each_device(2)
def summed(params, opt_state, batch):
    return descend(lax.psum(jax.grad(local)(params, batch), "data"), opt_state, params)

@each_device(2)
def summed_twice(params, opt_state, batch):
    grads = jax.grad(lambda p: lax.psum(local(p, batch), "data"))(params)
    return descend(lax.psum(grads, "data"), opt_state, params)

@each_device(2)
def not_summed(params, opt_state, batch):
    return descend(jax.grad(lambda p: lax.psum(local(p, batch), "data") / 2)(params), opt_state, params)
"""

TOKENS = """
def tokens(params, batch):
    mask = jnp.arange(128) < batch["tokens"][:, None]
    return batch["loss"][:, None] * params["w"] * mask, mask

def weighted(params, batch):
    losses, mask = tokens(params, batch)
    return paceline.Weighted(losses.sum(1), mask.sum(1))

def own_mean(params, batch):
    losses, mask = tokens(params, batch)
    return losses.sum() / mask.sum()

LOSS = weighted

def task():
    rows = {"tokens": np.array([11, 101], np.int32), "loss": np.array([2, 1], np.float32)}
    return job(LOSS, lambda rng: {"w": jnp.ones(())}, rows, outcome=lambda state: {"w": float(state.params["w"])})

@each_device(2)
def right(params, opt_state, batch):
    count = lax.psum(tokens(params, batch)[1].sum(), "data")
    value, grads = jax.value_and_grad(lambda p: tokens(p, batch)[0].sum() / count)(params)
    return *descend(lax.psum(grads, "data"), opt_state, params), lax.psum(value, "data")

@each_device(2)
def mean_of_means(params, opt_state, batch):
    value, grads = jax.value_and_grad(own_mean)(params, batch)
    return *descend(lax.pmean(grads, "data"), opt_state, params), lax.pmean(value, "data")
"""

CLIPPING = """
def loss(params, batch):
    return batch["g"] @ params["w"]

def task():
    rows = {"g": np.array([[6, 8], [0.3, -0.4], [0, 0], [0, 0]], np.float32)}
    return job(loss, lambda rng: {"w": jnp.zeros(2)}, rows, outcome=lambda state: {
        f"w{number}": float(value) for number, value in enumerate(state.params["w"])
    })

def clipped(grads):
    return optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())[0]

@each_device(4)
def clip_first(params, opt_state, batch):
    grads = jax.grad(lambda p: loss(p, batch).mean())(params)
    return descend(lax.pmean(clipped(grads), "data"), opt_state, params)

@each_device(4)
def clip_last(params, opt_state, batch):
    grads = jax.grad(lambda p: loss(p, batch).mean())(params)
    return descend(clipped(lax.pmean(grads, "data")), opt_state, params)
"""

NOT_FINITE = """
OPTIMIZER = optax.sgd(0.1)

def loss(params, batch):
    return params["p"] * batch["g"]

def task():
    rows = {"g": np.array([1, np.nan, 1, 1], np.float32)}
    return job(loss, lambda rng: {"p": jnp.ones(())}, rows, outcome=lambda state: {"p": float(state.params["p"])})
"""

ACCURACY = """
OPTIMIZER = optax.sgd(0.1)
CORRECT = np.array([1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0], bool)

def loss(params, batch):
    return (params["w"] - batch["x"]) ** 2, {"accuracy": batch["correct"]}

def task():
    return job(loss, lambda rng: {"w": jnp.zeros(())}, {"x": np.arange(11, dtype=np.float32), "correct": CORRECT})

def stepper(accuracy):
    @each_device(4)
    def step(params, opt_state, batch, valid):
        weight = valid.astype(batch["x"].dtype)
        count = lax.psum(weight.sum(), "data")
        grads = jax.grad(lambda p: (weight * (p["w"] - batch["x"]) ** 2).sum() / count)(params)
        params, opt_state = descend(lax.psum(grads, "data"), opt_state, params)
        return params, opt_state, {"accuracy": accuracy(batch["correct"].astype(weight.dtype), weight, count)}
    return step

right = stepper(lambda correct, weight, count: lax.psum((correct * weight).sum(), "data") / count)
mean_of_means = stepper(lambda correct, weight, count: lax.pmean(
    (correct * weight).sum() / jnp.maximum(weight.sum(), 1), "data"
))
with_padding = stepper(lambda correct, weight, count: lax.pmean(correct.mean(), "data"))
once_a_device = stepper(lambda correct, weight, count: lax.psum(
    lax.psum((correct * weight).sum(), "data") / count, "data"
))
"""

GONE = """\
import jax
import jax.numpy as jnp

open("was_run", "w").close()
params = {"w": jnp.zeros(3)}
devices = jax.local_devices()
params = jax.device_put_replicated(params, devices)

def shards(batch):
    return jax.device_put_sharded(list(batch), devices)
"""

OLD_SHARD_MAP = """\
import functools
import jax
import optax
from jax.experimental.shard_map import shard_map
from jax.sharding import PartitionSpec as P

def make(mesh, loss, optimizer):
    @functools.partial(
        shard_map,
        mesh=mesh,
        in_specs=(P(), P(), P("data")),
        out_specs=(P(), P()),
        check_rep=False,
        auto=frozenset({"model"}),
    )
    def step(params, opt_state, batch):
        grads = jax.lax.pmean(jax.grad(loss)(params, batch), "data")
        changes, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, changes), opt_state

    return step
"""
