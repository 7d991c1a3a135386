"""Limits of the machine that end a run late: shared memory, open files, locked memory, processes, cores.

Owns: which limit is too small for what a run does.
Imports no jax.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

from paceline.base.units import format_bytes, format_count
from paceline.doctor.environment.system import System
from paceline.doctor.finding import Finding

CHECK = "limits"

_SHM_BYTES = 1024**3
"""NCCL keeps tens of MB a pair of GPUs there, PyTorch's data workers whole batches; Docker gives 64 MB by default.
Source: NCCL, "Troubleshooting", shared memory."""
_FILES = 1024
_FILES_SEVERAL = 4096
"""Sockets of NCCL and Gloo grow with the number of processes; 1024 is the usual limit of a shell."""
_THREADS = 4096
"""JAX starts two to three threads a core and device, and each counts."""


def limit_findings(system: System, *, devices: int, several: bool) -> list[Finding]:
    """Warnings for what is too small; else one line.

    Args:
      devices: K on this machine.
      several: whether more than one process is expected.
    """
    found = [*_shared(system), *_files(system, several=several), *_locked(system), *_processes(system)]
    found += [*_cores(system, devices=devices), *_workers()]
    return found or [Finding(CHECK, "ok", _all_well(system))]


def usable_cores(system: System) -> float:
    """CPU cores within the control group's quota, fractions included."""
    cores = float(system.cores)
    quota, _, period = (system.read("/sys/fs/cgroup/cpu.max") or "").strip().partition(" ")
    if not quota:
        quota = (system.read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or "").strip()
        period = (system.read("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or "").strip()
    if quota.isdigit() and period.isdigit() and int(period):
        cores = min(cores, int(quota) / int(period))
    return cores


def _all_well(system: System) -> str:
    shared, files = system.space(system.path("/dev/shm")), system.limit("NOFILE")
    texts = [f"{format_bytes(shared[0])} of shared memory"] if shared else []
    texts.append(f"{files:,} open files" if files is not None else "open files without limit")
    return ", ".join([*texts, f"{usable_cores(system):.3g} cores"])


def _shared(system: System) -> Iterator[Finding]:
    space = system.space(system.path("/dev/shm"))
    fix = "start the container with --ipc=host or --shm-size=16g; else mount -o remount,size=16G /dev/shm"
    if space is None:
        yield Finding(CHECK, "warning", "there is no /dev/shm: NCCL and data workers share memory there", fix)
    elif space[1] < _SHM_BYTES:
        what = f"/dev/shm has {format_bytes(space[1])} free of {format_bytes(space[0])}: NCCL and data workers may fail"
        full = space[0] >= _SHM_BYTES
        yield Finding(CHECK, "warning", what, "remove what ended programs left in /dev/shm" if full else fix)


def _files(system: System, *, several: bool) -> Iterator[Finding]:
    limit, least = system.limit("NOFILE"), _FILES_SEVERAL if several else _FILES
    if limit is not None and limit < least:
        what = f"a process may hold {limit:,} files and sockets open, which is few"
        yield Finding(CHECK, "warning", what, f"ulimit -n {max(least, 65536)} before the run")


def _locked(system: System) -> Iterator[Finding]:
    """InfiniBand registers memory, which locks it."""
    limit = system.limit("MEMLOCK")
    cards = system.names("/sys/class/infiniband")
    if cards and limit is not None:
        what = f"this machine has {cards[0]}, but a process may lock {format_bytes(limit)} only: RDMA would fail"
        fix = "ulimit -l unlimited before the run (container: --ulimit memlock=-1)"
        yield Finding(CHECK, "warning", what, fix)


def _processes(system: System) -> Iterator[Finding]:
    limit = system.limit("NPROC")
    if limit is not None and limit < _THREADS:
        what = f"you may have {limit:,} processes and threads, which is few"
        yield Finding(CHECK, "warning", what, f"ulimit -u {_THREADS} or more before the run")


def _cores(system: System, *, devices: int) -> Iterator[Finding]:
    """Fewer cores than accelerators: each needs one to be fed. Simulated devices are judged elsewhere."""
    cores = usable_cores(system)
    if cores < devices:
        what = f"{cores:.3g} CPU cores for {format_count(devices, 'accelerator')}: input and dispatch would be slow"
        fix = f"ask for {devices} cores or more (Slurm: --cpus-per-task; container: --cpus)"
        yield Finding(CHECK, "warning", what, fix)


def _workers() -> Iterator[Finding]:
    """A program that chose to fork: JAX's threads and os.fork deadlock."""
    if multiprocessing.get_start_method(allow_none=True) == "fork":
        what = "multiprocessing is set to fork: a data worker that is forked beside JAX's threads may hang"
        yield Finding(CHECK, "warning", what, 'multiprocessing.set_start_method("spawn"), or leave the method alone')


def mount_type(system: System, path: Path) -> str | None:
    """The type of the file system that a path lies on, such as ``ext4`` or ``nfs4``; None if it is not known."""
    best, kind = "", None
    for line in (system.read("/proc/mounts") or "").splitlines():
        parts = line.split()
        if len(parts) < 3:
            continue
        place = parts[1].replace("\\040", " ")
        inside = str(path) == place or str(path).startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, parts[2]
    return kind
