"""One call of `Trainer.fit`: what is set up around the loop, in which order, and the report behind it.

Owns: plan, run folder, feed, compilation, loop and report, joined.
Invariant: what can be refused is refused before the first step; after it, however the run ends, the last event and the
report in the run folder say how.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from paceline.base.errors import DataError, OptionError, PacelineError, RunFolderError, StateError
from paceline.base.units import format_count, format_duration
from paceline.data.batch import HostBatch
from paceline.data.feed import Feed
from paceline.engine.parallel import Parallel
from paceline.engine.state import TrainState, check_placement
from paceline.engine.step import CompiledStep, StepFunction
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.progress import Mode, Progress, choose_progress
from paceline.telemetry.recorder import EventSink, NullRecorder, Recorder
from paceline.train.audit import AuditOptions, RunAudits
from paceline.train.batching import DataOptions, RunPlan, plan_run, refuse_padding
from paceline.train.describe import header_lines, run_document
from paceline.train.evaluate import Evaluation
from paceline.train.interrupt import Interrupted, InterruptGuard
from paceline.train.loop import Callback, Loop, LoopResult
from paceline.train.place import PlacedBatch, Placer
from paceline.train.report import Report


@dataclass(frozen=True)
class FitOptions:
    """The arguments of `Trainer.fit`, which documents them."""

    data: DataOptions
    evaluation: Any = None
    evaluate_every: int | None = None
    callbacks: Sequence[Callback] = ()
    run: str | os.PathLike[str] | None = None
    progress: Mode = "none"
    config: Mapping[str, Any] = field(default_factory=dict)
    audit: AuditOptions = field(default_factory=AuditOptions)


StartEvaluation = Callable[..., Evaluation | None]
"""``(state, data, *, batch, step, stop)``; None if `stop` gave it up."""


@dataclass(frozen=True)
class Fit:
    """What a trainer lends to one call of fit."""

    step: StepFunction
    placer: Placer
    start_evaluation: StartEvaluation

    def run(self, state: TrainState, data: Any, *, options: FitOptions) -> tuple[TrainState, Report]:
        """Train as asked. Raises as `Trainer.fit` says."""
        start_s = time.perf_counter()
        first_step, skipped = scalar(state.step), scalar(state.skipped)
        _check_not_halted(self.step.spec.parallel, skipped)
        check_placement(state, parallel=self.step.spec.parallel, mesh=self.step.spec.mesh)
        plan = self.plan(data, options, first_step=first_step)
        with ExitStack() as stack:
            feed = stack.enter_context(Feed(plan.host_batches, self._place(state), depth=options.data.prefetch))
            first = _first_batch(feed)
            plan.refuse_padding(state.model_state, maskable=functools.partial(self.step.is_maskable, state, first.data))
            folder = None if options.run is None else RunFolder.create(options.run)
            recorder = stack.enter_context(
                NullRecorder() if folder is None else Recorder(folder, first_step=first_step)
            )
            document = run_document(
                self.step.spec, options=options.data, plan=plan, state=state, batch=first.valid.size,
                first_step=first_step, config=options.config, audit=options.audit,
            )  # fmt: skip
            if folder is not None:
                folder.write_run(document)
            progress = choose_progress(options.progress, sys.stderr)
            stack.callback(progress.finish)
            progress.start(header_lines(document))
            with _discarding(folder, recorder):
                compiled, compile_s = self._compile(state, first, progress)
            loop = self._loop(
                compiled, feed, plan, options, recorder=recorder, progress=progress,
                result=LoopResult(first_step, first_step, skipped=skipped),
                guard=stack.enter_context(InterruptGuard()),
            )  # fmt: skip
            try:
                state = loop.run(state, first)
            except BaseException as error:
                loop.result.stopped = _words(error)
                _carry(error, loop.state, step=loop.result.step)
                raise
            finally:
                report = _report(
                    loop.result, plan, document, audits=loop.audits, recorder=recorder, compile_s=compile_s,
                    total_s=time.perf_counter() - start_s, skipped_before=skipped, folder=folder,
                )  # fmt: skip
                recorder.close(report.stopped)
                report = _written(report, folder)
        if loop.result.failure is not None:
            loop.result.failure.state = state
            raise loop.result.failure
        if report.stopped == "interrupted":
            raise Interrupted(state, report)
        return state, report

    def plan(self, data: Any, options: FitOptions, *, first_step: int) -> RunPlan:
        """The batches of the run."""
        if options.evaluate_every is not None and options.evaluate_every < 1:
            raise OptionError(
                what=f"evaluate_every={options.evaluate_every}",
                why="an evaluation follows every so many updates",
                fix="use evaluate_every=1 or more, or leave it out to evaluate once at the end",
            )
        spec = self.step.spec
        return plan_run(
            data, options.data, devices=spec.mesh.size, microbatches=spec.parallel.accumulation, first_step=first_step
        )

    def _place(self, state: TrainState) -> Callable[[HostBatch], PlacedBatch]:
        shapes = jax.eval_shape(lambda: state)  # the arrays themselves are donated to the first step

        def place(host: HostBatch) -> PlacedBatch:
            placed = self.placer.train_batch(host)
            maskable = functools.partial(self.step.is_maskable, shapes, placed.data)
            refuse_padding(host, shapes.model_state, maskable=maskable)
            return placed

        return place

    def _compile(self, state: TrainState, first: PlacedBatch, progress: Progress) -> tuple[CompiledStep, float]:
        """The program, and the seconds that this call spent on it."""
        known = self.step.compilations
        compiled = self.step.compiled(state, first.data, first.valid)
        if self.step.compilations == known:
            return compiled, 0.0
        progress.message(f"step compiled in {format_duration(compiled.compile_s)}")
        return compiled, compiled.compile_s

    def _loop(
        self, compiled: CompiledStep, feed: Feed[PlacedBatch], plan: RunPlan, options: FitOptions, *,
        recorder: EventSink, progress: Progress, result: LoopResult, guard: InterruptGuard,
    ) -> Loop:  # fmt: skip
        evaluate = functools.partial(self._evaluate, options)
        return Loop(
            call=compiled.call,
            feed=feed,
            parallel=self.step.spec.parallel,
            recorder=recorder,
            progress=progress,
            callbacks=options.callbacks,
            evaluate=None if options.evaluation is None else evaluate,
            evaluate_every=options.evaluate_every,
            num_steps=plan.num_steps,
            epoch_at=plan.epoch_at,
            audits=self._audits(options.audit, recorder=recorder, progress=progress),
            result=result,
            guard=guard,
        )

    def _audits(self, options: AuditOptions, *, recorder: EventSink, progress: Progress) -> RunAudits:
        spec = self.step.spec
        return RunAudits(
            options, num_devices=spec.mesh.size, device_axis=spec.parallel.scheme == "pmap",
            donate=spec.parallel.donate, recorder=recorder, progress=progress,
        )  # fmt: skip

    def _evaluate(
        self, options: FitOptions, state: TrainState, step: int, stop: Callable[[], bool]
    ) -> Evaluation | None:
        return self.start_evaluation(state, options.evaluation, batch=options.data.batch, step=step, stop=stop)


@contextlib.contextmanager
def _discarding(folder: RunFolder | None, recorder: EventSink) -> Iterator[None]:
    """Take the run folder away again if what is inside fails: no step was made, and the next try may use the path."""
    try:
        yield
    except BaseException:
        recorder.close()
        if folder is not None:
            folder.discard()
        raise


def _carry(error: BaseException, state: TrainState | None, *, step: int) -> None:
    """Hang the last state on whatever ended the run: the one that fit was given has been donated.

    Asks nothing of the devices: it may be a step that failed, which took the state with it.
    """
    if state is None or state.step.is_deleted():
        return
    with contextlib.suppress(AttributeError):  # an exception with slots
        error.state = state  # pyright: ignore[reportAttributeAccessIssue]: a foreign exception gets the attribute here
        error.add_note(f"paceline: the state after step {step} is the attribute `state` of this exception")


def scalar(leaf: Any) -> int:
    """An integer counter of the state; under `pmap` the copy of the first device. Waits for it."""
    return int(np.asarray(leaf.addressable_data(0)).ravel()[0])


def _check_not_halted(parallel: Parallel, skipped: int) -> None:
    """Under `stop` the step updates nothing once the state counts an update that was not finite."""
    if skipped and parallel.nonfinite == "stop" and parallel.precision != "float16":
        raise StateError(
            what=f"the state counts {format_count(skipped, 'update')} left out because they were not finite",
            why="under nonfinite='stop' nothing is updated after the first such update, so the run would train nothing",
            fix="use nonfinite='skip', or start with dataclasses.replace(state, skipped=state.skipped * 0)",
        )


def _words(error: BaseException) -> str:
    what = error.what if isinstance(error, PacelineError) else str(error)
    return f"{type(error).__name__}: {what}".removesuffix(": ")


def _written(report: Report, folder: RunFolder | None) -> Report:
    """The report, written if there is a folder. A full disk must not cost the caller the trained state."""
    if folder is None:
        return report
    try:
        folder.write_report(report.as_dict())
    except RunFolderError as error:
        return dataclasses.replace(report, notices=(*report.notices, error.what))
    return report


def _first_batch(feed: Feed[PlacedBatch]) -> PlacedBatch:
    first = next(feed, None)
    if first is None:
        raise DataError(
            what="the data gave no batch of full size",
            why="there is no step to make",
            fix="pass more rows, a smaller batch, or remainder='pad'",
        )
    return first


def _report(
    result: LoopResult, plan: RunPlan, document: Mapping[str, Any], *, audits: RunAudits, recorder: EventSink,
    compile_s: float, total_s: float, skipped_before: int, folder: RunFolder | None,
) -> Report:  # fmt: skip
    counts = document["counts"]
    speed = result.clock.summary()
    steps = result.step - result.first_step
    stopped = result.stopped
    if stopped is None and result.failure is not None:
        stopped = _words(result.failure)
    if stopped is None and plan.num_steps is not None and steps < plan.num_steps:
        stopped = "the data ended"
    return Report(
        task=document["task"],
        scheme=document["parallel"]["scheme"],
        placement=document["placement"]["summary"],
        devices=document["devices"]["count"],
        global_batch=counts["global_batch"],
        per_device_batch=counts["per_device_batch"],
        accumulation=document["parallel"]["accumulation"],
        steps=steps,
        last_step=result.step,
        epochs=plan.epoch_at(result.step),
        rows_seen=result.rows,
        rows_dropped=plan.dropped_rows(result.first_step, result.step),
        skipped_updates=int(result.skipped) - skipped_before,
        compile_s=compile_s,
        total_s=total_s,
        samples_per_s=speed.samples_per_s,
        step_p50_s=speed.step_p50_s,
        step_p95_s=speed.step_p95_s,
        input_wait_share=speed.input_wait_share,
        final=result.values,
        evaluation=result.evaluation,
        audit=audits.report(),
        stopped=stopped,
        notices=(*_notices(result, plan, recorder), *audits.notices()),
        run_folder=None if folder is None else str(folder.path),
    )


def _notices(result: LoopResult, plan: RunPlan, recorder: EventSink) -> list[str]:
    notices: list[str] = []
    if plan.stream is not None and plan.stream.count.dropped_batches:
        count = plan.stream.count
        notices.append(
            f"{format_count(count.dropped_batches, 'batch')} smaller than the first left out, "
            f"{format_count(count.dropped_rows, 'row')}; remainder='pad' trains on them with the same program"
        )
    if recorder.failure is not None:
        notices.append(f"events were lost: {recorder.failure}")
    loss = result.values.get("train/loss", math.nan)
    if not math.isfinite(loss) and result.failure is None:
        notices.append("the last loss is not finite")
    return notices
