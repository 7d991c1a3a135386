"""Which CPU cores a measurement may use, and how a process is held to them.

Owns: the cores of this process, the choice of K of them, the environment of a process with one core a device.
Invariant: a simulated device counts as a device only where it has a core to itself.

Linux only in what it reads; elsewhere a process cannot be held to cores, and no efficiency is claimed.
This module imports no jax: the process that it is for is held to its cores before jax starts its threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_QUOTAS = (
    ("/sys/fs/cgroup/cpu.max", None),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"

THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""What numerical libraries beside XLA read."""

XLA_FLAG = "--xla_cpu_multi_thread_eigen=false"
"""Asks XLA for one thread an operation. It does not hold for matrix products: on jax 0.10.2 and 0.12.0 (measured: CPU
time by thread in /proc/self/task, two devices) XLA's pool shares them out all the same, and no variable makes that pool
smaller than the number of devices. What holds is the set of cores: one device on one core runs on one thread, and K
devices share K cores."""


def usable_cores() -> list[int]:
    """Cores that this process may use, those first that share no physical core with one before them."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    seen: set[str] = set()
    first: list[int] = []
    for core in cores:
        siblings = _read(_SIBLINGS.format(core)) or str(core)
        if siblings not in seen:
            seen.add(siblings)
            first.append(core)
    return first + [core for core in cores if core not in first]


def physical_cores(cores: list[int]) -> int:
    """How many of these are on a physical core of their own."""
    return len({_read(_SIBLINGS.format(core)) or str(core) for core in cores})


def core_quota() -> float | None:
    """Cores' worth of time that the control group of this process may use; None: no limit is known."""
    for quota_path, period_path in _QUOTAS:
        words = (_read(quota_path) or "").split() + (_read(period_path) or "").split() * (period_path is not None)
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            return int(words[0]) / int(words[1])
    return None


def not_claimed(num_devices: int, cores: list[int], *, quota: float | None) -> str | None:
    """Why no efficiency can be claimed for so many simulated devices; None if each has a core."""
    if not cores:
        return f"{num_devices} simulated devices, and this system cannot hold a process to cores"
    if num_devices > len(cores):
        return f"{num_devices} simulated devices share {_cores(len(cores))}"
    if quota is not None and num_devices > quota:
        return f"{num_devices} simulated devices share the time of {_cores(round(quota, 2))} (limit of the container)"
    return None


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process with one core a device."""
    flags = inherited.get("XLA_FLAGS", "")
    kept = " ".join(flag for flag in flags.split() if "host_platform_device_count" not in flag)
    return dict(inherited) | THREADS | {"XLA_FLAGS": f"{kept} {XLA_FLAG}".strip(), "JAX_PLATFORMS": "cpu"}


def hold_to(cores: list[int]) -> None:
    """Hold this process, and every thread that it will start, to these cores."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _cores(count: int | float) -> str:
    return f"{count:g} core" + ("" if count == 1 else "s")


def _read(path: str | None) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip() if path else None
    except OSError:
        return None
