"""The machine that this run is on, as the model of time takes it.

Owns: how many devices a node has, and the rough rates of a CPU.
Not here: rates of accelerators (`insight.hardware.catalog`), the exact rates of a CPU (`insight.hardware.cpu`).
Invariant: it takes milliseconds: it is asked while a run is about to begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from paceline.base.errors import DeviceError
from paceline.insight.hardware.catalog import Device
from paceline.insight.hardware.cpu import best_s, num_threads
from paceline.insight.hardware.devices import from_jax_device
from paceline.insight.hardware.links import find_link
from paceline.insight.hardware.machine import CPU_ALIASES, Machine, parse_machine
from paceline.topology.devices import machine_memory
from paceline.topology.processes import processes

_SIDE = 64
"""So small that numpy multiplies in one thread, within a time slice: on a busy machine the best of many is true."""
_COPY_BYTES = 16 * 2**20
_LEAST_S = 5e-3
_LEAST_REPEATS = 5


def hosts() -> list[str]:
    """Name of the machine of each process, by index; empty in a run of one process."""
    return [machine.partition(" (pid ")[0] for machine in processes().machines]


def machine_of(devices: Sequence[Any]) -> tuple[Machine, str]:
    """The machine of these devices, and where its rates come from, in words.

    Raises: DeviceError: no rates of the device are known, or nothing of what joins several nodes.
    """
    nodes = len(set(hosts())) or 1
    per_node = -(-len(devices) // nodes)
    if devices[0].platform == "cpu":
        return _simulated(per_node, nodes=nodes), "its rates roughly measured, shared by its devices"
    known = from_jax_device(devices[0])
    if known is None:
        raise DeviceError(
            what=f"no rates are known of {devices[0].device_kind!r}",
            why="the time of its work and of its collectives cannot be modelled",
            fix="see paceline plan for the devices that are known",
        )
    return parse_machine(f"{per_node} x {known.name}", nodes=nodes), "published rates"


def _simulated(per_node: int, *, nodes: int) -> Machine:
    device = rough_cpu()
    rates = {dtype: rate / per_node for dtype, rate in device.peak_flops_per_s.items()}
    shared = replace(
        device, peak_flops_per_s=rates, memory_bytes=device.memory_bytes // per_node,
        memory_bytes_per_s=device.memory_bytes_per_s / per_node,
    )  # fmt: skip
    machine = Machine(shared, per_node, 1, find_link("memory") if per_node > 1 else None)
    return machine.with_devices(per_node * nodes)


@cache
def rough_cpu() -> Device:
    """This CPU by numpy, in some 11 ms: enough to weigh arithmetic against memory, not to predict a step's time.

    Arithmetic is that of one thread times their number; memory that of one thread over 16 MiB, which large processors
    keep in their caches, as they do the values of a small step.
    """
    matrix = np.ones((_SIDE, _SIDE), np.float32)
    values = np.zeros(_COPY_BYTES // 4, np.float32)
    rate = num_threads() * 2.0 * _SIDE**3 / _fastest_s(lambda: matrix @ matrix)
    return Device(
        name=f"this CPU ({num_threads()} threads)",
        aliases=CPU_ALIASES,
        peak_flops_per_s={"float32": rate, "float64": rate / 2},
        memory_bytes=machine_memory(),
        memory_bytes_per_s=2.0 * _COPY_BYTES / _fastest_s(lambda: np.add(values, 1, out=values)),
        link="memory",
    )


def _fastest_s(work: Callable[[], object]) -> float:
    return best_s(work, least_s=_LEAST_S, least_repeats=_LEAST_REPEATS)
