"""The training loop: dispatch a step, look at steps that are finished, never wait for the one in flight.

Owns: the order of things in a run, the time of each step, what is recorded when.
Not here: mathematics (`engine`), batches (`train.batching`), the words of the report (`train.report`).
Invariant: a value is fetched only when the device has finished it, except at the last step and before a save. What
bounds the host is a wait for the completion of an older step: `AHEAD` steps are always queued behind it, so the devices
never idle for it.
With several processes each looks at a step exactly `AHEAD` steps later, ready or not, so that all break off after the
same step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.base.errors import PacelineError
from paceline.data.feed import Taken
from paceline.engine.metrics import StepMetrics
from paceline.engine.parallel import Parallel
from paceline.engine.state import TrainState
from paceline.insight.noise import NoiseScale
from paceline.telemetry.metrics import (
    INPUT_QUEUED_BATCHES,
    INPUT_WAIT_S,
    SPEED_SAMPLES_PER_S,
    SPEED_STEP_S,
    TRAIN_NOISE_SCALE_ROWS,
    TRAIN_ROWS,
    evaluation_metric,
)
from paceline.telemetry.progress import Progress, ProgressState
from paceline.telemetry.recorder import EventSink
from paceline.telemetry.summary import StepClock
from paceline.train.audit import RunAudits
from paceline.train.checkpoints import RunCheckpoints
from paceline.train.evaluate import Evaluation
from paceline.train.interrupt import InterruptGuard
from paceline.train.nonfinite import left_out, must_stop, nonfinite_error
from paceline.train.place import PlacedBatch
from paceline.train.position import Position
from paceline.train.vitals import Vitals
from paceline.train.votes import Stop, Votes, Wish

AHEAD = 2

Callback = Callable[[int, dict[str, float]], bool | None]
"""Called with the step and its values by metric key, once they are computed; returning True ends the run."""

StartEvaluation = Callable[[TrainState, int, Callable[[], bool]], Evaluation | None]
"""``(state, step, stop)``; `stop` says when to give up, and then it returns None."""

STOPPED = {Stop.CALLBACK: "callback", Stop.INTERRUPT: "interrupted", Stop.TERMINATE: "terminated"}

Step = Callable[[TrainState, Any, Any], tuple[TrainState, StepMetrics]]


class Pending(NamedTuple):
    """A step that was dispatched and not yet looked at."""

    step: int
    metrics: StepMetrics
    taken: Taken[PlacedBatch]
    queued: int
    follows_step: bool
    begins_unseen: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether the time from the end of the step before to that of this one is the time of this step."""
        return self.follows_step and not self.begins_unseen

    @property
    def batch(self) -> PlacedBatch:
        """What it trains on."""
        return self.taken.item


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
    input_s: float = 0.0
    """Seconds that the devices of this process waited for a batch."""
    host_s: float = 0.0
    """Seconds of callbacks in this process."""
    noise: NoiseScale = field(default_factory=NoiseScale)

    def measure_noise(self, fetched: Mapping[str, float], *, rows: int) -> dict[str, float]:
        """Take in what a step says of the gradient noise, if it says so; the noise scale, once it is known."""
        if "local_gradient_norm" not in fetched:
            return {}
        small, big = fetched["local_gradient_norm"] ** 2, fetched["gradient_norm"] ** 2
        self.noise.update(small, big, small_rows=rows / max(fetched["gradient_devices"], 1), big_rows=rows)
        known = self.noise.estimate
        return {} if known is None else {TRAIN_NOISE_SCALE_ROWS.key: known.rows}


@dataclass
class Loop:
    """One run of the loop; the fields are what it joins.

    Args:
      call: the compiled step.
      feed: gives placed batches, watched while it is waited for, and has `queued`.
      evaluate: starts an evaluation of a state at a step, or None.
      evaluate_every: updates between evaluations; one follows the last step too.
      num_steps: updates planned, None when the data decides.
      epoch_at: passes over the data after so many steps.
      audits: compares the replicas of the state before, between and after the steps.
      checkpoints: saves the state.
      votes: what all processes must do after the same step.
      position: tells where this process is.
      vitals: what each event tells of input, latency and memory.
      evaluates_first: evaluate the state that the run goes on from: it was saved before its evaluation, which a signal
        may have cut off.
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
    checkpoints: RunCheckpoints
    votes: Votes
    position: Position
    vitals: Vitals
    result: LoopResult
    guard: InterruptGuard
    evaluates_first: bool = False
    wanted: Stop = Stop.NO
    pending: deque[Pending] = field(default_factory=deque)
    evaluations: deque[Evaluation] = field(default_factory=deque)
    finished_s: float = 0.0
    state: TrainState | None = None

    def run(self, state: TrainState, first: Taken[PlacedBatch] | None) -> TrainState:
        """Train on `first` and on all that the feed gives; returns the last state. A bad number ends it, no error."""
        result = self.result
        follows_step = False
        last_evaluated = -1
        self.audits.begin(state, result.step, at_once=self.votes.several)
        if self.evaluates_first and first is not None:
            self._evaluate(state)
        for taken in self._batches(first):
            batch = taken.item
            self.position.enter("step")
            state, metrics = self.call(state, batch.data, batch.valid)
            self.state = state
            result.step += 1
            result.rows += batch.rows
            queued = self.feed.queued
            self.pending.append(Pending(result.step, metrics, taken, queued, follows_step))
            follows_step = True
            self._collect(keep=AHEAD)
            self.state = state = self.audits.after_step(state, result.step, finished=result.step - AHEAD)
            if result.failure or self.audits.error:
                break
            agreed = self._agree()
            result.stopped = STOPPED.get(agreed.stop)
            evaluate = bool(self.evaluate and self.evaluate_every and result.step % self.evaluate_every == 0)
            if agreed.save or self.checkpoints.is_due(result.step) or (evaluate and self.checkpoints.evaluated_states):
                self._save(state)
            if result.stopped == "callback":
                break
            if evaluate and not result.stopped:
                # The steps in flight are looked at after the evaluation: their times would hold it.
                self.pending = deque(item._replace(follows_step=False) for item in self.pending)
                self._evaluate(state)
                last_evaluated = result.step
                follows_step = False
            if result.stopped or (self.guard.asked and not self.votes.several):
                break
            self.position.enter("input", result.step)
        self._finish(state, last_evaluated)
        assert self.state is not None or first is None, "a step was made"
        return state if self.state is None else self.state

    def _finish(self, state: TrainState, last_evaluated: int) -> None:
        """Behind the last step: look at what is in flight, audit, save, evaluate."""
        result = self.result
        self.position.enter("step", result.step)
        self._collect(keep=0)
        if not result.failure:
            self.state = state = self.audits.finish(state, result.step)
            result.failure = self.audits.error
        if not result.failure:
            self._save(state)
        ended = result.stopped in ("interrupted", "terminated") or (self.guard.asked and not self.votes.several)
        if self.evaluate and not ended and not result.failure and last_evaluated != result.step:
            self._evaluate(state)
        self._collect_evaluations(wait=True)
        if self.guard.asked and not self.votes.several:
            result.stopped = STOPPED[self.guard.stop]
        self.position.enter("checkpoint", result.step)
        self.checkpoints.finish()

    def _agree(self) -> Wish:
        """What all processes do after this step: stop, save."""
        stop = max(self.wanted, self.guard.stop)
        wish = Wish(stop, self.checkpoints.is_time())
        return self.votes.after_step(self.result.step, wish, step_s=self.result.clock.recent_step_s())

    def _save(self, state: TrainState) -> None:
        """Save, unless a step up to this one turns out bad. Their events come first: a run that is killed now goes on
        from the checkpoint, and would have no record of steps that were in flight."""
        self._collect(keep=0)
        if self.result.failure:
            return
        self.position.enter("checkpoint", self.result.step)
        self.checkpoints.save(state, self.result.step)

    def _evaluate(self, state: TrainState) -> None:
        """Start an evaluation; Ctrl-C gives it up, unless other processes take part in it."""
        assert self.evaluate is not None, "checked by run"

        def stop() -> bool:  # asked before each batch
            self.position.enter("evaluation", self.result.step)
            return self.guard.asked and not self.votes.several

        evaluation = self.evaluate(state, self.result.step, stop)
        if evaluation is not None:
            self.evaluations.append(evaluation)

    def _batches(self, first: Taken[PlacedBatch] | None) -> Iterator[Taken[PlacedBatch]]:
        """The first batch, then those of the feed, watched while the devices compute."""
        if first is None:
            return
        yield first
        yield from self.feed.watched(lambda: bool(self.pending) and not self.pending[-1].metrics.is_ready())

    def _collect(self, *, keep: int) -> None:
        """Record the steps that are finished; wait for the oldest while more than `keep` are in flight."""
        while self.pending and (len(self.pending) > keep or self._ready(self.pending[0].metrics)):
            item = self.pending.popleft()
            item.metrics.wait()
            now_s = time.perf_counter()
            step_s, self.finished_s = now_s - self.finished_s, now_s
            if not item.follows_step:
                self._leave_untimed_what_is_finished()
            self._record(item, step_s)
        self._collect_evaluations(wait=False)
        self.checkpoints.poll()

    def _leave_untimed_what_is_finished(self) -> None:
        """The next times begin at an end that was seen. Of steps that ended while the host did something else, such as
        compile the audit behind the first step, the times from one to the next would be next to nothing."""
        self.pending = deque(
            item._replace(begins_unseen=True) if item.metrics.is_ready() else item for item in self.pending
        )

    def _ready(self, metrics: StepMetrics) -> bool:
        return not self.votes.several and metrics.is_ready()

    def _record(self, item: Pending, step_s: float) -> None:
        """Clock, events, progress and callbacks of one finished step."""
        result = self.result
        if result.failure is not None:  # dispatched before the failure was known
            result.step, result.rows = result.step - 1, result.rows - item.batch.rows
            return
        fetched = item.metrics.fetch()
        if must_stop(self.parallel, fetched, skipped_before=result.skipped):
            result.failure = nonfinite_error(item.step, values=fetched, metrics=item.metrics, host=item.batch.host)
            self.checkpoints.forget_after(item.step - 1)
        elif fetched["skipped_updates"] > result.skipped:
            self.recorder.skip(item.step, left_out(fetched, metrics=item.metrics))
        result.skipped = fetched["skipped_updates"]
        values = {f"train/{name}": value for name, value in fetched.items()}
        values[TRAIN_ROWS.key] = item.batch.rows
        values |= result.measure_noise(fetched, rows=item.batch.rows)
        values[INPUT_WAIT_S.key] = wait_s = item.taken.idle_s
        values[INPUT_QUEUED_BATCHES.key] = item.queued
        values |= self.vitals.of_step(
            item.taken, rows=item.batch.rows, ended_s=self.finished_s, follows_step=item.is_timed
        )
        result.input_s += wait_s
        if item.is_timed:  # the first step and those behind an evaluation have no step before them to time from
            result.clock.add(step_s, wait_s=wait_s, rows=item.batch.rows)
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
            self.checkpoints.evaluated(evaluation.step, values)
            self.recorder.evaluation(evaluation.step, values)
            shown = ", ".join(f"{key.partition('/')[2]} {value:.4g}" for key, value in values.items())
            self.progress.message(f"evaluation after step {evaluation.step}: {shown}")
            self._call_back(evaluation.step, values)

    def _call_back(self, step: int, values: dict[str, float]) -> None:
        start_s = time.perf_counter()
        for callback in self.callbacks:
            if callback(step, values):
                self.wanted = Stop.CALLBACK
        self.result.host_s += time.perf_counter() - start_s
