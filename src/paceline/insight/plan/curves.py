"""Measured collectives for a plan.

Owns: which curves may stand for the planned machine, the sentence that says what was measured.
Not here: their file and what is made of them (`insight.network`).
Invariant: curves of another device are refused, never used.
"""

from __future__ import annotations

from paceline.base.errors import DeviceError, OptionError
from paceline.base.units import format_count
from paceline.insight.hardware.devices import find_device
from paceline.insight.hardware.machine import CPU_ALIASES, Machine
from paceline.insight.network.curves import NetworkCurves, load_curves


def curves_for(machine: Machine, path: str) -> NetworkCurves:
    """The curves of a file that ``paceline scale --network`` wrote.

    Raises: OptionError: no such file, another content, or curves of another device than the machine's.
    """
    curves = load_curves(path)
    if not _is_of(curves.device, machine):
        raise OptionError(
            what=f"--curves {path} was measured on {curves.device}, and the plan is for {machine.device.name}",
            why="what joins other devices has other rates",
            fix="measure on such a machine with paceline scale TASK --network --json FILE, or leave --curves out",
        )
    return curves


def curves_note(curves: NetworkCurves) -> str:
    """What was measured."""
    groups = dict.fromkeys(
        f"{curve.kind} over {format_count(curve.devices, 'device')} of {format_count(curve.nodes, 'node')}"
        for curve in curves.curves
    )
    return (
        f"measured and used: {', '.join(groups)} ({curves.library}); other sizes of group are extrapolated from them, "
        "other collectives and networks have published rates"
    )


def _is_of(kind: str, machine: Machine) -> bool:
    """Whether devices that JAX calls so are those of the machine."""
    if machine.device.aliases == CPU_ALIASES:
        return kind.lower() in CPU_ALIASES
    try:
        return kind.lower() not in CPU_ALIASES and find_device(kind).name == machine.device.name
    except DeviceError:  # a device that no plan can be for
        return False
