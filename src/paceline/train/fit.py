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
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from paceline.base.errors import DataError, OptionError, StateError
from paceline.base.units import format_count, format_duration
from paceline.data.batch import HostBatch
from paceline.data.feed import Feed, Taken
from paceline.data.joined import StreamPeers
from paceline.data.source import as_source
from paceline.engine.parallel import Parallel
from paceline.engine.state import TrainState, check_placement
from paceline.engine.step import CompiledStep, StepFunction
from paceline.telemetry.exporters.fanout import Fanout
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.progress import Progress, choose_progress
from paceline.telemetry.recorder import EventSink
from paceline.topology.processes import processes
from paceline.train.agreement import agree
from paceline.train.audit import AuditOptions, RunAudits
from paceline.train.batching import Reading, RunPlan, Start, plan_run, refuse_padding
from paceline.train.checkpoints import Checkpoints, RunCheckpoints, RunIdentity, run_identity
from paceline.train.describe import header_lines, run_document
from paceline.train.evaluate import Evaluation
from paceline.train.facts import run_facts
from paceline.train.interrupt import Interrupted, InterruptGuard, Terminated
from paceline.train.loop import AHEAD, Loop, LoopResult
from paceline.train.lost import lost_peer
from paceline.train.options import FitOptions
from paceline.train.outcome import make_report, words, written
from paceline.train.output import discarding, is_run, run_folder, run_recorder, run_store
from paceline.train.place import PlacedBatch, Placer, shares_by_process
from paceline.train.position import Position
from paceline.train.program import subject_of, tell_program
from paceline.train.report import Report
from paceline.train.resume import Resumed, resume, single_to_save
from paceline.train.stragglers import StragglerReport, compare
from paceline.train.vitals import InFlight, Vitals
from paceline.train.votes import Votes

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
        position = Position(scalar(state.step))
        position.enter("start")
        try:
            return self._run(state, data, options, position=position)
        except (Interrupted, Terminated):
            raise
        except BaseException as error:
            lost = lost_peer(error, processes())
            if lost is not None:
                raise lost from error
            position.failed(error)
            raise

    def _run(
        self, state: TrainState, data: Any, options: FitOptions, *, position: Position
    ) -> tuple[TrainState, Report]:
        start_s = time.perf_counter()
        begun = self._begin(state, data, options)
        state, plan, resumed = begun.state, begun.plan, begun.resumed
        with ExitStack() as stack:
            position.enter("input", begun.start.step)
            in_flight = InFlight()
            feed = stack.enter_context(self._feed(state, plan, options, in_flight=in_flight))
            first = _first_batch(feed, plan)
            if first is not None:
                maskable = functools.partial(self.step.is_maskable, state, first.item.data)
                plan.refuse_padding(state.model_state, maskable=maskable)
            document = run_document(
                self.step.spec, options=options, plan=plan, state=state, start=begun.start,
                batch=None if first is None else first.item, resumed_at=None if resumed is None else resumed.step,
            )  # fmt: skip
            folder = run_folder(options, document, is_resumed=resumed is not None, stack=stack)
            progress = choose_progress(options.progress if processes().index == 0 else "none", sys.stderr)
            recorder = stack.enter_context(run_recorder(folder, options, document=document, progress=progress))
            stack.callback(progress.finish)
            progress.start(header_lines(document))
            for text in begun.said:
                progress.message(text)
                recorder.notice(begun.start.step, text)
            store = stack.enter_context(run_store(options.checkpoints, folder=folder, progress=progress))
            checkpoints = RunCheckpoints(
                options.checkpoints or Checkpoints(), store, single=single_to_save(self.step.spec),
                meta=begun.meta(document), recorder=recorder, progress=progress,
                resumed_at=None if resumed is None else resumed.step,
            )  # fmt: skip
            position.enter("compile")
            with discarding(None if resumed is not None else folder, recorder):
                checkpoints.begin(state)
                compiled, compile_s = self._compile(state, None if first is None else first.item, progress)
                self._tell_program(compiled, state, first=first, prefetch=options.data.prefetch, folder=folder)
            loop = self._loop(
                compiled, feed, plan, options, recorder=recorder, progress=progress, position=position,
                vitals=Vitals(self.step.spec.mesh.local_devices, in_flight=in_flight),
                result=LoopResult(begun.start.step, begun.start.step, skipped=begun.skipped),
                guard=stack.enter_context(InterruptGuard()), checkpoints=checkpoints,
                evaluates_first=resumed is not None and begun.start.step % (options.evaluate_every or math.inf) == 0,
            )  # fmt: skip
            ended = functools.partial(
                _ended, loop, plan, document=document, recorder=recorder, compile_s=compile_s, start_s=start_s,
                skipped_before=begun.skipped, restore_s=begun.restore_s, folder=folder, said=begun.said,
            )  # fmt: skip
            try:
                state = loop.run(state, first)
            except BaseException as error:
                loop.result.stopped = words(error)
                _carry(error, loop.state, step=loop.result.step)
                ended(together=False)
                raise
            report = ended(together=loop.result.failure is None)
            position.enter("end", loop.result.step)
        return _returned(state, report, loop)

    def _begin(self, state: TrainState, data: Any, options: FitOptions) -> _Begun:
        """Where the run begins, and that all processes begin the same one."""
        spec = self.step.spec
        start_s = time.perf_counter()
        resumed = resume(state, options.run, how=options.resume, spec=spec, processes=processes())
        restore_s = 0.0 if resumed is None else time.perf_counter() - start_s
        if resumed is not None:
            state = resumed.state
        start = Start(scalar(state.step), 0 if resumed is None else resumed.done)
        skipped = scalar(state.skipped)
        _check_not_halted(spec.parallel, skipped)
        check_placement(state, parallel=spec.parallel, mesh=spec.mesh)
        plan = self.plan(data, options, start=start)
        identity = run_identity(options.data, plan, task=spec.task.name, started_at=start.step - start.done)
        if resumed is not None:
            identity.check(resumed.meta["run"], step=resumed.step)
        if processes().several:
            facts = run_facts(spec, options, identity=identity, start=start, source=as_source(data), rng=state.rng)
            agree(processes(), facts, name="run")
        return _Begun(state, start, plan, identity, resumed, restore_s, skipped, _said(options, resumed))

    def plan(self, data: Any, options: FitOptions, *, start: Start) -> RunPlan:
        """The batches of the run."""
        if options.evaluate_every is not None and options.evaluate_every < 1:
            raise OptionError(
                what=f"evaluate_every={options.evaluate_every}",
                why="an evaluation follows every so many updates",
                fix="use evaluate_every=1 or more, or leave it out to evaluate once at the end",
            )
        own, team = self.placer.share, processes()
        peers = None
        if team.several and not own.whole:
            exchange = functools.partial(team.exchange, team.fresh("batch"))
            peers = StreamPeers(exchange, shares_by_process(self.step.spec.mesh), index=team.index)
        reading = Reading(self.step.spec.parallel.accumulation, own, peers)
        return plan_run(data, options.data, reading=reading, start=start)

    def _feed(self, state: TrainState, plan: RunPlan, options: FitOptions, *, in_flight: InFlight) -> Feed[PlacedBatch]:
        return Feed(plan.host_batches, self._place(state), depth=options.data.prefetch, begun=in_flight.change)

    def _place(self, state: TrainState) -> Callable[[HostBatch], PlacedBatch]:
        shapes = jax.eval_shape(lambda: state)  # the arrays themselves are donated to the first step

        def place(host: HostBatch) -> PlacedBatch:
            placed = self.placer.train_batch(host)
            maskable = functools.partial(self.step.is_maskable, shapes, placed.data)
            refuse_padding(host, shapes.model_state, maskable=maskable)
            return placed

        return place

    def _compile(
        self, state: TrainState, first: PlacedBatch | None, progress: Progress
    ) -> tuple[CompiledStep | None, float]:
        """The program, and the seconds that this call spent on it; None if there is no step to make."""
        if first is None:
            return None, 0.0
        known = self.step.compilations
        compiled = self.step.compiled(state, first.data, first.valid)
        if self.step.compilations == known:
            return compiled, 0.0
        progress.message(f"step compiled in {format_duration(compiled.compile_s)}")
        return compiled, compiled.compile_s

    def _tell_program(
        self, compiled: CompiledStep | None, state: TrainState, *, first: Taken[PlacedBatch] | None, prefetch: int,
        folder: RunFolder | None,
    ) -> None:  # fmt: skip
        if compiled is None or first is None or folder is None or processes().index:
            return
        subject = functools.partial(
            subject_of, compiled, self.step.spec, state=state, first=first.item, prefetch=prefetch
        )
        tell_program(folder, compiled, make=subject)

    def _loop(
        self, compiled: CompiledStep | None, feed: Feed[PlacedBatch], plan: RunPlan, options: FitOptions, *,
        recorder: EventSink, progress: Progress, position: Position, vitals: Vitals, result: LoopResult,
        guard: InterruptGuard, checkpoints: RunCheckpoints, evaluates_first: bool,
    ) -> Loop:  # fmt: skip
        evaluate = functools.partial(self._evaluate, options)
        return Loop(
            call=_no_step if compiled is None else compiled.call,
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
            checkpoints=checkpoints,
            votes=Votes(self.step.spec.mesh, first_step=result.first_step, ahead=AHEAD),
            position=position,
            vitals=vitals,
            result=result,
            guard=guard,
            evaluates_first=evaluates_first and options.evaluation is not None,
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


@dataclass(frozen=True)
class _Begun:
    """A run before its first batch."""

    state: TrainState
    start: Start
    plan: RunPlan
    identity: RunIdentity
    resumed: Resumed | None
    restore_s: float
    skipped: int
    said: tuple[str, ...]
    """What the user should know of the checkpoint that the run goes on from, or did not find."""

    def meta(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """What each checkpoint says about the run."""
        return {"run": dataclasses.asdict(self.identity)} | {
            key: document[key] for key in ("versions", "parallel", "devices")
        }


def _said(options: FitOptions, resumed: Resumed | None) -> tuple[str, ...]:
    if resumed is not None:
        return resumed.said
    if options.resume == "auto" and options.run is not None and is_run(options.run):
        return (f"no checkpoint in {os.fspath(options.run)!r}: the run begins anew",)
    return ()


def _no_step(*_: Any) -> Any:
    raise AssertionError("a run without steps calls none")


def _ended(
    loop: Loop, plan: RunPlan, *, document: Mapping[str, Any], recorder: EventSink, compile_s: float, start_s: float,
    skipped_before: int, restore_s: float, folder: RunFolder | None, said: tuple[str, ...], together: bool,
) -> Report:  # fmt: skip
    """The report, written down; `together` says that the other processes are at the same place."""
    team = processes()
    report = make_report(
        loop, plan, document=document, recorder=recorder, compile_s=compile_s, total_s=time.perf_counter() - start_s,
        skipped_before=skipped_before, restore_s=restore_s, folder=folder, said=said,
        stragglers=_stragglers(loop) if together and team.several else None,
    )  # fmt: skip
    recorder.close(report.stopped)
    report = written(report, folder if team.index == 0 else None)
    if isinstance(recorder, Fanout):
        recorder.finish(report.as_dict())
    return report


def _stragglers(loop: Loop) -> StragglerReport:
    own = {"input_s": loop.result.input_s, "host_s": loop.result.host_s}
    return compare(processes(), own, total_s=loop.result.clock.total_s)


def _returned(state: TrainState, report: Report, loop: Loop) -> tuple[TrainState, Report]:
    """What `fit` returns, or raises with the state: the run failed, a signal ended it, or a checkpoint was not
    saved."""
    if loop.result.failure is not None:
        loop.result.failure.state = state
        raise loop.result.failure
    if report.stopped == "interrupted":
        raise Interrupted(state, report)
    if report.stopped == "terminated":
        raise Terminated(state, report)
    lost = loop.checkpoints.failure
    if lost is not None and loop.checkpoints.options.on_failure == "fail":
        lost.state = state
        raise lost
    return state, report


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


def _first_batch(feed: Feed[PlacedBatch], plan: RunPlan) -> Taken[PlacedBatch] | None:
    """The first batch; None for a resumed run that has made all of its steps."""
    with contextlib.suppress(StopIteration):
        return feed.take()
    if plan.num_steps != 0:
        raise DataError(
            what="the data gave no batch of full size",
            why="there is no step to make",
            fix="pass more rows, a smaller batch, or remainder='pad'",
        )
    return None
