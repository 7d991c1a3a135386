"""The truncated step: each device by itself, with or without a barrier."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import paceline
from paceline.engine.parallel import Parallel
from paceline.measure.scale.local import LocalStep
from paceline.measure.scale.subject import Subject
from tests.measure.scale.tasks import subject

DEVICES = 2


def batch_of(rows):
    """Numbers that differ from row to row."""
    x = np.random.default_rng(1).normal(size=(rows, 3)).astype("float32")
    return {"x": x, "y": x.sum(axis=1)}


def run(made, batch, *, barrier, steps=2):
    """The state and the values after some steps on two devices, and the text of the program."""
    local = LocalStep(made, jax.devices()[:DEVICES])
    rows = len(batch["y"])
    state = local.state(paceline.Trainer(made.task, made.optimizer, devices=1).init(seed=0))
    data, valid = local.batch(jax.device_put(batch)), local.batch(jnp.ones(rows, bool))
    call = local.compile(state, data, valid)
    for _ in range(steps):
        state, values = call(state, data, valid, local.flag(barrier))
    return jax.device_get(state.params), np.asarray(values), call.as_text()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_device_does_what_one_device_does_with_its_rows(accumulation):
    """Two steps on 8 rows each, against a trainer on one device with the same 8 rows, to 1e-6; the devices drift
    apart, since they see other rows."""
    made, batch = subject(accumulation=accumulation), batch_of(16)
    params, _, _ = run(made, batch, barrier=False)
    for device in range(DEVICES):
        own = {name: leaf[8 * device : 8 * device + 8] for name, leaf in batch.items()}
        trainer = paceline.Trainer(made.task, made.optimizer, devices=1, parallel=made.parallel)
        state = trainer.init(seed=0)
        for _ in range(2):
            state, _ = trainer.step(state, own)
        for name in ("in", "out"):
            np.testing.assert_allclose(params[name][device], state.params[name], rtol=1e-6)
    assert not np.allclose(params["in"][0], params["in"][1])


def test_the_barrier_sums_what_a_step_reports_and_changes_nothing_else():
    """The same parameters, bit for bit; the values are the sum of those of the devices, to 1e-6."""
    made, batch = subject(), batch_of(16)
    apart, own, text = run(made, batch, barrier=False)
    waited, summed, _ = run(made, batch, barrier=True)
    for name in ("in", "out"):
        np.testing.assert_array_equal(apart[name], waited[name])
    np.testing.assert_allclose(summed, np.broadcast_to(own.sum(axis=0), summed.shape), rtol=1e-6)
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == 1, "the barrier, and no other collective"


def test_a_loss_that_means_over_the_data_axis_stays_on_its_device():
    """`lax.pmean(..., "data")` means over one device here, as when one device trains: no collective is added."""

    def loss(params, batch):
        scale = jax.lax.pmean(jnp.mean(batch["x"]), "data")
        return (batch["x"][:, 0] * params["w"] - scale - batch["y"]) ** 2

    task = paceline.task(loss, init=lambda rng: {"w": jnp.ones(())})
    made = Subject(task, optax.sgd(0.1), None, parallel=Parallel())
    _, _, text = run(made, batch_of(8), barrier=False, steps=1)
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == 1
