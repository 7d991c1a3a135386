"""The cost of one collective on a machine: what to call.

Owns: which algorithm is picked, measured curves before published ones, the error for groups that a machine lacks.
Not here: the formulas (`network.algorithms`, `network.gloo`), curves (`network.curves`).
Invariant: the same call gives the same cost; the algorithm that gave it is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.base.errors import DeviceError
from paceline.insight.hardware.machine import Machine
from paceline.insight.network import algorithms, gloo
from paceline.insight.network.algorithms import Group, Way, bus_factor
from paceline.insight.network.curves import NetworkCurves

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute", "broadcast")

NCCL = ("ring", "tree", "in-switch", "in-switch tree", "direct")
"""What NCCL and RCCL choose from; the hierarchical scheme is for programs that build it themselves."""


@dataclass(frozen=True)
class Cost:
    """What a collective takes.

    Args:
      time_s: from its start to its end on the slowest device, when nothing else uses the links.
      algorithm: that gives this time: ``ring``, ``tree``, ``in-switch``, ``in-switch tree``, ``hierarchical``,
        ``direct``, ``gloo ring``, ``memory``, ``measured``, ``measured, other size of group``, ``none`` (one device).
      bus_bytes_per_s: bus bandwidth as nccl-tests define it; 0 with one device.
      protocol: of NCCL; empty elsewhere.
    """

    time_s: float
    algorithm: str
    bus_bytes_per_s: float
    protocol: str = ""


def collective_cost(
    kind: str,
    size_bytes: int | float,
    *,
    machine: Machine,
    devices: int,
    curves: NetworkCurves | None = None,
    choose: Sequence[str] = NCCL,
) -> Cost:
    """Time of one collective over `devices` devices, which fill the machine's nodes one after the other.

    Args:
      kind: one of `KINDS`.
      size_bytes: S, the whole value: the operand of an all-reduce, reduce-scatter or all-to-all on one device, the
        result of an all-gather.
      machine: its link and network; rates are published ones unless `curves` has better.
      devices: n of the group.
      curves: measured on a machine like this one; used where they fit, before the formulas.
      choose: algorithms to pick the fastest of; ignored on CPUs, where Gloo or memory is used.
    Raises: DeviceError: the machine has fewer devices. ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown collective {kind!r}, known: {', '.join(KINDS)}")
    if devices == 1 or size_bytes <= 0:
        return Cost(0.0, "none", 0.0)
    group = _group(machine, devices)
    found = curves.lookup(kind, size_bytes, devices=devices, nodes=group.nodes) if curves is not None else None
    if found is not None:
        way = Way(found[1], "", found[0])
    elif machine.device.link == "memory":
        way = gloo.cost(kind, size_bytes, group=group, machine=machine)
    else:
        way = algorithms.best(_ways(kind, size_bytes, group, choose=choose))
    return Cost(way.time_s, way.algorithm, size_bytes * bus_factor(kind, devices) / way.time_s, way.protocol)


def _group(machine: Machine, devices: int) -> Group:
    if not 1 <= devices <= machine.num_devices:
        raise DeviceError(
            what=f"a group of {devices} devices on a machine of {machine.num_devices} ({machine.name})",
            why="devices that are not there exchange nothing",
            fix=f"use at most {machine.num_devices} devices, or more nodes (--nodes)",
        )
    on_node = min(devices, machine.devices_per_node)
    nodes = math.ceil(devices / machine.devices_per_node)
    link = machine.link if on_node > 1 else None
    return Group(devices, on_node, nodes, link, machine.network if nodes > 1 else None)


def _ways(kind: str, size: int | float, group: Group, *, choose: Sequence[str]) -> list[Way]:
    if kind == "all-to-all":
        return list(algorithms.all_to_all(size, group))
    if kind == "collective-permute":
        return list(algorithms.permute(size, group))
    ways = list(algorithms.ring(kind, size, group=group))
    if kind == "all-reduce":
        ways += [*algorithms.tree(size, group), *algorithms.in_switch(size, group)]
    if kind != "broadcast":
        ways += algorithms.hierarchical(kind, size, group=group)
    picked = [way for way in ways if way.algorithm in choose]
    assert picked, f"none of {choose} does {kind}"
    return picked
