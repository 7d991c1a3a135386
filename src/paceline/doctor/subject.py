"""The run that the doctor looks at, and its arrays as shapes.

Owns: `Subject`, its state and batch as the step takes them.
Invariant: a model too large for this machine is examined all the same; only its shapes are made.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import optax

from paceline.data.batch import Remainder
from paceline.data.example import Example
from paceline.data.tree import map_leaves
from paceline.engine.abstract import abstract_arguments, shape_of, without_device_axis
from paceline.engine.parallel import Parallel
from paceline.engine.state import TrainState
from paceline.engine.step import StepFunction
from paceline.engine.update import Schedule, StepSpec
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

    @functools.cached_property
    def step(self) -> StepFunction:
        """The step of that trainer, without its checks before compiling; compiled once for all checks of the doctor."""
        trainer = self.trainer
        return StepFunction(StepSpec(self.task, self.optimizer, self.parallel, trainer.mesh, self.schedule))

    @property
    def num_devices(self) -> int:
        """K."""
        return self.trainer.num_devices


@dataclass(frozen=True)
class Program:
    """The step of a subject with abstract arguments.

    Args:
      step: not compiled yet.
      state, batch: shapes, as the scheme wants them.
      valid: the mask of a full batch.
      one_device: parameters, model state and batch as one device would have them, for the loss alone.
    """

    step: StepFunction
    state: TrainState
    batch: Any
    valid: jax.ShapeDtypeStruct
    one_device: tuple[Any, Any, Any]


def abstract_program(subject: Subject, example: Example, *, rows: int) -> Program:
    """The step for a batch of so many rows.

    Raises: TaskError, StateError: the init cannot be traced, or makes what cannot be trained.
    """
    step = subject.step
    made = abstract_arguments(step.spec, example.structure, rows=rows)
    whole = map_leaves(lambda leaf: shape_of((rows, *leaf.shape[1:]), leaf.dtype), example.structure)
    single = without_device_axis((made.state.params, made.state.model_state), step.spec)
    return Program(step, made.state, made.batch, made.valid, (*single, whole))
