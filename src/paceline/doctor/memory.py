"""Does the compiled step fit the memory of a device?

Owns: the sum over the compiled program, the memory of a device, the ways out in their order.
Invariant: the numbers are the compiler's; nothing is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from paceline.base.units import format_bytes, format_percent
from paceline.doctor.finding import Finding, Level
from paceline.doctor.shapes import tree_bytes
from paceline.doctor.subject import Program, Subject
from paceline.engine.parallel import Parallel, Placement
from paceline.engine.placement import summarize_placement
from paceline.topology.devices import machine_memory

_WARN = 0.9


@dataclass(frozen=True)
class StepMemory:
    """Bytes of one device while a step runs.

    Args:
      arguments: state and batch.
      outputs: next state and metrics, without what reuses the memory of arguments.
      temporaries: activations, gradients and the rest.
      waiting: batches that the feed has made ahead.
    """

    arguments: int
    outputs: int
    temporaries: int
    waiting: int

    @property
    def peak(self) -> int:
        """At most so much at once."""
        return self.arguments + self.outputs + self.temporaries + self.waiting


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
    memory = step_memory(compiled, waiting=subject.prefetch * tree_bytes(program.batch) // subject.num_devices)
    if memory is None:
        return [Finding("memory", "warning", "not run: the compiler of this device reports no memory")]
    return [judge_memory(subject, program, memory=memory, limit=limit)]


def judge_memory(subject: Subject, program: Program, *, memory: StepMemory, limit: int | None) -> Finding:
    """Ok below 90 % of the limit, an error above it, a warning between."""
    parts = f"{format_bytes(memory.arguments)} arguments, {format_bytes(memory.outputs)} outputs, "
    parts += f"{format_bytes(memory.temporaries)} temporaries, {format_bytes(memory.waiting)} batches ahead"
    text = f"a step takes up to {format_bytes(memory.peak)} a device ({parts})"
    if limit is None:
        return Finding("memory", "warning", f"{text}; the memory of this device is not known")
    share = memory.peak / limit
    text += f", {format_percent(share)} of {format_bytes(limit)}"
    level: Level = "error" if share > 1 else "warning" if share > _WARN else "ok"
    return Finding("memory", level, text, None if level == "ok" else _ways_out(subject, program, memory, limit))


def step_memory(compiled: Any, *, waiting: int) -> StepMemory | None:
    """What the compiler says of a program, for one device; None if it says nothing."""
    stats = compiled.memory_analysis()
    if stats is None:
        return None
    outputs = max(0, stats.output_size_in_bytes - stats.alias_size_in_bytes)
    return StepMemory(stats.argument_size_in_bytes, outputs, stats.temp_size_in_bytes, waiting)


def device_memory(devices: list[Any]) -> int | None:
    """Bytes that one device may use; simulated CPU devices share the machine's. None if unknown."""
    if devices[0].platform != "cpu":
        stats = devices[0].memory_stats() or {}
        return stats.get("bytes_limit")
    return machine_memory() // len(devices)


def _ways_out(subject: Subject, program: Program, memory: StepMemory | None, limit: int | None) -> str:
    """Accumulation, placements, precision: what costs least first, without what cannot help.

    A placement cannot help if what a device still has to hold before the step begins is more than its memory; if that
    is so of every placement, nothing can, since accumulation, precision and batch leave the state as it is.
    """
    ways = [_accumulation(subject, program, memory, limit)]
    now, saved = subject.parallel.placement, _savings(subject, program)
    if memory is not None and limit is not None:
        least = memory.arguments - max(saved.values(), default=0)
        if least > limit:
            under = " even under --placement fsdp" if saved else ""
            return (
                f"no option makes it fit, since a device has to hold {format_bytes(least)} of state and batch{under}: "
                "use more or larger devices, or a smaller model"
            )
        saved = {name: size for name, size in saved.items() if size and memory.arguments - size <= limit}
    moved = "" if subject.parallel.scheme != "pmap" else " and --scheme per_device"
    shares = {"zero1": "optimizer state shared", "fsdp": "parameters shared" if now == "zero1" else "parameters too"}
    for name, size in saved.items():
        takes = "" if memory is None else f": about {format_bytes(memory.peak - size)} a device"
        ways.append(f"--placement {name}{moved} ({shares[name]}{takes})")
    if subject.parallel.precision == "float32":
        ways.append("--precision bfloat16 (smaller activations)")
    return "; ".join(way for way in [*ways, "a smaller --batch"] if way)


def _savings(subject: Subject, program: Program) -> dict[Placement, int]:
    """Bytes of a device that each further placement would leave to the others, the cheaper placement first."""
    placement, devices = subject.parallel.placement, subject.num_devices
    further: dict[Placement, tuple[Placement, ...]] = {"replicated": ("zero1", "fsdp"), "zero1": ("fsdp",), "fsdp": ()}
    if devices == 1:
        return {}
    now = _held_bytes(subject, program, placement)
    return {name: now - _held_bytes(subject, program, name) for name in further[placement]}


def _held_bytes(subject: Subject, program: Program, placement: Placement) -> int:
    """What one device holds of parameters, optimizer state and moving average under a placement."""
    state = program.state
    if subject.parallel.scheme == "pmap":  # without the device axis
        state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state)
    fields = summarize_placement(state, parallel=Parallel(placement=placement), mesh=subject.trainer.mesh)
    split = {entry.field: entry.device_bytes for entry in fields}
    return sum(split.get(name, tree_bytes(getattr(state, name))) for name in ("params", "opt_state", "ema"))


def _accumulation(subject: Subject, program: Program, memory: StepMemory | None, limit: int | None) -> str:
    """The least number of microbatches with which the step fits if its temporaries shrink in proportion."""
    rows = program.valid.size
    now = subject.parallel.accumulation
    share = rows // subject.num_devices
    for count in range(now + 1, share + 1):
        if share % count:
            continue
        if memory is None or limit is None:
            return f"--accumulation {count} or more"
        if memory.peak - memory.temporaries * (1 - now / count) <= _WARN * limit:
            return f"--accumulation {count}"
    return ""
