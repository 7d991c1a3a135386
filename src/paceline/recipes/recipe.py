"""What `paceline train` runs: a recipe with its options makes a job.

Owns: `Recipe`, `Job`, `RunShape`.
Not here: finding a recipe by name or file (`recipes.find`), the options of a run (`cli.train`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import optax

from paceline.engine.state import TrainState
from paceline.engine.update import Schedule
from paceline.task.task import Task


@dataclass(frozen=True)
class RunShape:
    """What a recipe may know of the run that it makes a job for.

    Args:
      batch: rows B of the global batch.
      steps: updates asked for, or None.
      epochs: passes over the data asked for; used when `steps` is None.
      seed: of parameters, data order and dropout.
    """

    batch: int
    steps: int | None
    epochs: int
    seed: int

    def num_steps(self, rows: int) -> int:
        """Updates of the whole run over a source of `rows` rows, for schedules."""
        return self.steps if self.steps is not None else max(1, self.epochs * (rows // self.batch))


@dataclass(frozen=True)
class Job:
    """All that a run trains with.

    Args:
      task: the loss, with an init.
      optimizer: any optax optimizer.
      data: `paceline.rows`, a map-style data set, or an iterable of batches.
      evaluation: data that is evaluated during and after the run.
      schedule: learning rate by update, for reports.
      outcome: ``outcome(state) -> {name: number}``, what the final report and ``--json`` say of the trained state.
    """

    task: Task
    optimizer: optax.GradientTransformation
    data: Any
    evaluation: Any = None
    schedule: Schedule | None = None
    outcome: Callable[[TrainState], Mapping[str, float]] | None = None


@dataclass(frozen=True)
class NoOptions:
    """The options of a recipe that has none."""


@dataclass(frozen=True)
class Recipe:
    """A job with options.

    Args:
      build: ``build(options, shape) -> Job``.
      options: a frozen dataclass whose fields, all with defaults, become command-line options.
      batch, epochs: the defaults of the run.
      name: how run folders are called.
      summary: one line for lists.
    """

    build: Callable[[Any, RunShape], Job]
    options: type = field(default=NoOptions)
    batch: int = 64
    epochs: int = 1
    name: str = "task"
    summary: str = ""
