"""A loss that reduces over the device axis itself: on one device, by any scheme, and under another axis name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from paceline.base.errors import AxisNameError
from paceline.engine.evaluation import EvaluationFunction
from paceline.engine.parallel import Parallel
from paceline.tasks.losses import Outcome
from paceline.tasks.task import task
from tests.engine.helpers import run, step_of

DESCENT = optax.sgd(1.0)


def synced(params, batch):
    """Rows normalised by the mean and variance over all devices, as a BatchNorm with an axis name does."""
    x = batch["x"] * params["w"]
    mean = lax.pmean(x.mean(), "data")
    variance = lax.pmean((x**2).mean(), "data") - mean**2
    return ((x - mean) / jnp.sqrt(variance + 1) - batch["y"]) ** 2


def mean_over_devices(params, batch):
    """The tutorials' form: a scalar, reduced by the loss itself."""
    return lax.pmean(((batch["x"] * params["w"] - batch["y"]) ** 2).mean(), "data")


def other_axis(params, batch):
    return lax.pmean((batch["x"] * params["w"]).mean(), "batch")


def rows() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(2)
    return {"x": draw.normal(1, 2, size=8), "y": draw.normal(size=8)}


def synced_by_numpy(w: float) -> float:
    x = rows()["x"] * w
    return float((((x - x.mean()) / np.sqrt(x.var() + 1) - rows()["y"]) ** 2).mean())


def mean_by_numpy(w: float) -> float:
    return float(((rows()["x"] * w - rows()["y"]) ** 2).mean())


@pytest.mark.parametrize(
    "scheme, devices",
    [("global_view", 1), ("per_device", 1), ("pmap", 1), ("global_view", 4), ("per_device", 4), ("pmap", 4)],
)
@pytest.mark.parametrize("loss, by_numpy", [(synced, synced_by_numpy), (mean_over_devices, mean_by_numpy)])
def test_a_loss_that_names_the_data_axis_works_on_one_device_and_by_every_scheme(loss, by_numpy, scheme, devices):
    """Case 5: loss equal to numpy's over all rows to 1e-10, gradient to its central difference to 1e-7 (float64)."""
    with jax.enable_x64(True):
        got = run(step_of(loss, DESCENT, Parallel(scheme), devices=devices), [rows()], params={"w": np.array(0.8)})
    assert got.metrics[0]["loss"] == pytest.approx(by_numpy(0.8), rel=1e-10)
    slope = (by_numpy(0.8 + 1e-5) - by_numpy(0.8 - 1e-5)) / 2e-5
    assert 0.8 - got.state["params"]["w"] == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("scheme, devices", [("global_view", 1), ("global_view", 2), ("per_device", 2), ("pmap", 2)])
def test_another_axis_name_is_named_with_the_right_one(scheme, devices):
    """Case 5: the error names the axis that the loss asks for and Paceline's own; with that one it works (above)."""
    with pytest.raises(AxisNameError) as caught:
        run(step_of(other_axis, DESCENT, Parallel(scheme), devices=devices), [rows()], params={"w": np.array(0.8)})
    assert "'batch'" in caught.value.what and "'data'" in caught.value.what
    assert "axis_name='data'" in caught.value.fix


@pytest.mark.parametrize("scheme", ["global_view", "per_device"])
def test_the_number_of_devices_that_a_loss_asks_for_is_of_its_program(scheme):
    """`global_view` sees the whole batch on one device; `per_device` sees four: `lax.axis_size` says so."""

    def loss(params, model_state, batch, rng):
        size = jnp.full(batch["x"].shape, lax.axis_size("data"))
        return Outcome(params["w"] * batch["x"], metrics={"devices": size})

    got = run(step_of(loss, DESCENT, Parallel(scheme), devices=4), [rows()], params={"w": np.array(0.8)})
    assert got.metrics[0]["devices"] == {"global_view": 1, "per_device": 4}[scheme]


def test_an_evaluation_that_names_the_data_axis_works():
    """The same loss evaluated: the mean over all rows, by numpy to 1e-6 (float32)."""
    evaluation = EvaluationFunction(task(synced), Parallel("per_device"))
    batch = jax.tree.map(lambda leaf: leaf.astype(np.float32), rows())
    totals = evaluation({"w": jnp.float32(0.8)}, {}, batch, jnp.ones(8, bool), jax.random.key(0))
    assert float(totals["loss"].mean()) == pytest.approx(synced_by_numpy(0.8), rel=1e-6)
