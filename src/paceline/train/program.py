"""What the compiled step does, told beside the run: ``program.json``.

Owns: reading the program before the first step, what the file says.
Not here: the reading itself (`insight.hlo`), the model of time (`insight.model`), the file (`telemetry.folder`), the
machine (`train.machine`).
Invariant: nothing that fails here fails the run, and no step waits for it; what could not be read is said in the file.

Reading takes a tenth of the compilation, 0.4 s for 100 leaves, before the first step. In a thread beside the steps it
takes the same from them, because both are Python or share the cores: measured in docs/design/016-telemetry.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from paceline.base.errors import PacelineError
from paceline.base.units import format_bytes
from paceline.engine.abstract import without_device_axis
from paceline.engine.step import CompiledStep
from paceline.engine.update import StepSpec
from paceline.insight.hlo.program import CollectiveUse, Program, read_program, step_parameters
from paceline.insight.hlo.text import op_names
from paceline.insight.memory.accounting import account_state
from paceline.insight.memory.split import step_memory
from paceline.insight.model.costs import MachineCost
from paceline.insight.model.parameters import FITTED
from paceline.insight.model.stages import Stages, divide
from paceline.insight.model.step import Setting
from paceline.telemetry.folder import RunFolder
from paceline.train.machine import machine_of
from paceline.train.place import PlacedBatch

LONGEST_BYTES = 32 * 2**20
"""Of the text of a program that is read: some 8 s. Longer ones would keep the run waiting."""


@dataclass(frozen=True)
class Subject:
    """The step that is told about.

    Args:
      compiled: the program.
      spec: what the step is.
      names: of its arguments in order.
      state: without device axis.
      batch: rows in front.
      rows: B.
      prefetch: batches that wait beside the one in use.
    """

    compiled: CompiledStep
    spec: StepSpec
    names: Sequence[str]
    state: Any
    batch: Any
    rows: int
    prefetch: int


def subject_of(compiled: CompiledStep, spec: StepSpec, *, state: Any, first: PlacedBatch, prefetch: int) -> Subject:
    """The step of a run, before its first call."""
    names = step_parameters(state, first.data, first.valid)
    batch = jax.eval_shape(lambda: first.host.data)
    shapes = without_device_axis(jax.eval_shape(lambda: state), spec)
    return Subject(compiled, spec, names, shapes, batch, first.valid.size, prefetch)


def tell_program(folder: RunFolder, compiled: CompiledStep, *, make: Callable[[], Subject]) -> None:
    """Write ``program.json``, whatever happens.

    Args:
      make: gives what is told about.
    """
    try:
        content = program_document(make())
    except PacelineError as error:
        content = _unread(compiled, f"{error.what}: {error.why}")
    except Exception as error:  # an unknown form of program, a bug: the run itself is sound
        content = _unread(compiled, f"{type(error).__name__}: {error}".removesuffix(": "))
    try:
        folder.write_program(content)
    except (PacelineError, ValueError):  # the disk refuses: the events will say so
        return


def program_document(subject: Subject) -> dict[str, Any]:
    """The content of ``program.json``. Raises: whatever reading raises."""
    start_s = time.perf_counter()
    memory = _memory(subject)
    text = subject.compiled.program.as_text() or ""  # None: this compiler has no text of its programs
    if len(text) > LONGEST_BYTES:
        return _unread(subject.compiled, f"not read: its text is {format_bytes(len(text))} long") | {"memory": memory}
    program = read_program(text, parameters=subject.names)
    notes = _reading_notes(program)
    stages, basis = _stages(program, subject, origins=op_names(text), notes=notes)
    waits_s = {} if stages is None else stages.replay.waits_s
    return {
        "compile_s": subject.compiled.compile_s,
        "read_s": time.perf_counter() - start_s,
        "memory": memory,
        "collectives": [
            _collective(use, exposed_s=None if stages is None else waits_s.get(use.collective.name, 0.0))
            for use in program.collectives
        ],
        "wire_bytes": sum(program.wire_bytes_by_dtype.values()),
        "blocking_collectives": sum(use.times for use in program.collectives if use.blocking),
        "flops": sum(program.flops.values()),
        "traffic_bytes": program.bytes,
        "stages": None if stages is None else stages.shares,
        "stages_basis": basis,
        "communication_s": None if stages is None else stages.all_reduce_s,
        "step_s": None if stages is None else stages.replay.total_s,
        "notes": notes,
        "error": None,
    }


def _reading_notes(program: Program) -> list[str]:
    """What the numbers leave out or assume, as sentences."""
    loops = [f"the program does not say how often loop {name} runs; it counts once" for name in program.unknown_loops]
    unknown = ", ".join(f"{count} {what}" for what, count in program.unknown.items())
    return [*([f"not counted: {unknown}"] if unknown else []), *loops, *program.assumed]


def _memory(subject: Subject) -> dict[str, Any] | None:
    spec = subject.spec
    expected = account_state(
        subject.state, parallel=spec.parallel, num_devices=spec.mesh.size, batch=subject.batch, rows=subject.rows
    )
    found = step_memory(subject.compiled.program, waiting=subject.prefetch * expected.batch, expected=expected)
    return None if found is None else {"peak_bytes": found.peak, "parts_bytes": found.parts()}


def _collective(use: CollectiveUse, *, exposed_s: float | None) -> dict[str, Any]:
    one = use.collective
    return {
        "kind": one.kind,
        "bytes": one.bytes,
        "dtype": one.dtype,
        "devices": one.group,
        "times": use.times,
        "blocking": use.blocking,
        "leaves": list(use.leaf_bytes),
        "exposed_s": exposed_s,
    }


def _stages(
    program: Program, subject: Subject, *, origins: dict[str, str], notes: list[str]
) -> tuple[Stages | None, str]:
    """The stages on the machine of this run, and how they were found; what hinders goes to `notes`."""
    mesh = subject.spec.mesh
    try:
        machine, how = machine_of(list(mesh.devices.flat))
        setting = Setting(program.timeline, machine, mesh.size, FITTED, MachineCost(machine))
        found = divide(setting, origins)
    except PacelineError as error:  # a device or a number type without known rates
        notes.append(f"stages are not modelled: {error.what}")
        return None, "unknown"
    if found is None:
        notes.append("stages are not modelled: the program names neither gradients nor their reduction")
        return None, "unknown"
    notes += machine.notes
    return found, f"modelled: the schedule of the compiled program on {machine.name} ({how}); {found.basis}"


def _unread(compiled: CompiledStep, error: str) -> dict[str, Any]:
    """The document of a program that could not be read: every key is there."""
    return {
        "compile_s": compiled.compile_s, "read_s": None, "memory": None, "collectives": [], "wire_bytes": None,
        "blocking_collectives": None, "flops": None, "traffic_bytes": None, "stages": None, "stages_basis": "unknown",
        "communication_s": None, "step_s": None, "notes": [], "error": error,
    }  # fmt: skip
