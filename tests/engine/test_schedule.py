"""The learning rate: scaled with the batch, warmed up, counted in updates."""

from __future__ import annotations

import math

import numpy as np
import optax
import pytest

from paceline.base.errors import OptionError
from paceline.engine.parallel import Parallel
from paceline.engine.schedule import scaled_learning_rate
from tests.engine.helpers import SCHEMES, run, step_of

# 1, 0.9, 0.8, ...: case 12's schedule.
FALLING = optax.linear_schedule(1.0, 0.0, 10)
FALLING_DESCENT = optax.sgd(FALLING)
KEPT_DESCENT = optax.inject_hyperparams(optax.sgd)(learning_rate=FALLING)


def unit_gradient(params, batch):
    return params["w"] * batch["x"]


def ones(value: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": np.full(8, value, np.float32)}


def test_the_rate_rises_from_the_base_to_its_multiple():
    """Goyal et al. 2017: base 0.1 at 256 rows, 2,048 rows, warm-up 10: 0.1, 0.17, ..., 0.73, then 0.8 (to 1e-6)."""
    rate = scaled_learning_rate(base_rate=0.1, base_batch=256, batch=2048, warmup_steps=10)
    for update, wanted in [(0, 0.1), (1, 0.17), (5, 0.45), (9, 0.73), (10, 0.8), (11, 0.8), (10_000, 0.8)]:
        assert float(rate(update)) == pytest.approx(wanted, rel=1e-6)


def test_a_smaller_batch_has_a_smaller_rate():
    """64 rows where 256 were tuned: a quarter; without warm-up at once."""
    rate = scaled_learning_rate(base_rate=0.4, base_batch=256, batch=64)
    assert float(rate(0)) == float(rate(77)) == pytest.approx(0.1)


def test_the_cosine_falls_from_the_peak_to_zero():
    """Peak 0.8 at update 10, total 110: half at 60, 0.8 (1 + cos 0.3 pi) / 2 at 40, 0 at 110 and after (to 1e-6)."""
    rate = scaled_learning_rate(
        base_rate=0.1, base_batch=256, batch=2048, warmup_steps=10, total_steps=110, decay="cosine"
    )
    at_40 = 0.8 * (1 + math.cos(0.3 * math.pi)) / 2
    for update, wanted in [(0, 0.1), (10, 0.8), (40, at_40), (60, 0.4), (110, 0), (200, 0)]:
        assert float(rate(update)) == pytest.approx(wanted, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    "bad",
    [
        {"base_rate": 0.0},
        {"base_rate": -0.1},
        {"base_rate": float("nan")},
        {"base_batch": 0},
        {"batch": 0},
        {"warmup_steps": -1},
    ],
)
def test_numbers_that_make_no_rate_are_refused(bad):
    """The error names them all; positive ones work."""
    good = {"base_rate": 0.1, "base_batch": 256, "batch": 512, "warmup_steps": 0}
    with pytest.raises(OptionError, match="positive") as caught:
        scaled_learning_rate(**good | bad)
    ((name, value),) = bad.items()
    assert f"{name}={value}" in caught.value.what
    assert float(scaled_learning_rate(**good)(0)) == pytest.approx(0.2)


@pytest.mark.parametrize("total", [None, 5, 10])
def test_a_cosine_needs_an_end_after_the_warm_up(total):
    """No end, or one within the warm-up of 10: refused; 11 works."""
    options = {"base_rate": 0.1, "base_batch": 1, "batch": 2, "warmup_steps": 10, "decay": "cosine"}
    with pytest.raises(OptionError, match="total_steps") as caught:
        scaled_learning_rate(**options, total_steps=total)
    assert "larger than warmup_steps" in caught.value.fix
    assert float(scaled_learning_rate(**options, total_steps=11)(10)) == pytest.approx(0.2)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_schedule_counts_updates_and_not_microbatches(scheme, parts):
    """Five updates at 1, 0.9, ..., 0.6 of a unit gradient: -4.0, whatever the microbatches; the rates are reported."""
    step = step_of(unit_gradient, FALLING_DESCENT, Parallel(scheme, accumulation=parts), devices=2, schedule=FALLING)
    got = run(step, [ones()] * 5, params={"w": np.float32(0)})
    assert got.state["params"]["w"] == pytest.approx(-4.0, rel=1e-6)
    assert [values["learning_rate"] for values in got.metrics] == pytest.approx([1, 0.9, 0.8, 0.7, 0.6])


def test_a_skipped_update_does_not_advance_the_schedule():
    """Good, bad, good: rates 1, 0.9, 0.9, of which the second is not applied: -1.9."""
    step = step_of(
        unit_gradient, FALLING_DESCENT, Parallel("per_device", nonfinite="skip"), devices=2, schedule=FALLING
    )
    got = run(step, [ones(), ones(math.nan), ones()], params={"w": np.float32(0)})
    assert got.state["params"]["w"] == pytest.approx(-1.9, rel=1e-6)
    assert [values["learning_rate"] for values in got.metrics] == pytest.approx([1, 0.9, 0.9])


def test_a_rate_that_the_optimizer_keeps_is_reported_without_being_told():
    """`optax.inject_hyperparams`: the rate of each of five updates is the one that it was made with."""
    got = run(
        step_of(unit_gradient, KEPT_DESCENT, Parallel("per_device"), devices=2),
        [ones()] * 5,
        params={"w": np.float32(0)},
    )
    assert got.state["params"]["w"] == pytest.approx(-4.0, rel=1e-6)
    assert [values["learning_rate"] for values in got.metrics] == pytest.approx([1, 0.9, 0.8, 0.7, 0.6])


def test_without_a_schedule_no_rate_is_reported():
    got = run(
        step_of(unit_gradient, FALLING_DESCENT, Parallel("per_device"), devices=2),
        [ones()],
        params={"w": np.float32(0)},
    )
    assert "learning_rate" not in got.metrics[0]
