"""Does the compiled step fit the memory of a device?

Owns: the finding: how much of a device's memory the step takes, and the ways out.
Not here: what the compiler says and what it is made of (`insight.memory`).
Invariant: the numbers are the compiler's; nothing is allocated, and no second step is compiled.
"""

from __future__ import annotations

from typing import Any

import jax

from paceline.base.units import format_bytes, format_percent
from paceline.doctor.finding import Finding, Level
from paceline.doctor.subject import Program, Subject
from paceline.engine.abstract import without_device_axis
from paceline.insight.memory.accounting import Accounting, account_state
from paceline.insight.memory.advice import WARN, Case, advise, least_arguments
from paceline.insight.memory.split import StepMemory, step_memory
from paceline.topology.devices import machine_memory


def memory_findings(subject: Subject, program: Program) -> list[Finding]:
    """Compiles the step and compares it with the memory of one device.

    Raises: TaskError and its kin: the step cannot be traced.
    """
    limit = device_memory(list(subject.trainer.mesh.devices.flat))
    try:
        compiled = program.step.compiled(program.state, program.batch, program.valid).program
    except jax.errors.JaxRuntimeError as error:
        what = f"the step does not compile: {str(error).strip().splitlines()[0]}"
        return [Finding("memory", "error", what, _ways_out(subject, program, None, limit))]
    expected = _expected(subject, program)
    memory = step_memory(compiled, waiting=subject.prefetch * expected.batch, expected=expected)
    if memory is None:
        return [Finding("memory", "warning", "not run: the compiler of this device reports no memory")]
    return [judge_memory(subject, program, memory=memory, limit=limit)]


def judge_memory(subject: Subject, program: Program, *, memory: StepMemory, limit: int | None) -> Finding:
    """Ok below 90 % of the limit, an error above it, a warning between."""
    text = f"a step takes up to {format_bytes(memory.peak)} a device ({_parts(memory)})"
    if limit is None:
        return Finding("memory", "warning", f"{text}; the memory of this device is not known")
    share = memory.peak / limit
    text += f", {format_percent(share)} of {format_bytes(limit)}"
    level: Level = "error" if share > 1 else "warning" if share > WARN else "ok"
    return Finding("memory", level, text, None if level == "ok" else _ways_out(subject, program, memory, limit))


def _parts(memory: StepMemory) -> str:
    """``12.1 MB arguments: 4.0 MB parameters, ...; 4.0 MB gradients, ...``."""
    arguments, rest = memory.argument_parts(), memory.other_parts()
    groups = [f"{format_bytes(memory.arguments)} arguments" + (": " if arguments else "") + _listed(arguments)]
    return "; ".join([*groups, *([_listed(rest)] if rest else [])])


def _listed(parts: dict[str, int]) -> str:
    return ", ".join(f"{format_bytes(size)} {name}" for name, size in parts.items())


def _expected(subject: Subject, program: Program) -> Accounting:
    state = without_device_axis(program.state, program.step.spec)
    return account_state(
        state, parallel=subject.parallel, num_devices=subject.num_devices,
        batch=program.one_device[2], rows=program.valid.size,
    )  # fmt: skip


def device_memory(devices: list[Any]) -> int | None:
    """Bytes that one device may use; simulated CPU devices share the machine's. None if unknown."""
    if devices[0].platform != "cpu":
        stats = devices[0].memory_stats() or {}
        return stats.get("bytes_limit")
    return machine_memory() // len(devices)


def _ways_out(subject: Subject, program: Program, memory: StepMemory | None, limit: int | None) -> str:
    """What costs least first, without what cannot help; if nothing can, that.

    Nothing can if what a device has to hold before the step begins is more than its memory under every placement, since
    microbatches, precision and batch leave the state as it is.
    """
    state = without_device_axis(program.state, program.step.spec)
    case = Case(subject.parallel, subject.num_devices, program.valid.size, state, memory)
    least = least_arguments(case)
    if least is not None and limit is not None and least > limit:
        further = subject.parallel.placement != "fsdp" and subject.num_devices > 1
        return (
            f"no option makes it fit, since a device has to hold {format_bytes(least)} of state and batch"
            f"{' even under --placement fsdp' if further else ''}: use more or larger devices, or a smaller model"
        )
    return "; ".join([*(advice.text() for advice in advise(case, limit)), "a smaller --batch"])
