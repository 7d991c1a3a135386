"""Do the devices add up right, and how fast: every collective that training uses, on known numbers.

Owns: the numbers, the comparison bit for bit, the device that differs, bus bandwidth against expectation.
Not here: the cost model and measured curves (`insight.network`).
Invariant: every sum is exact in float32, so a right answer has one value only.

Shapes: device k of K holds ``[C]`` with C a multiple of K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from paceline.base.errors import DeviceError
from paceline.base.units import format_bytes, format_count, format_duration
from paceline.doctor.finding import Finding
from paceline.insight.hardware.machine import parse_machine
from paceline.insight.network.algorithms import bus_factor
from paceline.insight.network.cost import collective_cost
from paceline.insight.network.measured import measure_network
from paceline.topology.mesh import DATA_AXIS, data_mesh, split_rows

CHECK = "collectives"

CORRECT_ELEMENTS = 4096
"""Elements a device for the comparison, at least; rounded up to a multiple of K."""
_SPEED_BYTES = 64 * 1024**2
_SPEED_BYTES_CPU = 4 * 1024**2
_REPEATS = 5
_SPEED_S = 3.0
_PERIOD = 31
LARGEST_K = 4000
"""The largest sum is K (K + 1) / 2 + 30 K, for 4,000 devices 8.1 million: below 2**24, so float32 holds it exactly."""


def contribution(device: int, elements: int) -> np.ndarray:
    """What a device puts in: float32 ``[C]``, whole numbers that tell the device and the place apart."""
    return (device + 1 + np.arange(elements) % _PERIOD).astype(np.float32)


def expected(kind: str, count: int, *, elements: int) -> list[np.ndarray]:
    """What each of `count` devices must hold afterwards, by whole-number arithmetic in numpy."""
    whole = [contribution(device, elements).astype(np.int64) for device in range(count)]
    if kind == "all-gather":
        return [np.concatenate(whole).astype(np.float32)] * count
    total = np.sum(whole, axis=0).astype(np.float32)
    return [total] * count if kind == "all-reduce" else list(np.split(total, count))


KINDS: dict[str, Callable[[Any], Any]] = {
    "all-reduce": lambda x: lax.psum(x, DATA_AXIS),
    "reduce-scatter": lambda x: lax.psum_scatter(x, DATA_AXIS, tiled=True),
    "all-gather": lambda x: lax.all_gather(x, DATA_AXIS, tiled=True),
}


def collective_findings(devices: Sequence[Any]) -> list[Finding]:
    """Right or wrong on every device of this process, then the bus bandwidth. About 2 s on two cores."""
    if len(devices) == 1:
        return [Finding(CHECK, "ok", "one device: nothing is sent")]
    if len(devices) > LARGEST_K:
        return [Finding(CHECK, "warning", f"not run: sums over {len(devices)} devices are not exact in float32")]
    mesh = data_mesh(list(devices))
    elements = -(-CORRECT_ELEMENTS // len(devices)) * len(devices)
    found = [
        finding
        for kind in KINDS
        for finding in compare(kind, received(kind, mesh, elements=elements), elements=elements)
    ]
    if found:
        return found
    text = f"{', '.join(KINDS)} give exact sums on {format_count(len(devices), 'device')}"
    return [Finding(CHECK, "ok", text), speed_finding(devices)]


def received(kind: str, mesh: Mesh, *, elements: int) -> list[np.ndarray]:
    """What each device holds after the collective, read from its own memory."""
    count = mesh.size
    rows = np.concatenate([contribution(device, elements) for device in range(count)])
    x = jax.device_put(rows, split_rows(mesh))
    out = _program(kind, mesh)(x)
    order = {device: place for place, device in enumerate(mesh.devices.flat)}
    shards = sorted(out.addressable_shards, key=lambda shard: order[shard.device])
    return [np.asarray(shard.data).reshape(-1) for shard in shards]


def _program(kind: str, mesh: Mesh) -> Callable[[Any], Any]:
    """One collective; every device keeps its own copy of the result, so that a wrong one can be named."""
    spec = PartitionSpec(DATA_AXIS)
    return jax.jit(jax.shard_map(KINDS[kind], mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def compare(kind: str, got: list[np.ndarray], *, elements: int) -> Iterator[Finding]:
    """An error that names the devices whose result differs in any bit."""
    right = expected(kind, len(got), elements=elements)
    wrong = [place for place, (mine, want) in enumerate(zip(got, right, strict=True)) if not np.array_equal(mine, want)]
    if not wrong:
        return
    first = wrong[0]
    at = int(np.flatnonzero(~np.equal(got[first], right[first]))[0]) if got[first].shape == right[first].shape else 0
    what = (
        f"{kind} is wrong on {format_count(len(wrong), 'device')} ({', '.join(map(str, wrong[:8]))}): element {at} of "
    )
    what += f"device {first} is {got[first][at]:g}, not {right[first][at]:g}"
    fix = "leave these devices out and run it again; if it stays so, try NCCL_P2P_DISABLE=1, NCCL_ALGO=Ring, another "
    yield Finding(CHECK, "error", what, f"{fix}driver; PCIe access control (ACS) and IOMMU are known causes")


def speed_finding(devices: Sequence[Any]) -> Finding:
    """Bus bandwidth of one large all-reduce against what the devices' link is expected to give."""
    cpu = devices[0].platform == "cpu"
    size = _SPEED_BYTES_CPU if cpu else _SPEED_BYTES
    measured = measure_network(
        devices, sizes_bytes=[size], kinds=["all-reduce"], repeats=_REPEATS, limit_s=_SPEED_S
    ).curves[0]
    size, time_s = int(measured.sizes_bytes[0]), measured.times_s[0]
    rate = size * bus_factor("all-reduce", len(devices)) / time_s
    text = f"all-reduce of {format_bytes(size)} takes {format_duration(time_s)}, bus bandwidth {format_bytes(rate)}/s"
    if cpu:
        return Finding(CHECK, "ok", f"{text}; simulated devices copy in one memory, so nothing is expected of it")
    return judge_speed(text, time_s, expectation_s=expected_s(devices, size))


def expected_s(devices: Sequence[Any], size_bytes: int) -> float | None:
    """What an all-reduce should take on these devices by published rates; None for devices that are not known."""
    kinds = {device.device_kind for device in devices}
    processes = {device.process_index for device in devices}
    if len(kinds) != 1 or len(processes) != 1:  # what joins machines is not known from here
        return None
    try:
        machine = parse_machine(f"{len(devices)}x{kinds.pop()}")
        return collective_cost("all-reduce", size_bytes, machine=machine, devices=len(devices)).time_s
    except DeviceError:
        return None


def judge_speed(text: str, time_s: float, *, expectation_s: float | None) -> Finding:
    """A warning where the all-reduce takes more than twice what it should."""
    if expectation_s is None:
        return Finding(CHECK, "ok", f"{text}; what these devices should give is not known")
    text += f", {format_duration(expectation_s)} expected"
    if time_s <= 2 * expectation_s:
        return Finding(CHECK, "ok", text)
    fix = "look at nvidia-smi topo -m and NCCL_DEBUG=INFO: a link that is down or NCCL over PCIe or TCP in place of "
    return Finding(CHECK, "warning", text, f"{fix}NVLink or InfiniBand are the usual reasons")
