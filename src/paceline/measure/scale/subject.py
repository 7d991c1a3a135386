"""What is measured: a task with its data, and how a run would train it.

Owns: `Subject`, the names of the stages, the numbers that one measurement of a stage gives.
Not here: the stages themselves (`bench`), how often they are measured (`rounds`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import optax

from paceline.base.errors import DataError, PacelineError
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


_REMAINDER = re.compile(r",? or (use )?--remainder \w+|\bwith --remainder \w+ ")
_NO_REMAINDER = "give more rows, or a smaller --batch: the rows that fill no batch are left out here"


@contextlib.contextmanager
def own_options() -> Iterator[None]:
    """Leave out, of errors raised inside, what names ``--remainder``: a run has that option, a measurement has not."""
    try:
        yield
    except PacelineError as error:
        error.fix, error.why = _REMAINDER.sub("", error.fix), _REMAINDER.sub("", error.why)
        if "--remainder" in error.fix:
            error.fix = _NO_REMAINDER
        raise


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
      wait_s: seconds a step that the devices had nothing to do and waited for a batch, as the feed counts them.
      flow: of the stage ``feed`` only.
    """

    step_s: float
    wait_s: float = 0.0
    flow: Flow | None = None


@dataclass(frozen=True)
class Noise:
    """The gradient noise scale of the first steps.

    Args:
      rows: of it; None if it is unknown.
      why_unknown: why.
      relative_error: standard error, as a share of `rows`; None if it is unknown.
      steps: that told something of it.
    """

    rows: float | None
    why_unknown: str = ""
    relative_error: float | None = None
    steps: int = 0


@dataclass(frozen=True)
class Prepared:
    """What compiling came to.

    Args:
      compile_s: seconds.
      no_local: why the stages ``local`` and ``barrier`` cannot be measured; empty if they can.
    """

    compile_s: float
    no_local: str = ""
