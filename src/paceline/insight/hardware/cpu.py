"""This machine's CPU as a device: what it does, measured, not what its maker says.

Owns: a short measurement of matrix multiplication and copying through JAX, kept for the life of the process.
Not here: the table of accelerators (`hardware.catalog`).
Invariant: no number comes from a table. On a shared machine the best of several repeats is nearest to the truth, since
other work only ever slows one down.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp

from paceline.insight.hardware.catalog import Device
from paceline.topology.devices import machine_memory

_SIDE = 768
_COPY_BYTES = 64 * 2**20
_LEAST_S = 0.12
"""How long each measurement runs at least."""


@cache
def this_cpu() -> Device:
    """The CPU device of JAX in this process: all threads that its backend uses. Takes about a second, once.

    Simulated devices share these threads: K of them together have this rate, not each.
    """
    device = jax.local_devices(backend="cpu")[0]
    rates = {dtype: _multiply_flops_per_s(dtype, device) for dtype in ("float32", "bfloat16")}
    how = f"measured: {_SIDE}^3 matrix multiplication through JAX, best of repeats over {_LEAST_S} s, one device"
    copied = f"measured: adding 1 to {_COPY_BYTES} bytes through JAX, bytes read plus bytes written"
    return Device(
        name=f"this CPU ({_model()}, {num_threads()} threads)",
        aliases=("cpu",),
        peak_flops_per_s=rates,
        memory_bytes=machine_memory(),
        memory_bytes_per_s=_copy_bytes_per_s(device),
        link="memory",
        devices_per_node=1024,
        sources={
            "peak_flops_per_s": how,
            "memory_bytes": "the operating system, or the limit of the control group",
            "memory_bytes_per_s": copied,
            "link": "simulated devices exchange through memory",
        },
        note="simulated devices share one CPU: these rates are of all of them together",
    )


def num_threads() -> int:
    """Processors that this process may run on; XLA's CPU backend makes as many threads."""
    return len(os.sched_getaffinity(0))


def _model() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def _multiply_flops_per_s(dtype: str, device: jax.Device) -> float:
    side = jax.device_put(jnp.ones((_SIDE, _SIDE), jnp.float32), device).astype(dtype)
    multiply = jax.jit(lambda a: a @ a)
    return 2.0 * _SIDE**3 / best_s(lambda: multiply(side).block_until_ready(), least_s=_LEAST_S)


def _copy_bytes_per_s(device: jax.Device) -> float:
    values = jax.device_put(jnp.zeros(_COPY_BYTES // 4, jnp.float32), device)
    add = jax.jit(lambda x: x + 1)
    return 2.0 * _COPY_BYTES / best_s(lambda: add(values).block_until_ready(), least_s=_LEAST_S)


def best_s(work: Callable[[], object], *, least_s: int | float, least_repeats: int = 1) -> float:
    """Time of the fastest of several calls [s], after one that does not count.

    Args:
      work: returns when it is done.
      least_s: how long the calls go on at least [s].
      least_repeats: how many there are at least.
    """
    work()
    fastest_s, repeats, end_s = float("inf"), 0, time.perf_counter() + least_s
    while repeats < least_repeats or time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        work()
        fastest_s = min(fastest_s, time.perf_counter() - begin_s)
        repeats += 1
    return fastest_s
