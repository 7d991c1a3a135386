"""The stages of a run on K devices, each measured by itself.

Owns: compilation before any measurement, one loop a stage, the counters of Little's law.
Not here: the truncated program (`local`), which stages are measured when (`rounds`).
Invariant: nothing is compiled inside a measurement, every loop waits for its results, and every measurement begins with
the same first state. Between measurements states and batches lie on the host: only one bench fills the devices.
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
import jax.numpy as jnp
import numpy as np

from paceline.data.batch import HostBatch
from paceline.data.feed import Feed
from paceline.engine.metrics import StepMetrics
from paceline.engine.parallel import Parallel
from paceline.engine.precision import is_key
from paceline.engine.state import TrainState
from paceline.insight.noise import NoiseScale
from paceline.measure.scale.local import LocalStep
from paceline.measure.scale.memory import is_out_of_memory
from paceline.measure.scale.subject import Flow, MakeSubject, Noise, Sample, Stage
from paceline.measure.timing import WARM_STEPS, drive
from paceline.telemetry.metrics import INPUT_WAIT_S
from paceline.train.batching import DataOptions, Reading, Start, plan_run
from paceline.train.interrupt import Interrupted, Terminated
from paceline.train.loop import AHEAD
from paceline.train.place import PlacedBatch, Placer
from paceline.train.trainer import Trainer

_RESIDENT_BATCHES = 4

NOISE_STEPS = 100
"""Steps that the gradient noise scale is taken from: as many as its averages reach back over (`insight.noise`)."""


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
        self._placer = Placer(self.subject.parallel, self._trainer.mesh)
        self._resident = list(self._host_batches(_RESIDENT_BATCHES))
        first = self._placer.train_batch(self._resident[0])
        state = self._trainer.init(seed=self.subject.seed)
        self._first = on_host(self._trainer.single(state) if self.subject.parallel.scheme == "pmap" else state)
        self._call: Callable[..., tuple[Any, StepMetrics]] = self._trainer.compiled(state, first)
        del state, first
        self.no_local: str = self._try_local()
        """Why the stages ``local`` and ``barrier`` cannot be measured; empty if they can."""

    def _try_local(self) -> str:
        if self.subject.parallel.placement == "fsdp":
            return "with fsdp no device holds all parameters, which the truncated step needs"
        self._local = LocalStep(self.subject, self._devices)
        self._local_placer = Placer(Parallel(accumulation=self.subject.parallel.accumulation), self._trainer.mesh)
        try:
            state, batches, valid = self._local_arguments()
            self._local_call = self._local.compile(state, batches[0], valid)
            del state, batches
            self._measure_local("local", 1)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return "the truncated step, whose devices hold a whole state each, does not fit the memory"
        return ""

    def _local_arguments(self) -> tuple[Any, list[Any], Any]:
        placed = [self._local_placer.train_batch(host) for host in self._resident]
        batches = [self._local.batch(batch.data) for batch in placed]
        return self._local.state(self._first), batches, self._local.batch(placed[0].valid)

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
        flag = self._local.flag(stage == "barrier")
        first, batches, valid = self._local_arguments()

        def step(state: Any, batch: Any) -> tuple[Any, Any]:
            return self._local_call(state, batch, valid, flag)

        return Sample(drive(step, first, batches=_cycled(batches, steps)).step_s)

    def _measure_step(self, steps: int) -> Sample:
        def step(state: Any, batch: PlacedBatch) -> tuple[Any, Any]:
            state, metrics = self._call(state, batch.data, batch.valid)
            return state, metrics.values

        batches = [self._placer.train_batch(host) for host in self._resident]
        return Sample(drive(step, self._first_state(), batches=_cycled(batches, steps)).step_s)

    def _first_state(self) -> TrainState:
        return self._trainer.place(self._first)

    def _host_batches(self, count: int) -> Iterator[HostBatch]:
        subject = self.subject
        options = DataOptions(self._batch, count, None, subject.shuffle, subject.seed, "drop", subject.prefetch)
        reading = Reading(subject.parallel.accumulation, self._placer.share)
        return plan_run(self._data, options, reading=reading, start=Start(0)).host_batches

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

        state, wait_s = self._first_state(), 0.0
        with Feed(self._host_batches(steps + WARM_STEPS), place, depth=self.subject.prefetch) as feed:
            for taken in feed.watched(lambda: bool(in_flight) and not in_flight[-1].is_ready()):
                batch = taken.item
                in_hand.append(batch)
                if counter.timing:
                    wait_s += taken.idle_s
                state, metrics = self._call(state, batch.data, batch.valid)
                in_flight.append(metrics)
                in_hand.clear()
                while len(in_flight) > AHEAD:
                    finish()
            while in_flight:
                finish()
        flow = counter.flow()
        return Sample(flow.step_s, wait_s / steps, flow)

    def _measure_fit(self, steps: int) -> Sample:
        """`Trainer.fit` as a user calls it, with a run folder; timed from step to step by a callback."""
        marks = FitMarks()
        self._fit(self._first_state(), steps + WARM_STEPS, callback=marks)
        return marks.sample()

    def noise(self, *, steps: int = NOISE_STEPS) -> Noise:
        """The gradient noise scale over the first steps from a new state, each with rows that the last had not.

        As `paceline train --noise-scale` measures it; nothing is timed.

        Raises: as `measure`.
        """
        marks = NoiseMarks(rows=self._batch)
        self._fit(self._trainer.init(seed=self.subject.seed), steps, callback=marks)
        return marks.noise()

    def _fit(self, state: TrainState, steps: int, *, callback: Callable[[int, dict[str, float]], None]) -> None:
        subject = self.subject
        with tempfile.TemporaryDirectory(prefix="paceline-scale-") as folder:
            try:
                self._trainer.fit(
                    state, self._data, batch=self._batch, steps=steps, shuffle=subject.shuffle, seed=subject.seed,
                    prefetch=subject.prefetch, audit_every=0, callbacks=[callback], run=Path(folder) / "run",
                )  # fmt: skip
            except (Interrupted, Terminated) as ended:
                raise KeyboardInterrupt from ended


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
    """A callback of `Trainer.fit` that notes when the warm-up and the last step ended, and the waits in between."""

    def __init__(self) -> None:
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

    def sample(self) -> Sample:
        """Of the steps behind the warm-up."""
        steps = self._steps - WARM_STEPS
        return Sample((self._last_s - self._start_s) / steps, self._wait_s / steps)


class NoiseMarks:
    """A callback of `Trainer.fit` that takes in what each step says of the gradient noise.

    Args:
      rows: of the global batch.
    """

    def __init__(self, *, rows: int) -> None:
        self._scale, self._rows = NoiseScale(), rows

    def __call__(self, step: int, values: dict[str, float]) -> None:
        del step
        if "train/local_gradient_norm" in values:
            small, big = values["train/local_gradient_norm"] ** 2, values["train/gradient_norm"] ** 2
            small_rows = self._rows / max(values["train/gradient_devices"], 1)
            self._scale.update(small, big, small_rows=small_rows, big_rows=self._rows)

    def noise(self) -> Noise:
        """What was seen."""
        known, steps = self._scale.estimate, self._scale.steps
        if known is None:
            return Noise(None, self._scale.why_unknown, steps=steps)
        return Noise(known.rows, relative_error=known.relative_error, steps=steps)


def on_host(state: TrainState) -> TrainState:
    """A state without device axis, copied whole to the host; the step may then take the memory of the original."""
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if is_key(leaf) else np.array(leaf), state)


def _cycled(batches: Sequence[Any], steps: int) -> Iterator[Any]:
    return itertools.islice(itertools.cycle(batches), steps + WARM_STEPS)
