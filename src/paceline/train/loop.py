"""The training loop: dispatch a step, look at steps that are finished, never wait for the one in flight.

Owns: the order of things in a run, the time of each step, what is recorded when.
Not here: mathematics (`engine`), batches (`train.batching`), the words of the report (`train.report`).
Invariant: a value is fetched only when the device has finished it, except at the last step. What bounds the host is a
wait for the completion of an older step: `AHEAD` steps are always queued behind it, so the devices never idle for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.base.errors import PacelineError
from paceline.engine.metrics import StepMetrics
from paceline.engine.parallel import Parallel
from paceline.engine.state import TrainState
from paceline.telemetry.metrics import (
    INPUT_QUEUED_BATCHES,
    INPUT_WAIT_S,
    SPEED_SAMPLES_PER_S,
    SPEED_STEP_S,
    TRAIN_ROWS,
    evaluation_metric,
)
from paceline.telemetry.progress import Progress, ProgressState
from paceline.telemetry.recorder import EventSink
from paceline.telemetry.summary import StepClock
from paceline.train.audit import RunAudits
from paceline.train.evaluate import Evaluation
from paceline.train.interrupt import InterruptGuard
from paceline.train.nonfinite import must_stop, nonfinite_error
from paceline.train.place import PlacedBatch

AHEAD = 2

Callback = Callable[[int, dict[str, float]], bool | None]
"""Called with the step and its values by metric key, once they are computed; returning True ends the run."""

StartEvaluation = Callable[[TrainState, int, Callable[[], bool]], Evaluation | None]
"""``(state, step, stop)``; `stop` says when to give up, and then it returns None."""

Step = Callable[[TrainState, Any, Any], tuple[TrainState, StepMetrics]]


class Pending(NamedTuple):
    """A step that was dispatched and not yet looked at."""

    step: int
    metrics: StepMetrics
    batch: PlacedBatch
    wait_s: float
    queued: int
    follows_step: bool


@dataclass
class LoopResult:
    """What the loop leaves behind, besides the state."""

    first_step: int
    step: int
    rows: int = 0
    clock: StepClock = field(default_factory=StepClock)
    values: dict[str, float] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    skipped: float = 0.0
    stopped: str | None = None
    failure: PacelineError | None = None


@dataclass
class Loop:
    """One run of the loop; the fields are what it joins.

    Args:
      call: the compiled step.
      feed: gives placed batches and has `wait_s` and `queued`.
      evaluate: starts an evaluation of a state at a step, or None.
      evaluate_every: updates between evaluations; one follows the last step too.
      num_steps: updates planned, None when the data decides.
      epoch_at: passes over the data after so many steps.
      audits: compares the replicas of the state before, between and after the steps.
    """

    call: Step
    feed: Any
    parallel: Parallel
    recorder: EventSink
    progress: Progress
    callbacks: Sequence[Callback]
    evaluate: StartEvaluation | None
    evaluate_every: int | None
    num_steps: int | None
    epoch_at: Callable[[int], float | None]
    audits: RunAudits
    result: LoopResult
    guard: InterruptGuard
    pending: deque[Pending] = field(default_factory=deque)
    evaluations: deque[Evaluation] = field(default_factory=deque)
    finished_s: float = 0.0
    state: TrainState | None = None

    def run(self, state: TrainState, first: PlacedBatch) -> TrainState:
        """Train on `first` and on all that the feed gives; returns the last state. A bad number ends it, no error."""
        result = self.result
        follows_step = False
        last_evaluated = -1
        self.audits.begin(state, result.step)
        for batch, wait_s in self._batches(first):
            state, metrics = self.call(state, batch.data, batch.valid)
            self.state = state
            result.step += 1
            result.rows += batch.rows
            queued = self.feed.queued
            self.pending.append(Pending(result.step, metrics, batch, wait_s, queued, follows_step))
            follows_step = True
            self._collect(keep=AHEAD)
            self.state = state = self.audits.after_step(state, result.step, finished=result.step - AHEAD)
            if result.stopped or result.failure or self.audits.error:
                break
            if self.evaluate and self.evaluate_every and result.step % self.evaluate_every == 0:
                # The steps in flight are looked at after the evaluation: their times would hold it.
                self.pending = deque(item._replace(follows_step=False) for item in self.pending)
                self._evaluate(state)
                last_evaluated = result.step
                follows_step = False
            if self.guard.asked:
                result.stopped = "interrupted"
                break
        self._collect(keep=0)
        if not result.failure:
            self.state = state = self.audits.finish(state, result.step)
            result.failure = self.audits.error
        if self.evaluate and not self.guard.asked and not result.failure and last_evaluated != result.step:
            self._evaluate(state)
        self._collect_evaluations(wait=True)
        if self.guard.asked:
            result.stopped = "interrupted"
        return state

    def _evaluate(self, state: TrainState) -> None:
        """Start an evaluation; Ctrl-C gives it up."""
        assert self.evaluate is not None, "checked by run"
        evaluation = self.evaluate(state, self.result.step, lambda: self.guard.asked)
        if evaluation is not None:
            self.evaluations.append(evaluation)

    def _batches(self, first: PlacedBatch) -> Iterator[tuple[PlacedBatch, float]]:
        """The first batch, then those of the feed, each with the seconds that the devices may have waited for it."""
        yield first, 0.0
        for batch in self.feed:
            busy = self.pending and not self.pending[-1].metrics.is_ready()
            yield batch, 0.0 if busy else self.feed.wait_s

    def _collect(self, *, keep: int) -> None:
        """Record the steps that are finished; wait for the oldest while more than `keep` are in flight."""
        while self.pending and (len(self.pending) > keep or self.pending[0].metrics.is_ready()):
            item = self.pending.popleft()
            item.metrics.wait()
            now_s = time.perf_counter()
            step_s, self.finished_s = now_s - self.finished_s, now_s
            self._record(item, step_s)
        self._collect_evaluations(wait=False)

    def _record(self, item: Pending, step_s: float) -> None:
        """Clock, events, progress and callbacks of one finished step."""
        result = self.result
        if result.failure is not None:  # dispatched before the failure was known
            result.step, result.rows = result.step - 1, result.rows - item.batch.rows
            return
        fetched = item.metrics.fetch()
        if must_stop(self.parallel, fetched, skipped_before=result.skipped):
            result.failure = nonfinite_error(item.step, values=fetched, metrics=item.metrics, host=item.batch.host)
        result.skipped = fetched["skipped_updates"]
        values = {f"train/{name}": value for name, value in fetched.items()}
        values[TRAIN_ROWS.key] = item.batch.rows
        values[INPUT_WAIT_S.key] = item.wait_s
        values[INPUT_QUEUED_BATCHES.key] = item.queued
        if item.follows_step:  # the first step and those behind an evaluation have no step before them to time from
            result.clock.add(step_s, wait_s=item.wait_s, rows=item.batch.rows)
            values[SPEED_STEP_S.key] = step_s
            values[SPEED_SAMPLES_PER_S.key] = item.batch.rows / step_s
        result.values = values
        self.recorder.step(item.step, values)
        done = item.step - result.first_step
        self.progress.update(
            ProgressState(done, self.num_steps, fetched["loss"], self.epoch_at(item.step), result.clock)
        )
        self._call_back(item.step, values)

    def _collect_evaluations(self, *, wait: bool) -> None:
        while self.evaluations and (wait or self.evaluations[0].is_ready()):
            evaluation = self.evaluations.popleft()
            values = {evaluation_metric(name).key: value for name, value in evaluation.result().items()}
            self.result.evaluation = values
            self.recorder.evaluation(evaluation.step, values)
            shown = ", ".join(f"{key.partition('/')[2]} {value:.4g}" for key, value in values.items())
            self.progress.message(f"evaluation after step {evaluation.step}: {shown}")
            self._call_back(evaluation.step, values)

    def _call_back(self, step: int, values: dict[str, float]) -> None:
        for callback in self.callbacks:
            if callback(step, values):
                self.result.stopped = self.result.stopped or "callback"
