"""The run that the doctor looks at, and its arrays as shapes.

Owns: `Subject`, one row of its data, its state and batch as the step takes them.
Invariant: a model too large for this machine is examined all the same; only its shapes are made.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import optax
from jax import Array

from paceline.base.errors import DataError
from paceline.data.batch import Remainder
from paceline.data.source import BatchStream, as_source
from paceline.data.tree import map_leaves, named_leaves, to_host
from paceline.engine.parallel import Parallel
from paceline.engine.placement import state_shardings
from paceline.engine.state import TrainState
from paceline.engine.step import StepFunction, batch_sharding
from paceline.engine.update import Schedule, StepSpec
from paceline.engine.usercode import user_code
from paceline.tasks.task import Task
from paceline.train.trainer import Trainer


@dataclass(frozen=True)
class Subject:
    """A run before it starts.

    Args:
      task, optimizer, schedule: as `paceline.Trainer` takes them; the task has an init.
      data: rows or ready batches.
      batch: rows B of the global batch; for ready batches it is what the first one holds.
      parallel: how a step would run.
      devices: how many, or which; default: all that are visible.
      steps, epochs: the length of the run, for the learning rate; `steps` counts if both are given.
      remainder, prefetch: as for a run.
    """

    task: Task
    optimizer: optax.GradientTransformation
    data: Any
    batch: int
    parallel: Parallel = field(default_factory=Parallel)
    devices: Any = None
    schedule: Schedule | None = None
    steps: int | None = None
    epochs: int = 1
    remainder: Remainder = "drop"
    prefetch: int = 2

    @functools.cached_property
    def trainer(self) -> Trainer:
        """A trainer that is never run. Raises: what `paceline.Trainer` raises."""
        return Trainer(self.task, self.optimizer, devices=self.devices, parallel=self.parallel, schedule=self.schedule)

    @property
    def num_devices(self) -> int:
        """K."""
        return self.trainer.num_devices


@dataclass(frozen=True)
class Example:
    """What the data looks like, from its first row or its first batch.

    Args:
      leaves: name, shape with the rows in front, and dtype on the host of each leaf.
      structure: the tree, with a host array of a row or a batch at each leaf.
      source_rows: rows of the source; None for ready batches.
      rows: leading size of the first leaf: 1 of a row, b of a batch.
    """

    leaves: tuple[tuple[str, tuple[int, ...], np.dtype], ...]
    structure: Any
    source_rows: int | None
    rows: int


def read_example(data: Any) -> Example:
    """The first row, or the first ready batch, whose iterator it takes the batch from.

    Raises: DataError: no source, no batch, or what no device holds. TaskError: the user's data raised.
    """
    with user_code("the data of the run", when="to read its first row"):
        source = as_source(data)
        if isinstance(source, BatchStream):
            first = next(iter(source), None)
            if first is None:
                raise DataError(
                    what="the data yields no batch", why="there is nothing to train on", fix="check the iterator"
                )
            tree, rows = to_host(first, noun="batch"), None
        else:
            tree, rows = source.read(np.zeros(1, np.int64)), len(source)
    leaves = tuple((name, tuple(leaf.shape), leaf.dtype) for name, leaf in named_leaves(tree))
    return Example(leaves, tree, rows, leaves[0][1][0] if leaves and leaves[0][1] else 0)


@dataclass(frozen=True)
class Program:
    """The step of a subject with abstract arguments.

    Args:
      step: not compiled yet.
      state, batch: shapes, as the scheme wants them.
      valid: the mask of a full batch, the one array that is made.
      one_device: parameters, model state and batch as one device would have them, for the loss alone.
    """

    step: StepFunction
    state: TrainState
    batch: Any
    valid: Array
    one_device: tuple[Any, Any, Any]


def abstract_program(subject: Subject, example: Example, *, rows: int) -> Program:
    """The step for a batch of so many rows.

    Raises: TaskError, StateError: the init cannot be traced, or makes what cannot be trained.
    """
    trainer = subject.trainer
    spec = StepSpec(subject.task, subject.optimizer, subject.parallel, trainer.mesh, subject.schedule)
    step = StepFunction(spec)
    state = abstract_state(trainer)
    places = state_shardings(state, parallel=subject.parallel, mesh=trainer.mesh)
    lead = (trainer.num_devices, rows // trainer.num_devices) if subject.parallel.scheme == "pmap" else (rows,)
    split = batch_sharding(step.spec)

    def of_batch(leaf: Any) -> jax.ShapeDtypeStruct:
        return _shape((*lead, *leaf.shape[1:]), leaf.dtype, split)

    whole = map_leaves(lambda leaf: _shape((rows, *leaf.shape[1:]), leaf.dtype), example.structure)
    single = _without_axis((state.params, state.model_state), subject.parallel)
    return Program(
        step,
        jax.tree.map(lambda leaf, place: _shape(leaf.shape, leaf.dtype, place), state, places),
        map_leaves(of_batch, example.structure),
        jax.device_put(np.ones(lead, bool), split),
        (*single, whole),
    )


def abstract_state(trainer: Trainer) -> TrainState:
    """The first state of a trainer, as shapes."""
    return jax.eval_shape(lambda: trainer.init(seed=0))


def _without_axis(tree: Any, parallel: Parallel) -> Any:
    if parallel.scheme != "pmap":
        return tree
    return jax.tree.map(lambda leaf: _shape(leaf.shape[1:], leaf.dtype), tree)


def _shape(shape: tuple[int, ...], dtype: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """With the dtype that the array has on a device: float32 for float64 without x64."""
    return jax.ShapeDtypeStruct(shape, device_dtype(dtype), sharding=sharding)


def device_dtype(dtype: Any) -> Any:
    """What a host array of that dtype becomes on a device. Extended dtypes, such as keys, stay."""
    return jax.dtypes.canonicalize_dtype(dtype) if isinstance(dtype, np.dtype) else dtype
