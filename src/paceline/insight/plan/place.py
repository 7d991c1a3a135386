"""Where the step of a plan is compiled: for the planned device itself, or for what stands in for it.

Owns: the choice of the compiler, the devices of the mesh, the sentence that says what stands in.
Not here: the target's description (`insight.hardware.targets`), the compilation (`insight.compiling`).
Invariant: a program that was not compiled for the planned device says so in `Place.notes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from paceline.base.errors import DeviceError
from paceline.base.units import format_count
from paceline.insight.compiling.target import Target, has_cuda_compiler, topology_devices
from paceline.insight.hardware.devices import find_device
from paceline.insight.hardware.machine import CPU_ALIASES, Machine
from paceline.insight.hardware.targets import target_config

STAND_IN = "A100 SXM 80 GB"
"""What is compiled for where the compiler has no description of a GPU: the eldest that it has one of."""


@dataclass(frozen=True)
class Place:
    """Devices to compile a step over.

    Args:
      devices: K of them, or fewer where fewer can be simulated; nothing is put on them.
      target: None for CPU devices.
      is_planned: whether the program is the one that the planned device would run.
      is_cpu: whether it is a program for CPUs.
      notes: what stands in for what, as sentences.
    """

    devices: list[Any]
    target: Target | None
    is_planned: bool
    is_cpu: bool
    notes: tuple[str, ...] = ()


def choose_place(machine: Machine) -> Place:
    """The best that this installation can compile for.

    A GPU is compiled for without having one if the CUDA plugin of JAX is installed. Without the plugin the program for
    CPU devices stands in.

    Raises: DeviceError: the plugin cannot be used in this process; or one CPU device would stand in for several.
    """
    if machine.device.aliases == CPU_ALIASES:
        return _on_cpu(machine, is_planned=True, note="")
    if not has_cuda_compiler():
        note = (
            f"the CUDA plugin of JAX is not installed, so the program compiled for CPU stands in for that of "
            f"{machine.device.name}: its fusions differ, its collectives all block, and its memory and time are only "
            "of the right size (pip install 'paceline[cuda13]'; no GPU is needed)"
        )
        return _on_cpu(machine, is_planned=False, note=note)
    config, notes = target_config(machine.device), ()
    if config is None:
        config = target_config(find_device(STAND_IN))
        notes = (
            f"XLA has no description of {machine.device.name} here: the program compiled for {STAND_IN} stands in, "
            f"timed with the rates of {machine.device.name}",
        )
    assert config is not None, "the stand-in has a description"
    target = Target(config, machine.num_devices, machine.devices_per_node)
    return Place(topology_devices(target), target, is_planned=not notes, is_cpu=False, notes=notes)


def _on_cpu(machine: Machine, *, is_planned: bool, note: str) -> Place:
    """As many CPU devices as are simulated here, at most K. Raises: DeviceError: one for several."""
    devices = jax.devices("cpu")[: machine.num_devices]
    if len(devices) == 1 < machine.num_devices:
        raise _one_for_several(machine.num_devices)
    notes = [note] if note else []
    if len(devices) < machine.num_devices:
        notes.append(
            f"compiled for {format_count(len(devices), 'CPU device')} with the same rows a device; "
            f"what depends on K is calculated for {machine.num_devices}"
        )
    return Place(devices, None, is_planned=is_planned, is_cpu=True, notes=tuple(notes))


def _one_for_several(count: int) -> DeviceError:
    return DeviceError(
        what=f"one CPU device to compile for, where {count} devices are planned",
        why="a program for one device sends nothing, so nothing could be said of how it scales; JAX was in use in this "
        "process before others could be simulated",
        fix="plan in a process of its own, with paceline plan on the command line; or set "
        f"jax.config.update('jax_num_cpu_devices', {min(count, 8)}) before JAX is used",
    )
