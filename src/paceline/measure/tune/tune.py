"""The largest batch that fits, and then the settings that train fastest.

Owns: the limit of memory, the start, the order of the parts, the notes.
Not here: trials (`search`), runs (`rig`), words of the result (`result`).
Invariant: a setting that fails is listed; only the user's own setting, if it cannot run, ends the tuning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from paceline.base.errors import PacelineError
from paceline.base.units import format_count
from paceline.insight.memory.largest import largest_batch
from paceline.measure.scale.cores import usable_cores
from paceline.measure.scale.subject import MakeSubject, Subject
from paceline.measure.tune.options import Room
from paceline.measure.tune.result import Memory, TuneResult
from paceline.measure.tune.rig import Bench, Rig, first_line
from paceline.measure.tune.search import DoesNotFit, Failed, Pairs, TimeUp, Trial, judge, search
from paceline.measure.tune.setting import Setting
from paceline.topology.devices import machine_memory

USABLE = 0.9
"""Share of JAX's memory on a device that a setting may take: fragmentation, and programs to evaluate, need the rest."""

MEMORY_SHARE = 0.4
"""Share of the time that the search for the largest batch may take."""

_MOST_COMPILATIONS = 5
_RUNS = 250
"""A tuning makes some two dozen comparisons of twelve runs at most; a run gets this part of the time."""

_RUN_S = (0.05, 1.0)


class TuneError(PacelineError):
    """A task that cannot be tuned as it is set up."""


class _TimeUp(Exception):
    """The search for the largest batch took its share of the time."""


@dataclass(frozen=True)
class TuneOptions:
    """How to tune.

    Args:
      seconds: about how long it may take; a compilation that has begun is finished.
      keep_training: change nothing that changes the updates: batch, whose rows BatchNorm sees.
      memory_bytes: of one device, where it does not say itself, or to tune for a smaller one.
    """

    seconds: float = 300.0
    keep_training: bool = False
    memory_bytes: int | None = None


@dataclass
class Heard:
    """What is told while it runs.

    Args:
      memory: how many rows fit.
      trial: a trial that has ended.
    """

    memory: Callable[[Memory], None] = field(default=lambda _: None)
    trial: Callable[[Trial], None] = field(default=lambda _: None)


def tune(
    make_subject: MakeSubject, start: Setting, *, devices: Sequence[jax.Device], options: TuneOptions, default: Setting,
    heard: Heard | None = None, clock: Callable[[], float] = time.monotonic,
) -> TuneResult:  # fmt: skip
    """Find faster settings from `start`.

    Args:
      make_subject: the task for a batch; its `parallel` and `prefetch` are not read.
      devices: K of them.
      default: what `paceline train` does untold, for the flags.
      heard: told of what is found as it is found.
    Raises: TuneError: the start does not fit, or does not run. MemoryFitError: not even one row fits. What the task,
      its data and the trainer refuse.
    """
    heard, begun_s = heard or Heard(), clock()
    limit = memory_limit(devices, options.memory_bytes)
    run_s = min(max(options.seconds / _RUNS, _RUN_S[0]), _RUN_S[1])
    bench = Bench(
        make_subject, devices=devices, limit_bytes=limit, deadline_s=begun_s + options.seconds, run_s=run_s, clock=clock
    )
    subject = make_subject(start.batch)
    rig = bench.rig(start)
    rig.plan(1)  # refuses rows that do not split before anything compiles
    if options.keep_training:
        memory = start_memory(rig, limit=limit)
    else:
        deadline_s = begun_s + MEMORY_SHARE * options.seconds
        memory = find_memory(rig, subject, limit=limit, deadline_s=deadline_s, clock=clock)
    heard.memory(memory)
    _check_start(bench, start, memory)
    best, trials = search(
        start, _room(rig, subject, memory, options), compare=bench.compare, say=_heard(bench, heard.trial)
    )  # fmt: skip
    total = None if best == start else _total(bench, start, best)
    return TuneResult(
        subject.task.name, len(devices), devices[0].device_kind, start, best, default, memory, tuple(trials), total,
        clock() - begun_s, (*_notes(start, best, devices, trials), *_total_notes(start, best, total)),
    )  # fmt: skip


def _total(bench: Bench, start: Setting, best: Setting) -> Pairs | None:
    """Start and end against each other: what several kept changes gain together is not the product of what each did."""
    try:
        pairs = bench.compare(start, best)
    except (DoesNotFit, Failed, TimeUp):
        return None
    return pairs if pairs.after else None


def memory_limit(devices: Sequence[Any], given: int | None) -> int | None:
    """What a program may take of one device; simulated devices share the machine's memory. None if unknown.

    No more than the device has, whatever is given: what is tried is run on it. A GPU tells what JAX's pool may hold
    there, three quarters of the whole unless XLA_CLIENT_MEM_FRACTION says otherwise.
    """
    known = [] if given is None else [given]
    if devices[0].platform == "cpu":
        known.append(machine_memory() // len(devices))
    elif (told := (devices[0].memory_stats() or {}).get("bytes_limit")) is not None:
        known.append(told)
    return int(USABLE * min(known)) if known else None


def find_memory(
    rig: Rig, subject: Subject, *, limit: int | None, deadline_s: float, clock: Callable[[], float]
) -> Memory:  # fmt: skip
    """How many rows fit a device, by compiling. Raises: MemoryFitError: not even the fewest do."""
    count, setting = rig.trainer.num_devices, rig.setting
    multiple, data_rows = setting.parallel.accumulation, len(subject.source()) // count
    if limit is None:
        return Memory(None, None, None, ended_by="nothing known")
    compiled: dict[int, int] = {}

    def peak(rows: int) -> int:
        if compiled and clock() > deadline_s:
            raise _TimeUp
        found = rig.peak_bytes(rows * count)
        if found is None:
            raise _NoAnalysis
        compiled[rows] = found
        return found

    try:
        found = largest_batch(
            peak, limit_bytes=limit, start_rows=setting.batch // count, multiple=multiple,
            most_compilations=_MOST_COMPILATIONS, most_rows=data_rows,
        )  # fmt: skip
    except _NoAnalysis:
        return Memory(None, None, limit, ended_by="nothing known")
    except _TimeUp:
        fit = {rows: size for rows, size in compiled.items() if size <= limit}
        rows = max(fit, default=None)
        return Memory(rows, None if rows is None else fit[rows], limit, compiled, ended_by="time")
    except jax.errors.JaxRuntimeError as error:
        raise _cannot_run("does not compile", first_line(error)) from error
    open_end = "data" if found.rows + multiple > data_rows else "compilations"
    ended_by = "memory" if found.is_bounded else open_end
    return Memory(found.rows, found.peak_bytes, limit, found.compiled, ended_by)


def start_memory(rig: Rig, *, limit: int | None) -> Memory:
    """What the start takes of a device: the only program to compile where the batch is fixed."""
    try:
        peak = rig.peak_bytes(rig.setting.batch)
    except jax.errors.JaxRuntimeError as error:
        raise _cannot_run("does not compile", first_line(error)) from error
    if peak is None:
        return Memory(None, None, limit, ended_by="nothing known")
    rows = rig.setting.batch // rig.trainer.num_devices
    return Memory(None, peak, limit, {rows: peak}, ended_by="batch fixed")


class _NoAnalysis(Exception):
    """The compiler of these devices tells nothing of memory."""


def _check_start(bench: Bench, start: Setting, memory: Memory) -> None:
    """Raise TuneError unless the user's own setting fits and runs."""
    try:
        bench.ready(start)
    except DoesNotFit as error:
        rows = memory.largest_rows
        smaller = "use a smaller --batch" if rows is None else f"use --batch {rows * len(bench.devices)} or less"
        raise TuneError(
            what=f"batch {start.batch} does not fit: {error}",
            why="a setting has to run to be measured",
            fix=f"{smaller}, or more --accumulation",
        ) from error
    except Failed as error:
        raise _cannot_run("does not run", str(error)) from error
    except jax.errors.JaxRuntimeError as error:
        raise _cannot_run("does not run", first_line(error)) from error


def _cannot_run(what: str, why: str) -> TuneError:
    return TuneError(
        what=f"the step {what} as it is set up: {why}",
        why="there is nothing to compare with",
        fix="see that paceline doctor finds nothing, with the same options",
    )


def _room(rig: Rig, subject: Subject, memory: Memory, options: TuneOptions) -> Room:
    count, state = rig.trainer.num_devices, rig.abstract_state()
    copies = count if rig.setting.parallel.scheme == "pmap" else 1
    wire_bytes = 2 if rig.setting.parallel.reduce_dtype == "bfloat16" else 4
    return Room(
        devices=count,
        found_for=rig.setting.parallel,
        largest_rows=memory.largest_rows if memory.ended_by == "memory" else None,
        refuses=memory.ended_by != "nothing known",
        data_rows=len(subject.source()) // count,
        gradient_bytes=wire_bytes * sum(leaf.size for leaf in jax.tree.leaves(state.params)) // copies,
        sees_rows_together=bool(jax.tree.leaves(state.model_state)),
        can_sync=subject.task.synced is not None,
        keep_training=options.keep_training,
    )


def _heard(bench: Bench, say: Callable[[Trial], None]) -> Callable[[Trial], None]:
    def told(trial: Trial) -> None:
        if trial.outcome == "kept":
            bench.keep()
        say(trial)

    return told


def _total_notes(start: Setting, best: Setting, total: Pairs | None) -> list[str]:
    """What the last comparison leaves of the changes that were kept."""
    if best == start:
        return []
    if total is None:
        return ["the first setting and the last could not be compared with each other in the end: more --seconds"]
    outcome = judge(total)
    if outcome == "kept":
        return []
    if outcome == "not decided":
        return ["the time was up before the first setting and the last were compared often enough: more --seconds"]
    return [
        "compared with the first setting once more, the last one gains nothing beyond the noise: what was kept may be "
        "luck; tune again on a machine that is otherwise idle"
    ]


def _notes(start: Setting, best: Setting, devices: Sequence[jax.Device], trials: Sequence[Trial]) -> list[str]:
    notes = []
    if devices[0].platform == "cpu" and len(devices) > 1:
        cores = format_count(len(usable_cores()), "core")
        notes.append(
            f"{len(devices)} simulated devices on {cores} of one machine: the gains hold here, and say little of real "
            "devices"
        )
    if best.batch != start.batch:
        times = best.batch / start.batch
        notes.append(
            f"batch {best.batch:,} instead of {start.batch:,} is another training: scale the learning rate by "
            f"{times:g} with a warm-up (Goyal et al. 2017), unless the recipe does so itself; beyond the gradient "
            "noise scale (--noise-scale under per_device) a row brings less than half; --fix-batch keeps the batch"
        )
    changed = dict.fromkeys(
        trial.note for trial in trials if trial.outcome == "kept" and trial.note and trial.option != "batch"
    )
    notes += [f"changed the training: {note}; --fix-batch leaves such changes out" for note in changed]
    if any(trial.outcome in ("not tried", "not decided") for trial in trials):
        notes.append("the time was up before all was tried: more --seconds")
    return notes
