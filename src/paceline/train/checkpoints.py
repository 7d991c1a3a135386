"""When a run saves its state, and from where it goes on.

Owns: the options, the moments of saving, what a checkpoint says about its run, the check that a resumed run is the
same run.
Not here: how a state is written and read (`checkpoint`), agreeing on a moment between processes (`train.votes`).
Invariant: all processes save after the same steps; a run that was resumed computes what it would have computed
unbroken.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from paceline.base.errors import CheckpointError, OptionError, SaveError
from paceline.base.units import format_count
from paceline.checkpoint.store import Store
from paceline.engine.state import TrainState
from paceline.telemetry.progress import Progress
from paceline.telemetry.recorder import EventSink
from paceline.train.batching import DataOptions, RunPlan

OnSaveFailure = Literal["fail", "warn"]


@dataclass(frozen=True)
class Checkpoints:
    """When `fit` saves the state into the run folder. It saves after the last step too, and when a signal ends the run.

    Args:
      every: updates between checkpoints, or None.
      minutes: minutes between checkpoints, or None. With both, whichever comes first.
      keep: how many of the last checkpoints stay.
      best: key of an evaluation metric, such as ``evaluate/accuracy``: the best checkpoint by it stays too, and each
        evaluated state is saved. ``min:KEY`` or ``max:KEY`` where the key does not say which is better.
      on_failure: of a save that fails (a full disk), the run says so at once and trains on. ``fail`` ends it with an
        error after the last step, ``warn`` leaves it at a notice.
    Raises: OptionError: a number below 1, or another word.
    """

    every: int | None = None
    minutes: float | None = None
    keep: int = 3
    best: str | None = None
    on_failure: OnSaveFailure = "fail"

    def __post_init__(self) -> None:
        for name in ("every", "minutes", "keep"):
            value = getattr(self, name)
            if (value is not None and not value > 0) or (name != "minutes" and isinstance(value, float)):
                raise OptionError(
                    what=f"Checkpoints({name}={value!r})",
                    why="a run saves every so many updates or minutes, and keeps so many checkpoints",
                    fix=f"use a number above 0 for {name}, whole for every and keep; leave it out for none",
                )
        if self.on_failure not in get_args(OnSaveFailure):
            raise OptionError(
                what=f"Checkpoints(on_failure={self.on_failure!r})",
                why="nothing would say what follows when a save fails",
                fix=f"use one of {', '.join(get_args(OnSaveFailure))}",
            )


@dataclass(frozen=True)
class RunIdentity:
    """What must be the same for a resumed run to be the same run; saved with each checkpoint.

    Args:
      task: its name.
      started_at: updates that the state had when the run began.
      rows, batch, steps_per_epoch: of the data; None for a stream.
      seed, shuffle, remainder: of the order of rows.
    """

    task: str
    started_at: int
    rows: int | None
    batch: int | None
    steps_per_epoch: int | None
    seed: int
    shuffle: bool
    remainder: str

    def check(self, saved: Mapping[str, Any], *, step: int) -> None:
        """Raise CheckpointError naming what differs from the run that saved the checkpoint of `step`."""
        own = dataclasses.asdict(self)
        odd = [
            f"{name} was {saved[name]!r} and is {value!r}"
            for name, value in own.items()
            if name != "started_at" and name in saved and saved[name] != value
        ]
        if odd:
            raise CheckpointError(
                what=f"the checkpoint of step {step} is of another run: {'; '.join(odd)}",
                why="the rows of each step follow from these, so the run would see some twice and others never",
                fix="use the same task, data, --batch, --seed and --remainder; to begin a new run from these "
                "weights, export them (paceline export) and start with --weights",
            )


def run_identity(options: DataOptions, plan: RunPlan, *, task: str, started_at: int) -> RunIdentity:
    """The identity of a run with this plan."""
    batches = plan.batches
    return RunIdentity(
        task, started_at, None if batches is None else batches.rows, None if batches is None else options.batch,
        None if batches is None else batches.steps_per_epoch, options.seed, options.shuffle, options.remainder,
    )  # fmt: skip


class RunCheckpoints:
    """The checkpoints of one run.

    Args:
      options: when to save; the store is None for a run without checkpoints.
      single: a state without device axis, from one as the scheme keeps it.
      meta: saved with each checkpoint.
      resumed_at: step of the checkpoint that the run goes on from; those of later steps go with the first save.
    """

    def __init__(
        self, options: Checkpoints, store: Store | None, *, single: Callable[[TrainState], TrainState],
        meta: Mapping[str, Any], recorder: EventSink, progress: Progress, resumed_at: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.options = options
        self.saved_s = 0.0
        """Seconds that the loop spent on saving."""
        self.count = 0
        self._store = store
        self._single = single
        self._meta = dict(meta)
        self._recorder = recorder
        self._progress = progress
        self._clock = clock
        self._last_s = clock()
        self._last_step: int | None = resumed_at
        self._resumed_at = resumed_at
        self._unknown = ""

    @property
    def failure(self) -> SaveError | None:
        """The first save that failed."""
        return None if self._store is None else self._store.failure

    def begin(self, state: TrainState) -> None:
        """Prepare the first save in the background, best while the step compiles."""
        if self._store is not None:
            self._store.prepare(self._single(state))

    def is_time(self) -> bool:
        """Whether so many minutes have passed."""
        minutes = self.options.minutes
        return self._store is not None and minutes is not None and self._clock() - self._last_s >= 60 * minutes

    def is_due(self, step: int) -> bool:
        """Whether so many updates were made."""
        every = self.options.every
        return self._store is not None and every is not None and step % every == 0

    @property
    def evaluated_states(self) -> bool:
        """Whether each evaluated state is to be saved."""
        return self._store is not None and self.options.best is not None

    def save(self, state: TrainState, step: int) -> None:
        """Save the state after `step` in the background; does nothing if that was done."""
        if self._store is None or self._last_step == step:
            return
        start_s = time.perf_counter()
        if self._resumed_at is not None:
            self._store.forget_after(self._resumed_at)
            self._resumed_at = None
        self._store.save(self._single(state), step, meta={**self._meta, "step": step})
        self._last_step, self._last_s = step, self._clock()
        self.saved_s += time.perf_counter() - start_s

    def poll(self) -> None:
        """Record what was saved since the last call."""
        if self._store is not None:
            for step in self._store.poll():
                self.count += 1
                self._recorder.checkpoint(step, f"checkpoint of step {step} saved")

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """The metrics of an evaluation of the state after `step`."""
        best = (self.options.best or "").removeprefix("min:").removeprefix("max:")
        if best and best not in values and not self._unknown:
            known = ", ".join(values)
            self._unknown = f"no checkpoint is kept as the best: an evaluation gives {known}, and no {best!r}"
            self._progress.message(self._unknown)
            self._recorder.notice(step, self._unknown)
        if self._store is not None:
            self._store.evaluated(step, values)

    def forget_after(self, step: int) -> None:
        """Delete what was saved of later steps: the run ends with an error at one of them."""
        if self._store is not None:
            self._store.forget_after(step)

    def finish(self) -> None:
        """Wait until everything is saved."""
        if self._store is not None:
            self._store.wait()
            self.poll()

    def notices(self) -> list[str]:
        """What the report should say."""
        unknown = [self._unknown] if self._unknown else []
        if self.failure is None:
            return unknown
        return [*unknown, f"{self.failure.what}; {format_count(self.count, 'checkpoint')} saved by this call"]
