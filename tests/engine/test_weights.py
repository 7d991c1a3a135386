"""The forms of a loss, summed over devices and microbatches: totals over weights, never a mean of means."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.base.errors import LossError
from paceline.engine.parallel import Parallel
from paceline.tasks.losses import Weighted
from tests.engine.helpers import SCHEMES, run, shard_bytes, step_of

DESCENT = optax.sgd(1.0)

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def square_rows(params, batch):
    return (batch["x"] * params["w"] - batch["y"]) ** 2


def weighted_square_rows(params, batch):
    return Weighted(batch["weight"] * square_rows(params, batch), batch["weight"])


def weighted_square(params, batch):
    """The scalar form, with a nominal weight that is far off."""
    rows = weighted_square_rows(params, batch)
    return Weighted(rows.total.sum(), rows.weight.sum(), nominal=1e4)


def mean_square(params, batch):
    return square_rows(params, batch).mean()


def token_rows(params, batch):
    """A row of tokens with the loss that the row says, times w."""
    mask = jnp.arange(128) < batch["tokens"][:, None]
    losses = batch["loss"][:, None] * params["w"] * mask
    return Weighted(losses.sum(axis=1), mask.sum(axis=1))


def tokens_in_all(params, batch):
    rows = token_rows(params, batch)
    return Weighted(rows.total.sum(), rows.weight.sum())


def summed_over_devices(params, batch):
    return Weighted((params["w"] ** 2 + 1) * batch["d"], jnp.full(batch["d"].shape, 0.5))


def weight_of_the_model(params, batch):
    """A weight that depends on the parameters, as an attention over rows would give."""
    return Weighted(params["w"] * batch["x"], params["w"] ** 2 * batch["weight"])


def half_precision_count(params, batch):
    """The weight as a model in bfloat16 would sum it: the step must count on in more than 8 bits."""
    return Weighted(params["w"] * batch["x"], jnp.ones(batch["x"].shape, jnp.bfloat16))


# (devices, parts, rows): few shapes, since each is a program.
SHAPES = [(2, 1, 6), (4, 2, 16), (8, 1, 8)]


@st.composite
def weighted_batches(draw):
    shape = draw(st.sampled_from(SHAPES))
    rows = shape[2]
    seed = draw(st.integers(0, 2**16))
    valid = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    weight = np.array(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 7.0]), min_size=rows, max_size=rows)))
    return shape, seed, valid, weight


def numpy_mean(batch, weight, w):
    """Weighted mean of the squares and its derivative in w, 0 when nothing weighs."""
    error = batch["x"] * w - batch["y"]
    total = weight.sum() or 1.0
    return (weight * error**2).sum() / total, (weight * 2 * error * batch["x"]).sum() / total


@settings(max_examples=40)
@given(drawn=weighted_batches())
@example(drawn=(SHAPES[1], 0, np.zeros(16, bool), np.ones(16)))
@example(drawn=(SHAPES[0], 1, np.ones(6, bool), np.zeros(6)))
@example(drawn=(SHAPES[2], 2, np.arange(8) == 5, np.ones(8)))
@pytest.mark.parametrize("loss", [square_rows, weighted_square_rows])
def test_an_update_is_that_of_the_mean_over_valid_rows(loss, drawn):
    """Any mask, any weights with zeros among them: loss and gradient equal numpy's to 1e-12 (float64, `per_device`)."""
    (devices, parts, rows), seed, valid, weight = drawn
    random = np.random.default_rng(seed)
    batch = {"x": random.normal(size=rows), "y": random.normal(size=rows), "weight": weight}
    with jax.enable_x64(True):
        step = step_of(loss, DESCENT, Parallel("per_device", accumulation=parts), devices=devices)
        got = run(step, [batch], params={"w": np.array(0.7)}, valid=valid)
    counted = valid * weight if loss is weighted_square_rows else valid * 1.0
    mean, slope = numpy_mean(batch, counted, 0.7)
    np.testing.assert_allclose(got.metrics[0]["loss"], mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got.state["params"]["w"], 0.7 - slope, rtol=1e-12, atol=1e-12)
    assert got.metrics[0]["weight"] == counted.sum()
    assert (got.state["step"], got.state["skipped"], got.state["empty"]) == (1, 0, counted.sum() == 0)


@every_scheme
def test_nothing_valid_changes_nothing_but_the_step(scheme):
    """All rows masked, Adam and a moving average: loss 0, no NaN, params, state and average as before, not skipped."""
    parallel = Parallel(scheme, nonfinite="skip", ema_decay=0.5, clip_norm=1.0)
    step = step_of(square_rows, optax.adam(0.1), parallel, devices=4)
    batch = {"x": np.ones(4, np.float32), "y": np.zeros(4, np.float32)}
    got = run(step, [batch], params={"w": np.float32(0.7)}, valid=np.zeros(4, bool))
    values = {"loss": 0, "gradient_norm": 0, "weight": 0, "skipped_updates": 0}
    assert got.metrics[0] == values
    assert (got.state["step"], got.state["skipped"], got.state["empty"]) == (1, 0, 1)
    assert got.state["params"]["w"] == got.state["ema"]["w"] == np.float32(0.7)
    adam = got.state["opt_state"][0]
    assert adam.count == adam.mu["w"] == adam.nu["w"] == 0


@every_scheme
@pytest.mark.parametrize("loss", [token_rows, tokens_in_all])
def test_tokens_weigh_alike_on_whichever_device_they_are(scheme, loss):
    """Case 9: 11 tokens of loss 2 on one device, 101 of loss 1 on another: 123/112, and so is the gradient."""
    step = step_of(loss, DESCENT, Parallel(scheme), devices=2)
    batch = {"tokens": np.array([11, 101]), "loss": np.array([2.0, 1.0], np.float32)}
    got = run(step, [batch], params={"w": np.float32(1)})
    assert got.metrics[0]["loss"] == pytest.approx(123 / 112, rel=1e-6)
    assert round(got.metrics[0]["loss"], 4) == 1.0982
    assert got.state["params"]["w"] == pytest.approx(1 - 123 / 112, rel=1e-5)
    assert got.metrics[0]["weight"] == 112


@every_scheme
def test_a_sum_over_devices_is_neither_averaged_nor_multiplied(scheme):
    """Case 8: (w^2 + 1) d over d = [0, 1] with total weight 1, w = 1: loss 2, gradient 2, the same on each device."""
    step = step_of(summed_over_devices, DESCENT, Parallel(scheme), devices=2)
    got = run(step, [{"d": np.array([0.0, 1.0], np.float32)}], params={"w": np.float32(1)})
    assert got.metrics[0]["loss"] == 2 and got.metrics[0]["gradient_norm"] == 2
    assert shard_bytes(got.placed.params["w"]) == [np.float32(-1).tobytes()] * 2


@pytest.mark.parametrize("scheme, parts", [("global_view", 2), ("per_device", 2), ("pmap", 1)])
def test_a_scalar_loss_is_the_mean_of_the_rows_that_it_saw(scheme, parts):
    """Four devices, one and two microbatches: loss and gradient equal numpy's mean over all rows to 1e-12 (float64)."""
    random = np.random.default_rng(4)
    batch = {"x": random.normal(size=16), "y": random.normal(size=16)}
    with jax.enable_x64(True):
        step = step_of(mean_square, DESCENT, Parallel(scheme, accumulation=parts), devices=4)
        got = run(step, [batch], params={"w": np.array(0.7)})
    mean, slope = numpy_mean(batch, np.ones(16), 0.7)
    assert got.metrics[0]["loss"] == pytest.approx(mean, rel=1e-12)
    assert got.state["params"]["w"] == pytest.approx(0.7 - slope, rel=1e-12)


def test_a_nominal_weight_does_not_change_the_result():
    """Rows without one, and a sum whose nominal weight of 10,000 is far off: equal numpy's to 1e-12 (float64)."""
    random = np.random.default_rng(5)
    batch = {"x": random.normal(size=16), "y": random.normal(size=16), "weight": random.random(16)}
    mean, slope = numpy_mean(batch, batch["weight"], 0.7)
    with jax.enable_x64(True):
        for loss in (weighted_square_rows, weighted_square):
            step = step_of(loss, DESCENT, Parallel("per_device", accumulation=2), devices=4)
            got = run(step, [batch], params={"w": np.array(0.7)})
            assert got.metrics[0]["loss"] == pytest.approx(mean, rel=1e-12)
            assert got.state["params"]["w"] == pytest.approx(0.7 - slope, rel=1e-12)


@every_scheme
def test_weights_carry_no_gradient(scheme):
    """Total w x, weight w^2 at w = 2: the gradient is sum x / sum w^2 = 20 / 16, not that of the quotient."""
    batch = {"x": np.array([2, 4, 6, 8], np.float32), "weight": np.ones(4, np.float32)}
    got = run(step_of(weight_of_the_model, DESCENT, Parallel(scheme), devices=2), [batch], params={"w": np.float32(2)})
    assert got.metrics[0]["loss"] == 40 / 16 and got.metrics[0]["gradient_norm"] == 20 / 16
    assert got.state["params"]["w"] == 2 - 20 / 16


@pytest.mark.parametrize("nominal", [0, -3.0, float("nan"), float("inf")])
def test_a_nominal_weight_that_cannot_be_divided_by_is_refused(nominal):
    """It would turn every gradient into zero or NaN; the fix says what it should be."""

    def loss(params, batch):
        return Weighted(params["w"] * batch["x"], batch["x"], nominal=nominal)

    with pytest.raises(LossError, match="positive") as caught:
        run(step_of(loss, DESCENT), [{"x": np.ones(4, np.float32)}], params={"w": np.float32(1)})
    assert f"nominal={nominal!r}" in caught.value.what


@pytest.mark.parametrize("scheme", ["global_view", "per_device"])
def test_a_weight_in_bfloat16_is_counted_in_float32(scheme):
    """602 rows of weight 1 in bfloat16, which has 600 and 604 but no 602: the weight is 602 and the mean of ones 1."""
    step = step_of(half_precision_count, DESCENT, Parallel(scheme), devices=2)
    got = run(step, [{"x": np.ones(602, np.float32)}], params={"w": np.float32(1)})
    assert got.metrics[0]["weight"] == 602
    assert got.metrics[0]["loss"] == pytest.approx(1, rel=1e-6) and got.state["params"]["w"] == pytest.approx(
        0, abs=1e-6
    )
