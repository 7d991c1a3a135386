"""The numbers of a step: exact over devices, counted in 32 bits, fetched once."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.base.errors import LossError
from paceline.engine.parallel import Parallel
from paceline.tasks.losses import Weighted
from tests.engine.helpers import SCHEMES, lowered_text, run, step_of

STILL = optax.sgd(0.0)
CORRECT = np.array([1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 1], bool)  # 4, 2 and 1 of batches of 4, 4 and 3


def accuracy(params, batch):
    """The same metric in three forms, and counts."""
    rows = batch["x"] * params["w"]
    metrics = {
        "accuracy": batch["correct"],
        "as_float": batch["correct"].astype(jnp.float32),
        "as_weighted": Weighted(batch["correct"], jnp.ones(rows.shape, jnp.int32)),
        "count": Weighted(jnp.where(batch["correct"], 2**24, 1), jnp.full(rows.shape, 1, jnp.int32)),
    }
    return rows, metrics


def half_precision(params, batch):
    """Metrics of the model's own type, which in a bfloat16 model is bfloat16."""
    rows = batch["x"] * params["w"]
    assert rows.dtype == jnp.bfloat16
    metrics = {"plain": batch["x"], "weighted": Weighted(batch["x"], jnp.ones(rows.shape, rows.dtype))}
    return rows, metrics


def padded(rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The eleven rows and correct padding, which would count if it could."""
    correct = np.concatenate([CORRECT, np.ones(rows - 11, bool)])
    return {"x": np.ones(rows, np.float32), "correct": correct}, np.arange(rows) < 11


@pytest.mark.parametrize(
    "scheme, devices, parts",
    [("global_view", 1, 1), ("global_view", 4, 3), ("per_device", 2, 2), ("per_device", 4, 1), ("pmap", 4, 3)],
)
def test_accuracy_on_eleven_rows_is_seven_elevenths(scheme, devices, parts):
    """Case 24 in one padded batch of 12: exactly the float32 nearest to 7/11, in all three forms."""
    step = step_of(accuracy, STILL, Parallel(scheme, accumulation=parts), devices=devices)
    batch, valid = padded(12)
    values = run(step, [batch], params={"w": np.float32(1)}, valid=valid).metrics[0]
    for name in ("accuracy", "as_float", "as_weighted"):
        assert values[name] == float(np.float32(7) / np.float32(11)), name
    assert values["weight"] == 11


def test_integers_are_summed_as_integers():
    """7 times 2**24 and 4 times 1: float32, which cannot hold 7 * 2**24 + 1, would lose the ones. To 1 in 2**24."""
    step = step_of(accuracy, STILL, Parallel("per_device"), devices=4)
    batch, valid = padded(12)
    values = run(step, [batch], params={"w": np.float32(1)}, valid=valid).metrics[0]
    assert values["count"] == float(np.float32(7 * 2**24 + 4) / np.float32(11))


@pytest.mark.parametrize("scheme", ["global_view", "per_device"])
def test_bfloat16_metrics_do_not_stop_at_256(scheme):
    """301 ones in 512 rows on one device and on two: 301/512 exactly, though bfloat16 has 300 and 302 but no 301."""
    batch = {"x": (np.arange(512) < 301).astype(np.float32)}
    for devices in (1, 2):
        step = step_of(half_precision, STILL, Parallel(scheme, precision="bfloat16"), devices=devices)
        values = run(step, [batch], params={"w": np.float32(1)}).metrics[0]
        assert values["plain"] == values["weighted"] == values["loss"] == 301 / 512


@pytest.mark.parametrize("name", ["loss", "gradient_norm", "learning_rate", "weight", "skipped_updates", "loss_scale"])
def test_a_metric_cannot_take_the_name_of_a_value_of_the_step(name):
    """One would overwrite the other; the error names it and offers another, which works."""

    def named(metric):
        return lambda params, batch: (batch["x"] * params["w"], {metric: batch["x"]})

    batch = {"x": np.ones(4, np.float32)}
    with pytest.raises(LossError, match=f"'{name}'") as caught:
        lowered_text(step_of(named(name), STILL), batch, params={"w": np.float32(1)})
    assert f"'task_{name}'" in caught.value.fix
    lowered_text(step_of(named(f"task_{name}"), STILL), batch, params={"w": np.float32(1)})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_numbers_of_a_step_are_one_array(scheme):
    """All values in one vector, so that the host fetches once; by name they are device scalars; others are named."""
    step = step_of(accuracy, STILL, Parallel(scheme, accumulation=3), devices=4)
    batch, valid = padded(12)
    last = run(step, [batch], params={"w": np.float32(1)}, valid=valid).last
    assert last.values.shape == (len(last.names),) and last.values.dtype == jnp.float32
    assert set(last.fetch()) == {"loss", "gradient_norm", "weight", "skipped_updates"} | {
        "accuracy", "as_float", "as_weighted", "count"
    }  # fmt: skip
    last.wait()
    assert last.is_ready()
    assert float(last["weight"]) == 11
    with pytest.raises(KeyError, match="gradient_norm"):
        last["lose"]
