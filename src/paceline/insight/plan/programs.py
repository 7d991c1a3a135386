"""The steps of a plan, compiled and read.

Owns: which programs there are already, compiling several at once, a program's memory and timeline for the planned K.
Not here: the compiler and its cache (`insight.compiling`), reading the text (`insight.hlo`).
Invariant: one program is compiled for each `Parallel` and number of rows, whatever is asked of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import optax
from jax.sharding import Mesh

from paceline.base.errors import PacelineError, SchemeError
from paceline.engine.abstract import Arguments, abstract_batch, abstract_state, without_device_axis
from paceline.engine.parallel import Parallel
from paceline.engine.state import TrainState
from paceline.engine.step import StepFunction
from paceline.engine.update import StepSpec
from paceline.insight.compiling.cache import ProgramCache
from paceline.insight.compiling.program import CompiledText, compile_program
from paceline.insight.hlo.program import Program, read_program, step_parameters
from paceline.insight.memory.accounting import Accounting, account_state
from paceline.insight.memory.advice import Advice, Case, Variant, advise
from paceline.insight.memory.rematerialise import rematerialised
from paceline.insight.memory.split import StepMemory, split_memory
from paceline.insight.plan.place import Place
from paceline.insight.timeline import FULL_FLOAT32, Collective, Repeat, Start, Timeline, Work
from paceline.tasks.task import Task
from paceline.topology.mesh import data_mesh

_AT_ONCE = 2
"""Compilations at the same time: one takes one core."""


@dataclass(frozen=True)
class Workload:
    """What is trained.

    Args:
      task, optimizer: as `paceline.Trainer` takes them; the task has an init.
      structure: an example of the data, rows in front (`data.example`).
      prefetch: batches that wait on the devices.
      source_rows: rows of the data; None if that is not known.
    """

    task: Task
    optimizer: optax.GradientTransformation
    structure: Any
    prefetch: int = 2
    source_rows: int | None = None


@dataclass(frozen=True)
class StepProgram:
    """A compiled step.

    Args:
      parallel: how it runs.
      rows: of the batch on a device.
      compiled: text and memory, as the compiler gives them.
      program: the text, read.
      timeline: what a device does, in the types that the planned device computes in.
      memory: of one device among the K that are planned.
    """

    parallel: Parallel
    rows: int
    compiled: CompiledText
    program: Program
    timeline: Timeline
    memory: StepMemory


class Programs:
    """Compiles steps for a place.

    Args:
      devices: K that is planned; the place may have fewer.
      cache: programs on disk; None keeps none.
      say: told of each compilation before it begins.
    """

    def __init__(
        self, work: Workload, place: Place, *, devices: int, cache: ProgramCache | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self.work = work
        self.devices = devices
        self._place = place
        self._cache = cache
        self._say = say
        self._mesh: Mesh = data_mesh(place.devices)
        self._known: dict[tuple[Parallel, int], StepProgram] = {}
        self._states: dict[Parallel, TrainState] = {}

    def one(self, parallel: Parallel, rows: int) -> StepProgram:
        """The step for so many rows a device. Raises: as `several`."""
        return self.several([(parallel, rows)])[0]

    def several(self, wanted: Sequence[tuple[Parallel, int]]) -> list[StepProgram]:
        """Steps in the order asked for; those that are not known yet are compiled, two at a time.

        Raises: TaskError and its kin: the task cannot be traced. CompileError: the compiler refuses a step.
          SchemeError: a scheme that cannot be compiled without devices.
        """
        new = [case for case in dict.fromkeys(wanted) if case not in self._known]
        lowered = [(case, *self._lower(*case)) for case in new]  # one after the other: tracing runs the user's Python
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            compiled = list(pool.map(lambda entry: self._compile(entry[0], entry[3]), lowered))
        for (case, step, arguments, _), text in zip(lowered, compiled, strict=True):
            self._known[case] = self._read(case, step, arguments, text)
        return [self._known[case] for case in wanted]

    def ways_out(self, step: StepProgram, *, limit_bytes: int) -> list[Advice]:
        """What to change where a step does not fit, each compiled for its number. Raises: as `several`."""
        function = self._step(step.parallel)
        state = without_device_axis(self._arguments(function, step.rows).state, function.spec)
        case = Case(step.parallel, self.devices, step.rows * self.devices, state, step.memory)
        return advise(case, limit_bytes, peak_of_variant=lambda variant: self._peak(variant, step.rows))

    def _peak(self, variant: Variant, rows: int) -> int | None:
        programs = self
        if variant.rematerialise:
            work = dataclasses.replace(self.work, task=rematerialised(self.work.task))
            programs = Programs(work, self._place, devices=self.devices, cache=self._cache, say=self._say)
        try:
            return programs.one(variant.parallel, rows).memory.peak
        except PacelineError:  # this way out is closed; the others may not be
            return None

    def _step(self, parallel: Parallel) -> StepFunction:
        return StepFunction(StepSpec(self.work.task, self.work.optimizer, parallel, self._mesh))

    def _arguments(self, step: StepFunction, rows: int) -> Arguments:
        parallel = step.spec.parallel
        if parallel not in self._states:  # tracing the init of a large model takes a second
            self._states[parallel] = abstract_state(step.spec)
        return Arguments(
            self._states[parallel], *abstract_batch(step.spec, self.work.structure, rows=rows * self._mesh.size)
        )

    def _lower(self, parallel: Parallel, rows: int) -> tuple[StepFunction, Arguments, Any]:
        step = self._step(parallel)
        arguments = self._arguments(step, rows)
        try:
            return step, arguments, step.lowered(arguments.state, arguments.batch, arguments.valid)
        except (NotImplementedError, ValueError, AttributeError) as error:
            if parallel.scheme != "pmap" or self._place.target is None:
                raise
            raise SchemeError(
                what="scheme='pmap' cannot be compiled for devices that are not here",
                why="jax.pmap takes devices of this process only",
                fix="plan with --scheme per_device, which computes and sends the same",
            ) from error

    def _compile(self, case: tuple[Parallel, int], lowered: Any) -> CompiledText:
        def begin() -> None:
            self._say(f"compiling the step for {case[1]} rows a device ({_words(case[0])})")

        return compile_program(lowered, target=self._place.target, cache=self._cache, begin=begin)

    def _account(self, step: StepFunction, arguments: Arguments, rows: int, *, devices: int) -> Accounting:
        state = without_device_axis(arguments.state, step.spec)
        return account_state(
            state, parallel=step.spec.parallel, num_devices=devices, batch=self.work.structure, rows=rows * devices
        )

    def _read(
        self, case: tuple[Parallel, int], step: StepFunction, arguments: Arguments, text: CompiledText
    ) -> StepProgram:
        parallel, rows = case
        names = step_parameters(arguments.state, arguments.batch, arguments.valid)
        program = read_program(text.text, parameters=names)
        assert text.memory is not None, "the compilers of CPUs and of CUDA report it"
        expected = self._account(step, arguments, rows, devices=self._mesh.size)
        memory = split_memory(text.memory, expected=expected, waiting=self.work.prefetch * expected.batch)
        if self._mesh.size != self.devices:
            memory = _for_devices(memory, self._account(step, arguments, rows, devices=self.devices))
        if self._place.is_cpu and not self._place.is_planned:
            program = sent_as_asked(program, parallel)
        timeline = program.timeline
        if self._place.is_cpu and not self._place.is_planned and parallel.precision != "float32":
            timeline = in_type(timeline, parallel.precision)
        return StepProgram(parallel, rows, text, program, timeline, memory)


def _words(parallel: Parallel) -> str:
    parts = [parallel.scheme, parallel.placement, parallel.precision]
    return ", ".join([*parts, f"n = {parallel.accumulation}"] if parallel.accumulation > 1 else parts)


def _for_devices(memory: StepMemory, expected: Accounting) -> StepMemory:
    """The memory of a device where K is another: what the placement splits is as large as the arithmetic says."""
    assert memory.expected is not None, "asked for with the arithmetic"
    change = expected.arguments - memory.expected.arguments
    return dataclasses.replace(memory, arguments=memory.arguments + change, expected=expected)


def in_type(timeline: Timeline, dtype: str) -> Timeline:
    """The timeline with float32 products in a narrower type.

    A CPU program widens them, which the planned device would not do.
    """

    def narrowed(event: Any) -> Any:
        if isinstance(event, Repeat):
            return Repeat(event.times, in_type(event.body, dtype))
        if isinstance(event, Work) and event.flops:
            flops, convolutions = (renamed(counts) for counts in (event.flops, event.convolutions))
            return dataclasses.replace(event, flops=flops, convolutions=convolutions)
        return event

    def renamed(counts: Mapping[str, float]) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, count in counts.items():
            key = dtype if name in ("float32", FULL_FLOAT32) else name
            found[key] = found.get(key, 0.0) + count
        return found

    return tuple(narrowed(event) for event in timeline)


def sent_as_asked(program: Program, parallel: Parallel) -> Program:
    """The program of a CPU with gradients in the type that they are asked to cross the wire in.

    XLA's CPU backend widens a bfloat16 reduction to float32, which the planned device would not do.
    """
    if parallel.reduce_dtype != "bfloat16":
        return program
    narrow: dict[str, Collective] = {}
    uses = []
    for use in program.collectives:
        sizes = {name: size // 2 if name.startswith("params") else size for name, size in use.leaf_bytes.items()}
        less = sum(use.leaf_bytes.values()) - sum(sizes.values())
        if use.collective.dtype != "float32" or use.collective.kind not in ("all-reduce", "reduce-scatter") or not less:
            uses.append(use)
            continue
        one = dataclasses.replace(use.collective, dtype="bfloat16", bytes=use.collective.bytes - less)
        narrow[one.name] = one
        uses.append(dataclasses.replace(use, collective=one, leaf_bytes=sizes))
    return dataclasses.replace(program, timeline=_with(program.timeline, narrow), collectives=tuple(uses))


def _with(timeline: Timeline, collectives: dict[str, Collective]) -> Timeline:
    def changed(event: Any) -> Any:
        if isinstance(event, Repeat):
            return Repeat(event.times, _with(event.body, collectives))
        return Start(collectives.get(event.collective.name, event.collective)) if isinstance(event, Start) else event

    return tuple(changed(event) for event in timeline)
