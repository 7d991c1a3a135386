"""K devices equal one: the same three updates by every scheme, on any number of devices, in any number of parts."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.engine.parallel import Parallel
from paceline.tasks.losses import Weighted
from tests.ends import grid
from tests.engine.helpers import SCHEMES, Ran, assert_close, run, step_of

ROWS, INPUTS, HIDDEN, STEPS, SEED = 32, 3, 5, 3, 7
RATE, CLIP, DECAY = 0.05, 3.0, 0.9
OPTIMIZER = optax.adam(RATE)

everywhere = pytest.mark.parametrize(
    "scheme, devices, parts",
    grid(((s, k, n) for s in SCHEMES for k in (1, 2, 4, 8) for n in (1, 4)), both=lambda s, k, n: k in (1, 4)),
)


def loss(params, batch, rng):
    """Two layers with dropout. Rows bring the rate with them: where `keep` is 1, nothing is random."""
    hidden = jnp.tanh(batch["x"] @ params["w"] + params["b"])
    keep = batch["keep"][:, None]
    hidden = jnp.where(jax.random.bernoulli(rng, keep, hidden.shape), hidden / keep, 0)
    error = hidden @ params["v"] - batch["y"]
    metrics = {"above": error > 0, "tokens": Weighted(batch["x"][:, 0] * error, batch["y"] ** 2)}
    return error**2, metrics


def data(*, random: bool) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(1)
    return [
        {
            "x": draw.normal(size=(ROWS, INPUTS)),
            "y": draw.normal(size=ROWS),
            "keep": np.full(ROWS, 0.6 if random else 1.0),
        }
        for _ in range(STEPS)
    ]


def start_params() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(2)
    return {"w": draw.normal(size=(INPUTS, HIDDEN)), "b": draw.normal(size=HIDDEN), "v": draw.normal(size=HIDDEN)}


RAGGED = np.random.default_rng(3).random(ROWS) < 0.5
RAGGED[8:16] = False  # all rows of one of four devices, and of two of eight


def ran(scheme: str, devices: int, parts: int, *, random: bool, valid: np.ndarray | None = None) -> Ran:
    parallel = Parallel(scheme, accumulation=parts, clip_norm=CLIP, ema_decay=DECAY)
    with jax.enable_x64(True):
        step = step_of(loss, OPTIMIZER, parallel, devices=devices)
        return run(step, data(random=random), params=start_params(), seed=SEED, valid=valid)


@functools.cache
def plain_jax() -> tuple[dict, list[dict[str, float]]]:
    """The same three updates as anyone would write them for one device: value_and_grad and optax."""
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), OPTIMIZER)

    def mean_loss(params, batch, key):
        rows, metrics = loss(params, batch, key)
        tokens = metrics["tokens"].total.sum() / metrics["tokens"].weight.sum()
        return rows.mean(), {"loss": rows.mean(), "above": metrics["above"].mean(), "tokens": tokens}

    @jax.jit
    def update(params, ema, opt_state, batch, key):
        gradient, values = jax.grad(mean_loss, has_aux=True)(params, batch, key)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        params = optax.apply_updates(params, updates)
        ema = jax.tree.map(lambda old, new: DECAY * old + (1 - DECAY) * new, ema, params)
        return params, ema, opt_state, values | {"gradient_norm": optax.tree.norm(gradient)}

    with jax.enable_x64(True):
        params = ema = jax.tree.map(jnp.asarray, start_params())
        opt_state, metrics = optimizer.init(params), []
        for number, batch in enumerate(data(random=True)):
            key = jax.random.fold_in(jax.random.key(SEED, impl="threefry2x32"), number)
            params, ema, opt_state, values = update(params, ema, opt_state, batch, key)
            metrics.append({name: float(value) for name, value in values.items()})
        return jax.tree.map(np.asarray, {"params": params, "ema": ema, "opt_state": opt_state[1]}), metrics


@functools.cache
def pencil(ragged: bool) -> dict[str, dict[str, np.ndarray]]:
    """The updates without anything random, in numpy alone: backward pass, clipping, Adam, moving average."""
    valid = RAGGED if ragged else np.ones(ROWS, bool)
    params = start_params()
    ema, first, second = dict(params), dict.fromkeys(params, 0.0), dict.fromkeys(params, 0.0)
    for count, batch in enumerate(data(random=False), start=1):
        gradient = _gradient(params, batch["x"][valid], batch["y"][valid])
        norm = np.sqrt(sum((leaf**2).sum() for leaf in gradient.values()))
        for name, leaf in gradient.items():
            leaf = leaf * min(1, CLIP / norm)
            first[name] = 0.9 * first[name] + 0.1 * leaf
            second[name] = 0.999 * second[name] + 0.001 * leaf**2
            mean, square = first[name] / (1 - 0.9**count), second[name] / (1 - 0.999**count)
            params[name] = params[name] - RATE * mean / (np.sqrt(square) + 1e-8)
            ema[name] = DECAY * ema[name] + (1 - DECAY) * params[name]
    return {"params": params, "ema": ema}


def _gradient(params, x, y):
    hidden = np.tanh(x @ params["w"] + params["b"])
    outer = 2 * (hidden @ params["v"] - y) / len(y)
    inner = outer[:, None] * params["v"] * (1 - hidden**2)
    return {"w": x.T @ inner, "b": inner.sum(0), "v": hidden.T @ outer}


@everywhere
def test_three_updates_with_dropout_equal_those_of_one_device(scheme, devices, parts):
    """Params, moving average, Adam's state, loss, gradient norm and metrics equal plain JAX to 1e-10 (float64)."""
    wanted, wanted_metrics = plain_jax()
    got = ran(scheme, devices, parts, random=True)
    assert_close({name: got.state[name] for name in wanted}, wanted, tolerance=1e-10)
    for number, values in enumerate(wanted_metrics):
        assert_close({name: got.metrics[number][name] for name in values}, values, tolerance=1e-10)
    assert got.state["step"] == STEPS and got.state["skipped"] == 0


def test_the_gradient_is_clipped_in_some_of_the_updates_compared():
    """Norms on both sides of the limit: the equality above covers clipped and unclipped updates."""
    norms = [values["gradient_norm"] for values in plain_jax()[1]]
    assert min(norms) < CLIP < max(norms)


@everywhere
def test_three_updates_equal_numpy(scheme, devices, parts):
    """Without dropout, params and moving average equal a training written in numpy to 1e-10 (float64)."""
    got = ran(scheme, devices, parts, random=False)
    assert_close({"params": got.state["params"], "ema": got.state["ema"]}, pencil(ragged=False), tolerance=1e-10)


@everywhere
def test_masked_rows_count_for_nothing_however_they_are_spread(scheme, devices, parts):
    """Half of the rows masked, among them all of one device: equal to numpy on the others to 1e-10 (float64)."""
    got = ran(scheme, devices, parts, random=False, valid=RAGGED)
    assert_close({"params": got.state["params"], "ema": got.state["ema"]}, pencil(ragged=True), tolerance=1e-10)
    assert [values["weight"] for values in got.metrics] == [RAGGED.sum()] * STEPS


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_same_seed_gives_the_same_bits(scheme):
    """Twice three updates with dropout on four devices: every leaf of the state bitwise equal, the metrics too."""
    first, again = (ran(scheme, 4, 4, random=True) for _ in range(2))
    assert [leaf.tobytes() for leaf in jax.tree.leaves(first.state)] == [
        leaf.tobytes() for leaf in jax.tree.leaves(again.state)
    ]
    assert first.metrics == again.metrics
