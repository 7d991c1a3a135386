"""Memory that others hold, on the GPUs and on the machine, before the run takes its own.

Owns: processes on the GPUs, what JAX takes at its start, memory that the machine has left.
Not here: what a step needs (`doctor.memory`).
Invariant: the GPUs were looked at before this process used one. Imports no jax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.base.gpus import leading_number, visible_entries
from paceline.base.units import format_bytes, format_percent
from paceline.doctor.environment.gpus import Driver, Gpu
from paceline.doctor.environment.system import System
from paceline.doctor.finding import Finding

CHECK = "occupied"

PREALLOCATED = 0.75
"""Share of a GPU's memory that JAX takes at its first use. Source: JAX, "GPU memory allocation"."""

_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
_OTHERS_BYTES = 600 * 1024**2
"""More than a driver and a display keep for themselves on an idle GPU."""
_LEFT = 0.1
_MEMINFO = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB", re.MULTILINE)
_CGROUPS = (
    ("/sys/fs/cgroup/", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Version 2, then 1: limit, usage, and the line of ``memory.stat`` with the files in the page cache that were not used
lately. They count as usage, and the kernel gives them back before it refuses memory. Source: Linux, Documentation,
"Control Group v2", memory, and "Memory Resource Controller" of version 1."""


def occupied_findings(system: System, driver: Driver) -> list[Finding]:
    """GPUs first, then the machine."""
    fraction, wrong = _fraction(system)
    found = [*wrong, *_allocator(system)]
    for gpu in _visible(system, driver):
        found += _gpu(gpu, driver, fraction=fraction)
    if driver.gpus and not found:
        taken = "nothing at once" if fraction is None else f"{format_percent(fraction)} of each at its start"
        found.append(Finding(CHECK, "ok", f"no other process is on the GPUs; JAX takes {taken}"))
    return [*found, _machine(system)]


def _visible(system: System, driver: Driver) -> list[Gpu]:
    """The GPUs that this process may use, if the driver told of any."""
    text = system.environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(driver.gpus)
    seen = visible_entries(text, there=len(driver.gpus))
    return [gpu for gpu in driver.gpus
            if any(leading_number(entry) == gpu.index or gpu.uuid.startswith(entry) for entry in seen)]  # fmt: skip


def _fraction(system: System) -> tuple[float | None, list[Finding]]:
    """The share of memory that JAX takes at its start, None for none, and what is wrong with the variables."""
    if system.variable(_PREALLOCATE).lower() in ("0", "false") or system.variable(_ALLOCATOR) == "platform":
        return None, []
    given = [name for name in _FRACTIONS if system.variable(name)]
    if len(given) > 1:
        what = f"{' and '.join(given)} are both set, and JAX refuses to start"
        return PREALLOCATED, [Finding(CHECK, "error", what, f"unset {given[1]}")]
    if not given:
        return PREALLOCATED, []
    text = system.variable(given[0])
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value <= 1:
        what = f"{given[0]}={text}: it is the share of a GPU's memory that JAX takes"
        return PREALLOCATED, [Finding(CHECK, "error", what, f"set {given[0]}=0.9, or unset it for {PREALLOCATED}")]
    return value, []


def _allocator(system: System) -> Iterator[Finding]:
    if system.variable(_ALLOCATOR) == "platform":
        what = f"{_ALLOCATOR}=platform: every array is allocated by the driver, which slows a run down"
        yield Finding(CHECK, "warning", what, f"unset {_ALLOCATOR}; {_PREALLOCATE}=false takes memory as it is needed")


def _gpu(gpu: Gpu, driver: Driver, *, fraction: float | None) -> Iterator[Finding]:
    if gpu.memory_bytes is None or gpu.used_bytes is None or gpu.used_bytes < _OTHERS_BYTES:
        return
    apps = [app for app in driver.apps if app.uuid == gpu.uuid]
    names = ", ".join(f"{app.name} (process {app.pid}, {format_bytes(app.used_bytes or 0)})" for app in apps)
    by = f" by {names}" if names else ", by processes that cannot be seen from here"
    what = f"GPU {gpu.index}: {format_bytes(gpu.used_bytes)} of {format_bytes(gpu.memory_bytes)} are in use{by}"
    end = (
        f"end {'it' if len(apps) == 1 else 'them'} (look with nvidia-smi), or leave the GPU out of CUDA_VISIBLE_DEVICES"
    )
    free = gpu.memory_bytes - gpu.used_bytes
    if fraction is None or fraction * gpu.memory_bytes <= free:
        yield Finding(CHECK, "warning", what, end)
        return
    share = max(0.01, int(90 * free / gpu.memory_bytes) / 100)
    what += f", and JAX would take {format_bytes(fraction * gpu.memory_bytes)} at its start"
    yield Finding(CHECK, "error", what, f"{end}, or set {_FRACTIONS[0]}={share:.2f}")


def _stat(system: System, folder: str, name: str) -> int:
    """Bytes in a line of ``memory.stat`` of a control group; 0 if it does not tell."""
    found = re.search(rf"^{name} (\d+)$", system.read(f"{folder}memory.stat") or "", re.MULTILINE)
    return int(found[1]) if found else 0


def _machine(system: System) -> Finding:
    """Memory that the machine has left, within the limit of its control group."""
    known = {name: int(size) * 1024 for name, size in _MEMINFO.findall(system.read("/proc/meminfo") or "")}
    if len(known) < 2:
        return Finding(CHECK, "ok", "the machine does not tell how much memory is free")
    total, free = known["MemTotal"], known["MemAvailable"]
    for folder, limit_file, usage_file, cached in _CGROUPS:
        limit, usage = ((system.read(folder + name) or "").strip() for name in (limit_file, usage_file))
        if limit.isdigit() and int(limit) < total:
            total = int(limit)
            held = max(0, int(usage) - _stat(system, folder, cached)) if usage.isdigit() else 0
            free = min(free, total - held)
    text = f"the machine has {format_bytes(max(0, free))} of {format_bytes(total)} memory left"
    if free > _LEFT * total:
        return Finding(CHECK, "ok", text)
    return Finding(CHECK, "warning", text, "end other programs, or ask the scheduler for more memory (Slurm: --mem)")
