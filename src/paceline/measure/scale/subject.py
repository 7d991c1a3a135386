"""What is measured: a task with its data, and how a run would train it.

Owns: `Subject`, the names of the stages, the numbers that one measurement of a stage gives.
Not here: the stages themselves (`bench`), how often they are measured (`rounds`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import optax

from paceline.base.errors import DataError
from paceline.data.source import BatchStream, Source, as_source
from paceline.engine.parallel import Parallel
from paceline.engine.update import Schedule
from paceline.tasks.task import Task

Mode = Literal["weak", "strong"]

Stage = Literal["local", "barrier", "step", "feed", "fit"]

STAGES: tuple[Stage, ...] = ("local", "barrier", "step", "feed", "fit")
"""From the innermost part of a run to the whole of it, each a part of the next:

- ``local``: the step of one device with its share of the rows, on all devices at once, none waiting for another;
- ``barrier``: the same, but each step sums the few numbers that it reports over the devices: all wait for the slowest;
- ``step``: the real step, on batches that are on the devices already;
- ``feed``: the same with batches from the data, through the background feed;
- ``fit``: the training loop as a user runs it, with its run folder and events.
"""


@dataclass(frozen=True)
class Subject:
    """A task and how it trains.

    Args:
      task, optimizer, data, schedule: as `Trainer` and `fit` take them; `data` is read by row.
      parallel: scheme, placement, accumulation, precision and the rest.
      prefetch: batches made ahead.
      shuffle, seed: the order of rows.
    Raises: DataError: data that comes in batches of a fixed size.
    """

    task: Task
    optimizer: optax.GradientTransformation
    data: Any
    schedule: Schedule | None = None
    parallel: Parallel = field(default_factory=Parallel)
    prefetch: int = 2
    shuffle: bool = True
    seed: int = 0

    def source(self) -> Source:
        """The data, by row."""
        source = as_source(self.data)
        if isinstance(source, BatchStream):
            raise DataError(
                what="the data of the task are ready batches",
                why="their size is fixed, so they cannot be shared by other numbers of devices",
                fix="give data that is read by row to be measured: paceline.rows(...), or a map-style data set",
            )
        return source


MakeSubject = Callable[[int], Subject]
"""The subject for a global batch of so many rows: a recipe may choose its schedule by the batch."""


@dataclass(frozen=True)
class Flow:
    """Rows on their way, for Little's law.

    Args:
      latency_s: mean time of a batch from standing in the feed's queue to its result [s].
      step_s: time between results [s].
      in_flight: batches on the way, counted: queued, and of dispatched steps without result; mean over time.
    """

    latency_s: float
    step_s: float
    in_flight: float


@dataclass(frozen=True)
class Sample:
    """One measurement of a stage.

    Args:
      step_s: seconds a step, warm-up left out.
      wait_s: seconds a step that the devices waited for a batch, as the feed counts them.
      flow: of the stage ``feed`` only.
      noise_rows: the gradient noise scale after this measurement, of the stage ``fit`` where the step measures it.
      noise_unknown: why there is none.
    """

    step_s: float
    wait_s: float = 0.0
    flow: Flow | None = None
    noise_rows: float | None = None
    noise_unknown: str = ""
