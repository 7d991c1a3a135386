"""Measuring collectives on the devices at hand.

Owns: the programs that are timed, warm-up, alternating repeats, agreement of processes, the table that people read.
Not here: what is made of the curves (`network.curves`, `network.cost`), the command (`cli`).
Invariant: every process runs the same collectives in the same order, so none waits for one that never comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from paceline.base.errors import DeviceError
from paceline.base.units import format_bytes, format_duration
from paceline.insight.network.algorithms import bus_factor
from paceline.insight.network.curves import Curve, NetworkCurves
from paceline.topology.devices import choose_devices
from paceline.topology.mesh import DATA_AXIS, data_mesh

SIZES_BYTES = tuple(4096 * 4**power for power in range(8))
"""4 KiB to 64 MiB."""
KINDS = ("all-reduce", "reduce-scatter", "all-gather")
_LEAST_REPEATS = 3

Run = Callable[[], jax.Array]


def measure_network(
    devices: int | Sequence[jax.Device] | None = None,
    *,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    kinds: Sequence[str] = KINDS,
    repeats: int = 9,
    limit_s: float = 20.0,
    pause_s: float = 0.0,
) -> NetworkCurves:
    """Time collectives in float32 over these devices; in a run of several processes, all of them call it.

    Compilation and two warm-up rounds are not counted. Rounds over all kinds and sizes alternate, so that a slow moment
    hits all of them; each point is the median over rounds, of the slowest process.

    Args:
      devices: as `choose_devices` takes them; all of every process by default.
      sizes_bytes: S of the whole value; rounded up to a float32 for each device.
      repeats: rounds at most.
      limit_s: no more rounds than fit, but at least three.
      pause_s: before each collective. A traffic shaper lets a burst through after a pause, as after a step's compute;
        without one, collectives back to back show its steady rate.
    Returns: curves, the same in every process.
    Raises: DeviceError: fewer than two devices.
    """
    chosen = choose_devices(devices)
    if len(chosen) < 2:
        raise DeviceError(
            what="one device has no network to measure",
            why="collectives need at least two devices",
            fix="use --devices 2 or more, or --simulate 2",
        )
    mesh = data_mesh(chosen)
    sizes = sorted({_rounded(size, len(chosen)) for size in sizes_bytes})
    runs = {(kind, size): _program(kind, size, mesh) for kind in kinds for size in sizes}
    times: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    agree = _agreed(mesh)
    barrier = _program("all-reduce", 4 * len(chosen), mesh)
    for run in runs.values():
        jax.block_until_ready(run())
    pilot_s = agree([sum(_timed(run, barrier, pause_s) for run in runs.values())])[0]
    for _ in range(min(repeats, max(_LEAST_REPEATS, int(limit_s / max(pilot_s, 1e-9))))):
        for key, run in runs.items():
            times[key].append(_timed(run, barrier, pause_s))
    medians = dict(zip(runs, agree([median(taken) for taken in times.values()]), strict=True))
    nodes = len({device.process_index for device in chosen})
    curves = tuple(
        Curve(kind, len(chosen), nodes, tuple(map(float, sizes)), tuple(medians[kind, size] for size in sizes))
        for kind in kinds
    )
    return NetworkCurves(curves, chosen[0].device_kind, _library(chosen[0], nodes))


def network_lines(curves: NetworkCurves) -> list[str]:
    """The table as nccl-tests print it: size, time, algorithm bandwidth (S / t), bus bandwidth.

    The last line of a collective is its largest bus bandwidth, the number to compare with what the link is sold as.
    """
    lines = [f"{'collective':<16}{'size':>10}{'time':>10}{'algbw':>14}{'busbw':>14}"]
    for curve in curves.curves:
        factor = bus_factor(curve.kind, curve.devices)
        for size, taken_s in zip(curve.sizes_bytes, curve.times_s, strict=True):
            speeds = (f"{_speed(size / taken_s):>14}", f"{_speed(size * factor / taken_s):>14}")
            lines.append(f"{curve.kind:<16}{format_bytes(size):>10}{format_duration(taken_s):>10}{''.join(speeds)}")
    between = "one process" if curves.curves[0].nodes == 1 else f"{curves.curves[0].nodes} processes"
    lines.append(f"{curves.curves[0].devices} devices ({curves.device}), {between}, {curves.library}, float32")
    return lines


def _speed(bytes_per_s: float) -> str:
    return f"{format_bytes(bytes_per_s)}/s"


def _library(device: jax.Device, nodes: int) -> str:
    if device.platform != "cpu":
        return "nccl"
    return "gloo" if nodes > 1 else "memory"


def _rounded(size: int, devices: int) -> int:
    """Every device's part is a whole number of float32."""
    return -(-size // (4 * devices)) * 4 * devices


def _program(kind: str, size: int, mesh: Mesh) -> Run:
    """A compiled collective over a value of `size` bytes, with its operands in place."""
    words = size // 4
    split, whole = PartitionSpec(DATA_AXIS), PartitionSpec()
    own = {"all-gather": words // mesh.size}.get(kind, words)
    bodies: dict[str, Callable[[jax.Array], jax.Array]] = {
        "all-reduce": lambda x: jax.lax.psum(x, DATA_AXIS),
        "reduce-scatter": lambda x: jax.lax.psum_scatter(x, DATA_AXIS, tiled=True),
        "all-gather": lambda x: jax.lax.all_gather(x, DATA_AXIS, tiled=True),
    }
    out = split if kind == "reduce-scatter" else whole
    # The type checker of shard_map cannot see that a gathered value is the same everywhere.
    body = jax.shard_map(bodies[kind], mesh=mesh, in_specs=split, out_specs=out, check_vma=kind != "all-gather")
    program = jax.jit(body)
    operand = _ones(own * mesh.size, mesh)
    return lambda: program(operand)


def _ones(words: int, mesh: Mesh) -> jax.Array:
    sharding = NamedSharding(mesh, PartitionSpec(DATA_AXIS))
    return jax.jit(lambda: jnp.ones(words, jnp.float32), out_shardings=sharding)()


def _timed(run: Run, barrier: Run, pause_s: float) -> float:
    """Seconds of one collective, begun together: a late peer's delay is not the network's."""
    time.sleep(pause_s)
    jax.block_until_ready(barrier())
    begin_s = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - begin_s


def _agreed(mesh: Mesh) -> Callable[[Sequence[float]], list[float]]:
    """The largest of each number over all processes, the same in all of them."""
    split = PartitionSpec(DATA_AXIS)
    largest = jax.jit(
        jax.shard_map(lambda x: jax.lax.pmax(x[0], DATA_AXIS), mesh=mesh, in_specs=split, out_specs=PartitionSpec())
    )

    def agree(values: Sequence[float]) -> list[float]:
        row = np.asarray(values, np.float32)[None]
        whole = jax.make_array_from_callback(
            (mesh.size, len(values)), NamedSharding(mesh, split), lambda index: np.broadcast_to(row, (1, len(values)))
        )
        return [float(value) for value in np.asarray(largest(whole).addressable_data(0))]

    return agree
