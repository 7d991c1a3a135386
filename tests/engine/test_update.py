"""What every device does alike after the reduction: clipping, the finite check, the moving average."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.engine.parallel import Parallel
from paceline.engine.update import _new_or_old
from tests.engine.helpers import SCHEMES, place, run, shard_bytes, start, step_of, to_numpy

DESCENT = optax.sgd(1.0)
# A schedule, so that the optimizer counts its updates.
COUNTED = optax.sgd(lambda count: 0.1)
NAN, INF = float("nan"), float("inf")

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def dot(params, batch):
    """The gradient of a row is the row."""
    return batch["g"] @ params["p"]


def two_leaves(params, batch):
    """Each leaf's gradient, and a part of the loss that has none, come from the batch."""
    return params["bias"] * batch["b"] + params["layer"]["kernel"] * batch["k"] + batch["c"]


def rows(*, b=(1, 1, 1, 1), k=(1, 1, 1, 1), c=(0, 0, 0, 0)) -> dict[str, np.ndarray]:
    return {name: np.asarray(values, np.float32) for name, values in {"b": b, "k": k, "c": c}.items()}


def one() -> dict:
    return {"bias": np.float32(1), "layer": {"kernel": np.float32(1)}}


def update_counts(got) -> list[int]:
    """The only leaf of the optimizer's state is its count."""
    return [int(leaf) for leaf in jax.tree.leaves(got.state["opt_state"])]


@functools.cache
def counted_step(scheme, nonfinite="skip"):
    return step_of(two_leaves, COUNTED, Parallel(scheme, nonfinite=nonfinite, ema_decay=0.5), devices=4)


@every_scheme
def test_the_mean_is_clipped_and_not_each_devices_gradient(scheme):
    """Case 10, limit 1: mean (1.575, 1.9), norm 2.4679, so (0.6382, 0.7699); not (0.225, 0.1)."""
    gradients = np.array([[6, 8], [0.3, -0.4], [0, 0], [0, 0]], np.float32)
    step = step_of(dot, DESCENT, Parallel(scheme, clip_norm=1.0), devices=4)
    got = run(step, [{"g": gradients}], params={"p": np.zeros(2, np.float32)})
    np.testing.assert_allclose(-got.state["params"]["p"], [0.6382, 0.7699], atol=5e-5)
    assert got.metrics[0]["gradient_norm"] == pytest.approx(np.hypot(1.575, 1.9), rel=1e-6)


def test_a_gradient_within_the_limit_is_left_as_it_is():
    """Mean (0.3, 0.4) of norm 0.5 under limit 1: bit for bit; and a zero gradient gives no NaN."""
    step = step_of(dot, DESCENT, Parallel("per_device", clip_norm=1.0), devices=4)
    for gradient in ([0.3, 0.4], [0.0, 0.0]):
        batch = {"g": np.tile(np.array(gradient, np.float32), (4, 1))}
        got = run(step, [batch], params={"p": np.zeros(2, np.float32)})
        np.testing.assert_array_equal(-got.state["params"]["p"], np.array(gradient, np.float32))


@every_scheme
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_gradient_that_is_not_finite_on_one_device_is_skipped_by_all(scheme, bad):
    """Case 13, gradients [1, bad, 1, 1] at rate 0.1: 1.0 in the bytes of every device, counted, nothing else moved."""
    got = run(counted_step(scheme), [rows(k=[1, bad, 1, 1])], params=one())
    for leaf in (got.placed.params["layer"]["kernel"], got.placed.params["bias"], got.placed.ema["bias"]):
        assert shard_bytes(leaf) == [np.float32(1).tobytes()] * 4
    assert shard_bytes(got.placed.skipped) == [np.int32(1).tobytes()] * 4
    assert got.state["step"] == 1
    assert got.metrics[0]["skipped_updates"] == 1
    assert update_counts(got) == [0]
    assert got.last.bad_leaves() == ["layer.kernel"]


@every_scheme
def test_training_goes_on_after_a_skipped_update(scheme):
    """Bad, good, good: 1 - 0.2 on every device, the optimizer counts 2 updates, the state 3 steps and 1 skipped."""
    got = run(counted_step(scheme), [rows(b=[1, 1, NAN, 1]), rows(), rows()], params=one())
    assert got.state["params"]["bias"] == pytest.approx(0.8)
    assert [values["skipped_updates"] for values in got.metrics] == [1, 1, 1]
    assert (got.state["step"], got.state["skipped"]) == (3, 1)
    assert update_counts(got) == [2]
    assert np.isnan(got.metrics[0]["gradient_norm"]) and got.metrics[1]["gradient_norm"] == pytest.approx(np.sqrt(2))


def test_a_loss_that_is_not_finite_is_skipped_though_its_gradient_is():
    """NaN in a part of the loss without gradient: skipped, and no leaf is blamed."""
    got = run(counted_step("per_device"), [rows(c=[0, 0, 0, NAN])], params=one())
    assert got.state["params"]["bias"] == 1 and got.state["skipped"] == 1
    assert np.isnan(got.metrics[0]["loss"]) and got.last.bad_leaves() == []


def test_every_bad_leaf_is_named_and_no_good_one():
    """One, both, none: dotted names in tree order."""
    step = counted_step("per_device")
    named = {"layer.kernel": rows(k=[INF, 1, 1, 1]), "bias": rows(b=[1, 1, 1, NAN])}
    for name, batch in named.items():
        assert run(step, [batch], params=one()).last.bad_leaves() == [name]
    assert run(step, [rows(b=[NAN] * 4, k=[NAN] * 4)], params=one()).last.bad_leaves() == ["bias", "layer.kernel"]
    assert run(step, [rows()], params=one()).last.bad_leaves() == []


@pytest.mark.parametrize("scheme", ["global_view", "per_device"])
def test_under_stop_the_state_stays_the_last_good_one(scheme):
    """Good, bad, good: the third is not applied either, so what is saved after the stop is the state before it."""
    batches = [rows(), rows(k=[1, NAN, 1, 1]), rows()]
    got = run(counted_step(scheme, "stop"), batches, params=one())
    assert got.state["params"]["bias"] == pytest.approx(0.9) and got.state["params"]["layer"][
        "kernel"
    ] == pytest.approx(0.9)
    assert got.state["ema"]["bias"] == pytest.approx(0.95)
    assert update_counts(got) == [1]
    assert (got.state["step"], got.state["skipped"]) == (3, 1)


def test_the_moving_average_follows_the_parameters():
    """Decay 0.5 from 1, params 0.9, 0.8, 0.7 after unit gradients at rate 0.1: average 0.95, 0.875, 0.7875."""
    step = counted_step("per_device")
    state = start(step, one())
    for wanted in (0.95, 0.875, 0.7875):
        state, _ = step(state, *place(step, rows()))
        assert to_numpy(step, state)["ema"]["bias"] == pytest.approx(wanted, rel=1e-6)
    assert step_of(dot, DESCENT, Parallel()).spec.parallel.ema_decay is None
    assert start(step_of(dot, DESCENT, Parallel()), {"p": np.zeros(2)}).ema is None


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_an_update_that_is_left_out_is_left_out_on_every_platform(platform):
    """As a branch on a CPU, as a selection elsewhere: the new tree if applied, else the old one, NaN or not."""
    old = {"a": jnp.zeros(3), "key": jax.random.key(0)}
    new = {"a": jnp.array([1, NAN, 2.0]), "key": jax.random.key(1)}
    choose = jax.jit(lambda applied: _new_or_old(applied, lambda: new, old=old, platform=platform))
    for applied, wanted in ((True, new), (False, old)):
        got = choose(applied)
        np.testing.assert_array_equal(got["a"], wanted["a"])
        np.testing.assert_array_equal(jax.random.key_data(got["key"]), jax.random.key_data(wanted["key"]))


OPTIMIZERS = {
    "adamw": optax.adamw(0.1, weight_decay=0.1),
    "lamb": optax.lamb(0.1),
    "every second update": optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(),
    "noise from a key in its state": optax.chain(optax.add_noise(0.1, 0.5, 3), optax.sgd(0.1)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_any_optimizer_of_optax_updates_as_on_one_device(optimizer, x64):
    """Three updates on four devices: params equal a plain optax loop with the mean gradient to 1e-10 (float64)."""
    batches = list(np.random.default_rng(0).normal(size=(3, 4, 2)))
    step = step_of(dot, optimizer, Parallel("per_device"), devices=4)
    got = run(step, [{"g": batch} for batch in batches], params={"p": np.ones(2)})

    @jax.jit
    def update(params, opt_state, mean):
        updates, opt_state = optimizer.update({"p": mean}, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params = {"p": jnp.ones(2)}
    opt_state = optimizer.init(params)
    for batch in batches:
        params, opt_state = update(params, opt_state, batch.mean(axis=0))
    np.testing.assert_allclose(got.state["params"]["p"], params["p"], rtol=1e-10)


def test_an_optimizer_may_ask_for_the_loss():
    """`optax.contrib.reduce_on_plateau` is given the loss: it halves its scale once that is 1 twice."""
    optimizer = optax.chain(DESCENT, optax.contrib.reduce_on_plateau(factor=0.5, patience=1))
    step = step_of(two_leaves, optimizer, Parallel("per_device"), devices=4)
    batch = rows(k=[0, 0, 0, 0], b=[0, 0, 0, 0], c=[1, 1, 1, 1])
    got = run(step, [batch] * 2, params=one())
    assert got.state["opt_state"][1].scale == 0.5
