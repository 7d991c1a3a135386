"""Collectives of CPU devices: through memory within one process, through Gloo over TCP between processes.

Owns: what XLA's CPU backend does and what it costs.
Not here: GPUs (`network.algorithms`), rates of networks (`hardware.links`).
Invariant: nothing here overlaps with compute; CPU collectives block the program that runs them.

What runs (openxla/xla, xla/backends/cpu/collectives/gloo_communicator.cc; facebookincubator/gloo, allreduce.cc,
allgather.cc, reduce_scatter.h): all-reduce as a ring in segments of at most 1 MiB, two of them in flight, first all of
the reduce-scatter and then all of the all-gather; all-gather as a ring; reduce-scatter by halving and doubling. Every
device is a member of its own, also those of one process; nodes are crossed once by each ring in each direction.

Between nodes, with X = bytes that a node sends, s the share of a network's rate that TCP leaves to data:

    t = base + steps * (step + latency) + max((X / s - burst) / rate, X * copy)

Steps: all-reduce 2(n-1), all-gather n-1, reduce-scatter log2 n. `s` and the token bucket's burst are those of the
network and are not fitted; base, step and copy were measured once (docs/design/013-network.md).
"""

from __future__ import annotations

import math

from paceline.insight.hardware.machine import Machine
from paceline.insight.network.algorithms import Group, Way, bus_factor

_BASE_S = 100e-6
_STEP_S = 75e-6
"""Base and step: fitted to 64 KiB all-reduces of two processes at 1 Gbit/s, the smallest of repeats."""
_COPY_S = 1.3e-9
"""A byte through TCP and the addition: all-reduces of 1 and 4 MiB between two processes without a limit."""
_MEMORY_BASE_S = 60e-6
_MEMORY_PASSES = 4 / 3
"""Bytes through memory over n S: 25 MB over 2 devices took 6 ms where a pass of adding over the same bytes took 4.5."""


def cost(kind: str, size: int | float, *, group: Group, machine: Machine) -> Way:
    """Time of one collective of CPU devices; `group.network` says whether it leaves the node."""
    if group.network is None:
        return Way("memory", "", _memory_s(kind, size, group, rate=machine.device.memory_bytes_per_s))
    n = group.devices
    sent = size * bus_factor(kind, n)
    network = group.network
    share = network.bus_bytes_per_s / network.bytes_per_s
    wire_s = max(sent / share - network.burst_bytes, 0.0) / network.bytes_per_s
    steps = {"all-reduce": 2 * (n - 1), "reduce-scatter": math.ceil(math.log2(n)), "collective-permute": 1}
    latency_s = _BASE_S + steps.get(kind, n - 1) * (_STEP_S + network.latency_s)
    return Way("gloo ring" if kind != "reduce-scatter" else "gloo halving", "", latency_s + max(wire_s, sent * _COPY_S))


def _memory_s(kind: str, size: int | float, group: Group, *, rate: float) -> float:
    passes = _MEMORY_PASSES if kind == "all-reduce" else _MEMORY_PASSES / 2
    return _MEMORY_BASE_S + passes * group.devices * size / rate
