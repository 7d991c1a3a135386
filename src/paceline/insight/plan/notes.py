"""What a reader of a plan should know of its numbers.

Owns: the sentences on what could not be read of a program, and on what was assumed of its time.
Invariant: what changes a number and was not asked for is said.
"""

from __future__ import annotations

from paceline.base.units import format_count
from paceline.insight.hardware.machine import Machine
from paceline.insight.hlo.program import Program
from paceline.insight.model.roofline import peak
from paceline.insight.timeline import FULL_FLOAT32, Repeat, Timeline, Work, each_work, total_work

_ALIKE = {("float32", "tfloat32"), (FULL_FLOAT32, "float32")}
"""Types of products and of rates that are meant for each other."""


def rematerialised_work(timeline: Timeline) -> Work:
    """What XLA computes a second time because memory was short; its instructions say so in their names."""
    again = [(work, times) for work, times in each_work(timeline) if ".remat" in work.what]
    return total_work(tuple(Repeat(times, (work,)) for work, times in again))


def can_grow(machine: Machine) -> bool:
    """Whether what joins several nodes is known."""
    return machine.network is not None or machine.device.network is not None


def unread_notes(program: Program) -> list[str]:
    """What of the program could not be read, so that its time is unknown and left out."""
    unknown = ", ".join(f"{name} ({count})" for name, count in program.unknown.items())
    notes = [f"not counted, since its operations are unknown: {unknown}"] if unknown else []
    notes += [
        f"the program does not say how often a loop runs; it counts once: {name}" for name in program.unknown_loops
    ]
    return [*notes, *program.assumed]


def time_notes(timeline: Timeline, machine: Machine, *, fits: bool) -> list[str]:
    """Work that is done twice, types with a rate of their own or without a unit, where the curve ends."""
    notes = []
    again = rematerialised_work(timeline).total_flops
    if again:
        share = again / total_work(timeline).total_flops
        slow = "" if fits else ", and the speed is that of a program that does not fit"
        notes.append(
            f"memory is so short that XLA computes {share:.0%} of the operations a second time; as work of a sample "
            f"they are not counted{slow}"
        )
    rates = machine.device.peak_flops_per_s
    for dtype in total_work(timeline).flops:
        name = peak(machine.device, dtype)[1]
        if dtype == FULL_FLOAT32 and "tfloat32" in rates:
            slower = rates["tfloat32"] / rates["float32"]
            notes.append(
                f'products at precision "highest" are timed in true float32, {slower:.2g} times slower at peak than in '
                "the tfloat32 of the default"
            )
        elif (dtype, name) not in _ALIKE and name != dtype and not dtype.startswith("float8"):
            notes.append(f"{machine.device.name} has no unit for {dtype}: its products are timed at the rate of {name}")
    if machine.num_devices == 1:
        notes.append(
            "compiled for one device, which sends nothing: plan for "
            f"8x{machine.device.aliases[0]}, say, to see how it scales"
        )
    elif not can_grow(machine):
        notes.append("no network beyond one node is known, so the curve ends there; --network gives one")
    return notes


def data_notes(batch: int, source_rows: int | None) -> list[str]:
    """A batch that the data cannot fill."""
    if source_rows is None or batch <= source_rows:
        return []
    return [f"the batch of {format_count(batch, 'row')} is more than the data have: {format_count(source_rows, 'row')}"]
