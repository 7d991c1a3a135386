"""One setting ready to run, and two of them measured in turns.

Owns: compiling a setting, its memory against the limit, a run of some steps, the pairs of a comparison.
Not here: which settings are compared (`search`).
Invariant: what does not fit is never run; each run begins with the same first state and real batches of the feed, and
nothing is compiled inside it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from paceline.base.errors import PacelineError
from paceline.base.units import format_bytes
from paceline.check.replication import check_step
from paceline.data.example import Example, read_example
from paceline.data.feed import Feed
from paceline.engine.abstract import Arguments, abstract_arguments
from paceline.engine.precision import is_key
from paceline.engine.state import TrainState
from paceline.engine.step import CompiledStep, StepFunction
from paceline.engine.update import StepSpec
from paceline.insight.memory.stats import memory_stats
from paceline.measure.scale.subject import MakeSubject, Subject
from paceline.measure.timing import WARM_STEPS, drive, in_turn, steps_for
from paceline.measure.tune.search import MOST_PAIRS, DoesNotFit, Failed, Pairs, TimeUp, is_settled
from paceline.measure.tune.setting import Setting
from paceline.train.batching import DataOptions, Reading, RunPlan, Start, plan_run
from paceline.train.fit import scalar
from paceline.train.place import PlacedBatch, Placer
from paceline.train.trainer import Trainer

_LEAST_STEPS = 4
_FIRST_STEPS = 2


class Rig:
    """One setting, compiled.

    Args:
      subject: the task for the setting's batch.
      setting: what to run.
      devices: K of them.
      example: what the data looks like.
    Raises: what the trainer refuses, and what the compiler says.
    """

    def __init__(self, subject: Subject, setting: Setting, *, devices: Sequence[jax.Device], example: Example) -> None:
        self.setting = setting
        self._subject, self._source = subject, subject.source()
        self.trainer = Trainer(
            subject.task, subject.optimizer, devices=devices, parallel=setting.parallel, schedule=subject.schedule
        )
        spec = StepSpec(subject.task, subject.optimizer, setting.parallel, self.trainer.mesh, subject.schedule)
        self._step = StepFunction(spec, check=check_step)
        self._placer = Placer(setting.parallel, self.trainer.mesh)
        self._example = example
        self.steps: int = 0
        """Timed steps of a run; 0 until the setting is known to run."""

    def _arguments(self, batch: int) -> Arguments:
        return abstract_arguments(self._step.spec, self._example.structure, rows=batch)

    @functools.cached_property
    def compiled(self) -> CompiledStep:
        """The program of the setting."""
        return self._compiled(self.setting.batch)

    def _compiled(self, batch: int) -> CompiledStep:
        made = self._arguments(batch)
        return self._step.compiled(made.state, made.batch, made.valid)

    def peak_bytes(self, batch: int) -> int | None:
        """What one device needs for a step with such a batch, those made ahead included; None if nothing tells."""
        found = memory_stats(self._compiled(batch).program)
        if found is None:
            return None
        ahead = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self._arguments(batch).batch))
        return found.allocated_bytes + self.setting.prefetch * ahead // self.trainer.num_devices

    def abstract_state(self) -> TrainState:
        """The state as shapes."""
        return self._arguments(self.setting.batch).state

    def first_state(self) -> TrainState:
        """The first state of a run, without device axis, on the host."""
        single = self.trainer.single(self.trainer.init(seed=self._subject.seed))
        return jax.tree.map(lambda leaf: leaf if is_key(leaf) else np.array(leaf), single)

    def plan(self, steps: int) -> RunPlan:
        """The batches of so many steps. Raises: BatchSizeError: rows that do not split, or more than the data has."""
        subject = self._subject
        options = DataOptions(self.setting.batch, steps, None, subject.shuffle, subject.seed)
        reading = Reading(self.setting.parallel.accumulation, self._placer.share)
        return plan_run(self._source, options, reading=reading, start=Start(0))

    def run(self, first: TrainState) -> float:
        """Seconds a step, over `steps` of them behind the warm-up, with batches from the feed.

        Raises: Failed: the loss was not finite, so that updates were left out, which takes another time.
        """
        call = self.compiled.call

        def step(state: Any, batch: PlacedBatch) -> tuple[Any, Any]:
            state, metrics = call(state, batch.data, batch.valid)
            return state, metrics.values

        count = max(self.steps, _FIRST_STEPS) + WARM_STEPS
        plan, state = self.plan(count), self.trainer.place(first)
        with Feed(plan.host_batches, self._placer.train_batch, depth=self.setting.prefetch) as feed:
            timed = drive(step, state, batches=feed)
        if self.setting.parallel.precision != "float16" and scalar(timed.state.skipped):
            raise Failed(f"a loss or gradient was not finite within the first {count} steps")
        return timed.step_s


class Bench:
    """Compares settings within a time.

    Args:
      make_subject: the task for a batch.
      devices: K of them.
      limit_bytes: what a program may take of one device; None if that is unknown: then nothing is refused.
      deadline_s: when to stop, on `clock`.
      run_s: about how long one run is timed.
      clock: gives seconds.
    """

    def __init__(
        self, make_subject: MakeSubject, *, devices: Sequence[jax.Device], limit_bytes: int | None, deadline_s: float,
        run_s: float, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._make_subject = make_subject
        self.devices = devices
        self._limit_bytes = limit_bytes
        self._deadline_s = deadline_s
        self._run_s = run_s
        self._clock = clock
        self._rigs: dict[Setting, Rig] = {}
        """The first setting and those that were kept: they need not compile again."""
        self._newest: Rig | None = None
        self._example: Example | None = None
        self._first: TrainState | None = None

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._clock() >= self._deadline_s

    def rig(self, setting: Setting) -> Rig:
        """The setting, not compiled yet unless it was kept. The first that is asked for is kept."""
        if setting in self._rigs:
            return self._rigs[setting]
        subject = self._make_subject(setting.batch)
        if self._example is None:
            self._example = read_example(subject.data)
        made = Rig(subject, setting, devices=self.devices, example=self._example)
        if not self._rigs:
            self._rigs[setting] = made
        return made

    def ready(self, setting: Setting) -> Rig:
        """The setting, compiled, known to fit and to run.

        Raises: DoesNotFit, Failed.
        """
        rig = self.rig(setting)
        if rig.steps:
            return rig
        peak, limit = rig.peak_bytes(setting.batch), self._limit_bytes
        if peak is not None and limit is not None and peak > limit:
            raise DoesNotFit(f"{format_bytes(peak)} a device, of {format_bytes(limit)}")
        if self._first is None:
            self._first = rig.first_state()
        rig.steps = steps_for(rig.run(self._first), seconds=self._run_s, at_least=_LEAST_STEPS)
        return rig

    def compare(self, current: Setting, other: Setting) -> Pairs:
        """Runs of each in turns until they are settled, or until the time is up.

        Raises: DoesNotFit, Failed: the other. TimeUp.
        """
        if self.is_over():
            raise TimeUp("the time is up")
        try:
            new = self.ready(other)
            pairs = self._pairs(self.ready(current), new)
        except jax.errors.JaxRuntimeError as error:
            raise Failed(first_line(error)) from error
        except PacelineError as error:
            raise Failed(error.what) from error
        self._newest = new
        return pairs

    def keep(self) -> None:
        """The other of the last comparison is going to be compared with more."""
        if self._newest is not None:
            self._rigs[self._newest.setting] = self._newest

    def _pairs(self, current: Rig, other: Rig) -> Pairs:
        assert self._first is not None, "made when the first setting was ready"
        rates: dict[Rig, list[float]] = {current: [], other: []}
        for pair in range(MOST_PAIRS):
            if self.is_over() or is_settled(rates[current], rates[other]):
                break
            for rig in in_turn([current, other], repeat=pair):
                rates[rig].append(rig.setting.batch / rig.run(self._first))
        return Pairs(tuple(rates[current]), tuple(rates[other]), other.compiled.compile_s)


def first_line(error: BaseException) -> str:
    """Of an error's text, as short as a table takes it."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160]
