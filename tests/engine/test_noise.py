"""The norm of a device's own gradient: right for every split of the rows, free of collectives and of side effects."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.base.errors import SchemeError
from paceline.engine.parallel import Parallel
from paceline.insight.noise import NoiseScale
from paceline.tasks.losses import Weighted
from tests.engine.helpers import LOCAL_SCHEMES, lowered_text, run, step_of
from tests.engine.test_reduce import sent_bytes

ROWS, DIMS, DEVICES = 32, 6, 4
STILL, MOVING = optax.sgd(0.0), optax.adam(0.05)


def distance(params, batch):
    """Half the squared distance to a point, one a row: the gradient of a row is ``w - x``."""
    return 0.5 * jnp.sum((params["w"] - batch["x"]) ** 2, axis=1)


def counted(params, batch):
    """The same as a sum over tokens, of which each row has its own number."""
    return Weighted(batch["count"] * distance(params, batch), batch["count"])


def points(steps: int, *, rows: int = ROWS, spread: float = 1.0) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(5)
    return [
        {
            "x": (spread * draw.normal(size=(rows, DIMS)) + 1.0).astype(np.float32),
            "count": draw.integers(1, 9, size=rows).astype(np.float32),
        }
        for _ in range(steps)
    ]


def zeros() -> dict[str, np.ndarray]:
    return {"w": np.zeros(DIMS, np.float32)}


def by_hand(batch: dict[str, np.ndarray], weight: np.ndarray) -> tuple[float, int]:
    """Root of the mean square of the devices' gradients at w = 0, weighted by their rows, and how many have rows."""
    gradients, squares, held = -batch["x"].astype(np.float64), 0.0, 0
    for rows, weights in zip(np.split(gradients, DEVICES), np.split(weight, DEVICES), strict=True):
        if weights.sum() > 0:
            mean = (weights[:, None] * rows).sum(0) / weights.sum()
            squares, held = squares + weights.sum() / weight.sum() * (mean**2).sum(), held + 1
    return float(np.sqrt(squares)), held


RAGGED = np.arange(ROWS) < 11  # of four devices, one has all of its rows, one has three, two have none
OPTIONS = {
    "plain": (distance, Parallel("per_device", noise_scale=True), None, 1e-6),
    "pmap": (distance, Parallel("pmap", noise_scale=True), None, 1e-6),
    "ragged": (distance, Parallel("per_device", noise_scale=True), RAGGED, 1e-6),
    "tokens": (counted, Parallel("per_device", noise_scale=True), RAGGED, 1e-6),
    "microbatches": (counted, Parallel("per_device", noise_scale=True, accumulation=4), None, 1e-6),
    "clipped": (distance, Parallel("per_device", noise_scale=True, clip_norm=1e-3), None, 1e-6),
    "bfloat16 wire": (distance, Parallel("per_device", noise_scale=True, reduce_dtype="bfloat16"), None, 1e-6),
    "float16": (distance, Parallel("per_device", noise_scale=True, precision="float16"), None, 1e-2),
    "zero1": (distance, Parallel("per_device", noise_scale=True, placement="zero1"), None, 1e-6),
    "fsdp": (distance, Parallel("per_device", noise_scale=True, placement="fsdp"), None, 1e-6),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_norm_of_the_devices_own_gradients_is_that_of_numpy(name):
    """Weighted by rows or tokens, padding left out, unscaled, before clipping and rounding; relative tolerance 1e-6."""
    loss, parallel, valid, tolerance = OPTIONS[name]
    (batch,) = points(1)
    weight = batch["count"].astype(np.float64) if loss is counted else np.ones(ROWS)
    wanted, devices = by_hand(batch, weight * (1 if valid is None else valid))
    got = run(step_of(loss, STILL, parallel, devices=DEVICES), [batch], params=zeros(), valid=valid).metrics[0]
    np.testing.assert_allclose(got["local_gradient_norm"], wanted, rtol=tolerance)
    assert got["gradient_devices"] == devices


def test_a_batch_without_any_row_says_nothing():
    """No weight anywhere: norm 0 on 0 devices, and nothing that is not a number."""
    step = step_of(distance, STILL, Parallel("per_device", noise_scale=True), devices=DEVICES)
    got = run(step, points(1), params=zeros(), valid=np.zeros(ROWS, bool)).metrics[0]
    assert (got["local_gradient_norm"], got["gradient_devices"]) == (0.0, 0.0)


@pytest.mark.parametrize("scheme", LOCAL_SCHEMES)
def test_measuring_the_noise_changes_no_bit_of_the_state(scheme):
    """Five updates of adam on four devices, with and without: every leaf of the state and every other metric equal."""
    plain, measured = (
        run(step_of(counted, MOVING, Parallel(scheme, noise_scale=on), devices=DEVICES), points(5), params=zeros())
        for on in (False, True)
    )
    own = {"local_gradient_norm", "gradient_devices"}
    assert [leaf.tobytes() for leaf in jax.tree.leaves(plain.state)] == [
        leaf.tobytes() for leaf in jax.tree.leaves(measured.state)
    ]
    for without, values in zip(plain.metrics, measured.metrics, strict=True):
        assert values.keys() - without.keys() == own
        assert without == {name: value for name, value in values.items() if name not in own}


@pytest.mark.parametrize("scheme", LOCAL_SCHEMES)
def test_measuring_the_noise_takes_no_message_of_its_own(scheme):
    """As many collectives with it as without, and eight bytes more: two floats beside the totals."""
    without, measured = (
        sent_bytes(
            lowered_text(
                step_of(distance, STILL, Parallel(scheme, noise_scale=on), devices=DEVICES),
                points(1)[0],
                params=zeros(),
            )
        )
        for on in (False, True)
    )
    assert len(without) == len(measured)
    assert sum(measured) == sum(without) + 8


def test_one_device_measures_nothing():
    """It has no other gradient to compare with, so its metrics are those of a run without the option."""
    got = run(step_of(distance, STILL, Parallel("per_device", noise_scale=True)), points(1), params=zeros())
    assert "local_gradient_norm" not in got.metrics[0]


@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
def test_the_noise_scale_of_a_known_problem_is_found_within_a_tenth(ragged):
    """Points of variance 9 in six dims around 1, seen from 0: tr(S) = 54, |G|^2 = 6, so 9 rows. 400 steps; also with
    a device of three rows and two without any, where an unweighted mean of the norms would be off by more."""
    valid = RAGGED if ragged else np.ones(ROWS, bool)
    step = step_of(distance, STILL, Parallel("per_device", noise_scale=True), devices=DEVICES)
    scale, rows = NoiseScale(memory_steps=10_000), int(valid.sum())
    for values in run(step, points(400, spread=3.0), params=zeros(), valid=valid).metrics:
        small, big = values["local_gradient_norm"] ** 2, values["gradient_norm"] ** 2
        scale.update(small, big, small_rows=rows / values["gradient_devices"], big_rows=rows)
    assert scale.estimate is not None
    assert scale.estimate.rows == pytest.approx(9.0, rel=0.1)


def test_global_view_refuses_to_measure_the_noise():
    """The program sees no devices; the fix names the scheme that does."""
    with pytest.raises(SchemeError, match="noise_scale=True") as raised:
        Parallel("global_view", noise_scale=True)
    assert "scheme='per_device'" in raised.value.fix
