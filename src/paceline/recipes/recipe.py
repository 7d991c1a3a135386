"""What `paceline train` runs: a recipe with its options makes a job.

Owns: `Recipe`, `Job`, `RunShape`.
Not here: finding a recipe by name or file (`recipes.find`), the options of a run (`cli.train`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

import optax

from paceline.base.errors import RecipeError
from paceline.engine.state import TrainState
from paceline.engine.update import Schedule
from paceline.tasks.task import Task


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
      optimizer: an optax optimizer, as `Trainer` takes it.
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
      name: how reports and run folders are called; default: the name of the file.
      summary: one line for lists.
    Raises: RecipeError: `options` is no dataclass whose fields all have defaults.
    """

    build: Callable[[Any, RunShape], Job]
    options: type = field(default=NoOptions)
    batch: int = 64
    epochs: int = 1
    name: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        if not is_dataclass(self.options):
            raise _options_error(f"the options of recipe {self.name!r} are no dataclass")
        for option in fields(self.options):
            if option.default is MISSING and option.default_factory is MISSING:
                raise _options_error(f"option {option.name!r} of recipe {self.name!r} has no default")

    def make_job(self, options: Any, shape: RunShape) -> Job:
        """The job of `build`. Raises: RecipeError: it made something else."""
        job = self.build(options, shape)
        if not isinstance(job, Job):
            raise RecipeError(
                what=f"the build of recipe {self.name!r} returned a {type(job).__name__}",
                why="a run needs a loss, an optimizer and data",
                fix="return paceline.Job(task=..., optimizer=..., data=...)",
            )
        return job


def _options_error(what: str) -> RecipeError:
    return RecipeError(
        what=what,
        why="its fields become command-line options, which may be left out",
        fix="use a frozen dataclass in which every field has a default",
    )
