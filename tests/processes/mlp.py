"""A small network with dropout as a task file, and what one process makes of it: the truth that clusters must meet.

Owns: the task that `paceline train` and library scripts of these tests run, its reference in this process.
Not here: who starts the processes.
Invariant: rows come from numpy's generator with a fixed seed, so that every process has the same ones.

`DELAY_S` in the environment makes each row slow to read, for tests that interrupt a run in its middle.

Shapes: n = rows, x ``[n, 8]``, labels ``[n]`` in 0 to 3; 96 rows in batches of 16 are 6 steps an epoch.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import paceline

BATCH = 16


class Points:
    """A map-style data set."""

    def __init__(self, rows: int = 96) -> None:
        generator = np.random.default_rng(7)
        self.x = generator.normal(size=(rows, 8)).astype(np.float32)
        self.y = generator.integers(0, 4, size=rows).astype(np.int32)
        self.delay_s = float(os.environ.get("DELAY_S", "0"))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        if self.delay_s:
            time.sleep(self.delay_s)
        return {"x": self.x[row], "y": self.y[row]}


def init(rng):
    first, second = jax.random.split(rng)
    return {
        "hidden": {"w": jax.random.normal(first, (8, 32)) / 3, "b": jnp.zeros(32)},
        "out": {"w": jax.random.normal(second, (32, 4)) / 6, "b": jnp.zeros(4)},
    }


def loss(params, batch, rng):
    """Cross-entropy [nats] of each row, half of the hidden units dropped."""
    hidden = jnp.tanh(batch["x"] @ params["hidden"]["w"] + params["hidden"]["b"])
    hidden = hidden * jax.random.bernoulli(rng, 0.5, hidden.shape) * 2
    logits = hidden @ params["out"]["w"] + params["out"]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])


def task():
    return paceline.Job(task=paceline.task(loss, init=init, name="mlp"), optimizer=optax.adam(0.01), data=Points())


SCHEMES = {
    "global_view": paceline.Parallel(),
    "per_device": paceline.Parallel(scheme="per_device", accumulation=2),
    "zero1": paceline.Parallel(scheme="per_device", placement="zero1"),
}


def trained(parallel: paceline.Parallel, *, steps: int, devices: int | None = 2, **options) -> dict[str, np.ndarray]:
    """Parameters by name after so many steps."""
    job = task()
    trainer = paceline.Trainer(job.task, job.optimizer, devices=devices, parallel=parallel)
    state, _ = trainer.fit(trainer.init(), job.data, batch=BATCH, steps=steps, **options)
    return by_name(trainer.single(state).params)


def restored(run: Path, *, step: int | None = None) -> dict[str, np.ndarray]:
    """Parameters by name of a run's checkpoint, read by this process."""
    job = task()
    trainer = paceline.Trainer(job.task, job.optimizer, devices=2)
    return by_name(trainer.single(paceline.restore(run, trainer.init(), step=step)).params)


def by_name(params) -> dict[str, np.ndarray]:
    """Leaves on the host."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): np.asarray(leaf.addressable_data(0)) for path, leaf in leaves}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Equal bit for bit, leaf by leaf."""
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)
