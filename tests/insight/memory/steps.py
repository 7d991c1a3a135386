"""Small steps on CPU devices, and what the compiler says of them, compiled once for all tests of this folder."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import paceline
from paceline.engine.abstract import Arguments, abstract_arguments, without_device_axis
from paceline.engine.parallel import Parallel
from paceline.engine.state import TrainState
from paceline.engine.step import StepFunction
from paceline.engine.update import StepSpec
from paceline.insight.memory.stats import MemoryStats, memory_stats
from paceline.tasks.task import Task
from paceline.topology.mesh import data_mesh

ROWS = {"x": np.zeros((1, 64), np.float32), "y": np.zeros(1, np.int32)}
"""One row: 256 B of x, 4 B of y."""


def init(rng: Any) -> Any:
    """64 x 96, 96, 96 x 96, 96 x 8 and an odd scalar: 16225 parameters."""
    return {
        "in": jnp.zeros((64, 96)), "bias": jnp.zeros(96), "middle": jnp.zeros((96, 96)), "out": jnp.zeros((96, 8)),
        "temperature": jnp.ones(()),
    }  # fmt: skip


PARAMS = 64 * 96 + 96 + 96 * 96 + 96 * 8 + 1


def loss(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch["x"] @ params["in"] + params["bias"])
    for _ in range(2):
        hidden = jnp.tanh(jnp.exp(jnp.sin(hidden @ params["middle"])))
    logits = (hidden @ params["out"] * params["temperature"]).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])


TASK = paceline.task(loss, init=init)


def spec_of(parallel: Parallel, *, devices: int = 4, task: Task = TASK, optimizer: Any = None) -> StepSpec:
    return StepSpec(task, optimizer or optax.adam(1e-3), parallel, data_mesh(jax.devices()[:devices]))


def arguments(parallel: Parallel, *, rows: int, devices: int = 4, **options: Any) -> Arguments:
    return abstract_arguments(spec_of(parallel, devices=devices, **options), ROWS, rows=rows)


def state_of(parallel: Parallel, **options: Any) -> TrainState:
    """Without device axis."""
    spec = spec_of(parallel, **options)
    return without_device_axis(abstract_arguments(spec, ROWS, rows=spec.mesh.size).state, spec)


@functools.cache
def compiled(parallel: Parallel, *, rows: int, devices: int = 4, task: Task = TASK) -> MemoryStats:
    """What the compiler says of a step for so many rows of the global batch."""
    spec = spec_of(parallel, devices=devices, task=task)
    made = abstract_arguments(spec, ROWS, rows=rows)
    stats = memory_stats(StepFunction(spec).lowered(made.state, made.batch, made.valid).compile())
    assert stats is not None
    return stats
