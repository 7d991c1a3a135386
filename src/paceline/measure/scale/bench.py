"""The stages of a run on K devices, each measured by itself.

Owns: compilation before any measurement, one loop a stage, the counters of Little's law.
Not here: the truncated program (`local`), which stages are measured when (`rounds`).
Invariant: nothing is compiled inside a measurement, and every loop waits for its results.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from paceline.data.batch import HostBatch
from paceline.data.feed import Feed
from paceline.engine.metrics import StepMetrics
from paceline.engine.parallel import Parallel
from paceline.insight.noise import NoiseScale
from paceline.measure.scale.local import LocalStep
from paceline.measure.scale.subject import Flow, MakeSubject, Sample, Stage
from paceline.measure.timing import WARM_STEPS, drive
from paceline.telemetry.metrics import INPUT_WAIT_S
from paceline.train.batching import DataOptions, Reading, Start, plan_run
from paceline.train.interrupt import Interrupted, Terminated
from paceline.train.loop import AHEAD
from paceline.train.place import PlacedBatch, Placer
from paceline.train.trainer import Trainer

_RESIDENT_BATCHES = 4


class Bench:
    """One global batch on K devices.

    Args:
      make_subject: gives the task for the batch.
      devices: K of them.
      batch: rows B of the global batch.
    Raises: whatever `Trainer` and the data refuse.
    """

    def __init__(self, make_subject: MakeSubject, devices: Sequence[jax.Device], *, batch: int) -> None:
        self.subject = make_subject(batch)
        self._batch, self._devices = batch, list(devices)
        self._data = self.subject.source()
        self._trainer = Trainer(
            self.subject.task, self.subject.optimizer, devices=devices, parallel=self.subject.parallel,
            schedule=self.subject.schedule,
        )  # fmt: skip
        self._state = self._trainer.init(seed=self.subject.seed)
        self._placer = Placer(self.subject.parallel, self._trainer.mesh)
        self._resident = list(self._placed(_RESIDENT_BATCHES))
        self._noise = NoiseScale()
        first = self._resident[0]
        self._call: Callable[..., tuple[Any, StepMetrics]] = self._trainer.compiled(self._state, first)
        self._make_local(first)

    def _make_local(self, first: PlacedBatch) -> None:
        one = Trainer(self.subject.task, self.subject.optimizer, devices=self._devices[:1],
                      parallel=_of_one_device(self.subject.parallel))  # fmt: skip
        local = LocalStep(self.subject, self._devices)
        self._local_state = local.state(one.init(seed=self.subject.seed))
        placer = Placer(Parallel(accumulation=self.subject.parallel.accumulation), self._trainer.mesh)
        placed = [placer.train_batch(batch.host) for batch in self._resident]
        self._local_batches = [local.batch(batch.data) for batch in placed]
        self._local_valid = local.batch(placed[0].valid)
        self._flags = {"local": local.flag(False), "barrier": local.flag(True)}
        self._local_call = local.compile(self._local_state, self._local_batches[0], self._local_valid)

    def measure(self, stage: Stage, *, steps: int) -> Sample:
        """So many timed steps of a stage, after the warm-up.

        Raises: KeyboardInterrupt: Ctrl-C. NonFiniteError: the training that is measured diverged.
        """
        if stage in ("local", "barrier"):
            return self._measure_local(stage, steps)
        if stage == "step":
            return self._measure_step(steps)
        return self._measure_feed(steps) if stage == "feed" else self._measure_fit(steps)

    def trace(self, folder: str, *, steps: int) -> None:
        """A profiler's trace of so many steps of the real program, on batches that are on the devices already."""
        assert steps > WARM_STEPS, "the loop has a warm-up"
        self._measure_step(1)
        with jax.profiler.trace(folder):
            self._measure_step(steps - WARM_STEPS)

    def _measure_local(self, stage: Stage, steps: int) -> Sample:
        flag = self._flags[stage]

        def step(state: Any, batch: Any) -> tuple[Any, Any]:
            return self._local_call(state, batch, self._local_valid, flag)

        taken = drive(step, self._local_state, batches=_cycled(self._local_batches, steps))
        self._local_state = taken.state
        return Sample(taken.step_s)

    def _measure_step(self, steps: int) -> Sample:
        def step(state: Any, batch: PlacedBatch) -> tuple[Any, Any]:
            state, metrics = self._call(state, batch.data, batch.valid)
            return state, metrics.values

        taken = drive(step, self._state, batches=_cycled(self._resident, steps))
        self._state = taken.state
        return Sample(taken.step_s)

    def _host_batches(self, count: int) -> Iterator[HostBatch]:
        subject = self.subject
        options = DataOptions(self._batch, count, None, subject.shuffle, subject.seed, "drop", subject.prefetch)
        reading = Reading(subject.parallel.accumulation, self._placer.share)
        return plan_run(self._data, options, reading=reading, start=Start(0)).host_batches

    def _placed(self, count: int) -> Iterator[PlacedBatch]:
        return (self._placer.train_batch(host) for host in self._host_batches(count))

    def _measure_feed(self, steps: int) -> Sample:
        """The loop of a user around the compiled step, with the counters of what is on its way."""
        in_flight: deque[StepMetrics] = deque()
        in_hand: list[PlacedBatch] = []  # taken from the queue, its step not dispatched: on a CPU that may run the step
        counter = FlowCounter(lambda: feed.queued + len(in_hand) + len(in_flight))

        def place(host: HostBatch) -> PlacedBatch:
            placed = self._placer.train_batch(host)
            counter.enters()
            return placed

        def finish() -> None:
            in_flight[0].wait()
            in_flight.popleft()
            counter.finished()

        state, wait_s = self._state, 0.0
        with Feed(self._host_batches(steps + WARM_STEPS), place, depth=self.subject.prefetch) as feed:
            for batch in feed:
                in_hand.append(batch)
                if counter.timing and (not in_flight or in_flight[-1].is_ready()):
                    wait_s += feed.wait_s
                state, metrics = self._call(state, batch.data, batch.valid)
                in_flight.append(metrics)
                in_hand.clear()
                while len(in_flight) > AHEAD:
                    finish()
            while in_flight:
                finish()
        self._state = state
        flow = counter.flow()
        return Sample(flow.step_s, wait_s / steps, flow)

    def _measure_fit(self, steps: int) -> Sample:
        """`Trainer.fit` as a user calls it, with a run folder; timed from step to step by a callback."""
        subject, marks = self.subject, FitMarks(self._noise, rows=self._batch)
        with tempfile.TemporaryDirectory(prefix="paceline-scale-") as folder:
            try:
                self._state, _ = self._trainer.fit(
                    self._state, self._data, batch=self._batch, steps=steps + WARM_STEPS, shuffle=subject.shuffle,
                    seed=subject.seed, prefetch=subject.prefetch, audit_every=0, callbacks=[marks],
                    run=Path(folder) / "run",
                )  # fmt: skip
            except (Interrupted, Terminated) as ended:
                raise KeyboardInterrupt from ended
        return marks.sample()


class FlowCounter:
    """When batches stood in the queue and when their results were there, and how many were on the way in between.

    Args:
      look: how many are on the way: queued, and of steps in flight. Asked whenever the number changes.
      clock: gives seconds.

    Latency is stamped batch by batch, the number is looked at: so one can contradict the other.
    """

    def __init__(self, look: Callable[[], int], *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.timing: bool = False
        """Whether the warm-up is over."""
        self._look, self._clock = look, clock
        self._lock = threading.Lock()  # the feed's thread and the loop
        self._entered_s: deque[float] = deque()
        self._done = 0
        self._start_s = self._last_s = 0.0
        self._on_way = 0
        self._area = self._latency_s = 0.0

    def enters(self) -> None:
        """A batch is about to stand in the queue; called in the feed's thread."""
        with self._lock:
            self._passed(self._clock())
            self._entered_s.append(self._last_s)
            if self.timing:  # before that nothing is added up, and the loop may not have begun
                self._on_way = self._look() + 1

    def finished(self) -> None:
        """The result of the oldest batch is there, and it is counted no more."""
        with self._lock:
            self._passed(self._clock())
            self._on_way = self._look()
            self._done += 1
            entered_s = self._entered_s.popleft()
            if self.timing:
                # From the start on, for what was on the way by then: else the first batches would count time that the
                # other side does not.
                self._latency_s += self._last_s - max(entered_s, self._start_s)
            elif self._done == WARM_STEPS:
                self.timing, self._start_s = True, self._last_s

    def _passed(self, now_s: float) -> None:
        if self.timing:
            self._area += self._on_way * (now_s - self._last_s)
        self._last_s = now_s

    def flow(self) -> Flow:
        """Of all timed steps."""
        steps, total_s = self._done - WARM_STEPS, self._last_s - self._start_s
        return Flow(self._latency_s / steps, total_s / steps, self._area / total_s)


class FitMarks:
    """A callback of `Trainer.fit` that notes when the warm-up and the last step ended, and the waits in between.

    Args:
      noise: takes in what each step says of the gradient noise, if it does.
      rows: of the global batch.
    """

    def __init__(self, noise: NoiseScale, *, rows: int) -> None:
        self._noise, self._rows = noise, rows
        self._steps = 0
        self._start_s = self._last_s = 0.0
        self._wait_s = 0.0

    def __call__(self, step: int, values: dict[str, float]) -> None:
        del step
        self._last_s = time.perf_counter()
        self._steps += 1
        if self._steps == WARM_STEPS:
            self._start_s = self._last_s
        elif self._steps > WARM_STEPS:
            self._wait_s += values[INPUT_WAIT_S.key]
        if "train/local_gradient_norm" in values:
            small, big = values["train/local_gradient_norm"] ** 2, values["train/gradient_norm"] ** 2
            small_rows = self._rows / max(values["train/gradient_devices"], 1)
            self._noise.update(small, big, small_rows=small_rows, big_rows=self._rows)

    def sample(self) -> Sample:
        """Of the steps behind the warm-up."""
        steps, known = self._steps - WARM_STEPS, self._noise.estimate
        return Sample(
            (self._last_s - self._start_s) / steps,
            self._wait_s / steps,
            noise_rows=None if known is None else known.rows,
            noise_unknown=self._noise.why_unknown if known is None else "",
        )


def _cycled(batches: Sequence[Any], steps: int) -> Iterator[Any]:
    return itertools.islice(itertools.cycle(batches), steps + WARM_STEPS)


def _of_one_device(parallel: Parallel) -> Parallel:
    """What shapes the state: precision (loss scale) and moving average."""
    return Parallel(precision=parallel.precision, ema_decay=parallel.ema_decay)
