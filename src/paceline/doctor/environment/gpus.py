"""NVIDIA GPUs as the driver tells them, before this process takes memory on them.

Owns: reading nvidia-smi and the driver's files.
Not here: what JAX sees (`devices`), CUDA_VISIBLE_DEVICES (`visible`).
Invariant: a driver that does not answer is told from one that is not there. Imports no jax.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.base.gpus import gpus_of_machine
from paceline.doctor.environment.system import System

_SMI = "nvidia-smi"
_FIELDS = "index,uuid,name,memory.total,memory.used,compute_cap"
_APPS = "gpu_uuid,pid,process_name,used_memory"
_VERSION = re.compile(r"NVRM version:.*?\b(\d{3,}\.[\d.]+)")
_MIB = 1024**2
_BUS = "/sys/bus/pci/devices"
_VENDOR = "0x10de"
"""NVIDIA's number on the PCI bus. Source: pci-ids.ucw.cz, vendor 10de."""
_DISPLAY = "0x03"
"""Class of graphics cards and 3D controllers. Source: pci-ids.ucw.cz, device class 03."""


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine.

    Args:
      index: as nvidia-smi counts.
      memory_bytes, used_bytes: None where the driver does not say, as on machines with one memory for all.
      capability: compute capability, such as 9.0.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int | None
    used_bytes: int | None
    capability: float | None


@dataclass(frozen=True)
class App:
    """A process that computes on a GPU."""

    uuid: str
    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True)
class Driver:
    """What the NVIDIA driver says of itself.

    Args:
      present: whether there is any sign of a GPU on this machine.
      version: such as 580.65.06; None if it is not known.
      problem: why nothing more is known, in nvidia-smi's words; None if it answered, or is not installed.
      gpus, apps: empty if it did not answer.
    """

    present: bool = False
    version: str | None = None
    problem: str | None = None
    gpus: tuple[Gpu, ...] = ()
    apps: tuple[App, ...] = ()

    @property
    def major(self) -> int | None:
        """580 of 580.65.06."""
        return None if self.version is None else int(self.version.split(".")[0])


def nvidia_card(system: System) -> bool:
    """Whether any sign of an NVIDIA GPU is there, with or without a driver. Containers see the machine's bus too."""
    if system.read("/proc/driver/nvidia/version") is not None:
        return True
    return any(
        (system.read(f"{_BUS}/{name}/vendor") or "").strip() == _VENDOR
        and (system.read(f"{_BUS}/{name}/class") or "").startswith(_DISPLAY)
        for name in system.names(_BUS)
    )


def read_driver(system: System) -> Driver:
    """Ask nvidia-smi, else the driver's files. Takes up to 20 s where the driver hangs, else a fraction of one."""
    counted = gpus_of_machine(listing=system.path("/proc/driver/nvidia/gpus"), nodes=system.path("/dev"))
    kernel = _VERSION.search(system.read("/proc/driver/nvidia/version") or "")
    version = kernel[1] if kernel else None
    told = system.run([_SMI, f"--query-gpu={_FIELDS},driver_version", "--format=csv,noheader,nounits"])
    if told is None:
        return Driver(counted > 0, version)
    if told.code != 0:
        first = next((line.strip() for line in (told.out + told.err).splitlines() if line.strip()), "")
        problem = "nvidia-smi did not answer in 10 s" if told.code is None else f"nvidia-smi fails: {first}"
        return Driver(counted > 0 or version is not None, version, problem)
    rows = [[part.strip() for part in line.split(",")] for line in told.out.splitlines() if line.count(",") >= 6]
    gpus = tuple(_gpu(row) for row in rows if row[0].isdigit())
    version = next((row[6] for row in rows if re.fullmatch(r"\d+\.[\d.]+", row[6])), version)
    return Driver(bool(gpus) or counted > 0, version, None, gpus, _apps(system))


def _gpu(row: list[str]) -> Gpu:
    try:
        capability = float(row[5])
    except ValueError:  # an old nvidia-smi
        capability = None
    return Gpu(int(row[0]), row[1], row[2], _bytes(row[3]), _bytes(row[4]), capability)


def _apps(system: System) -> tuple[App, ...]:
    told = system.run([_SMI, f"--query-compute-apps={_APPS}", "--format=csv,noheader,nounits"])
    if told is None or told.code != 0:
        return ()
    rows = [[part.strip() for part in line.split(",")] for line in told.out.splitlines() if line.count(",") >= 3]
    return tuple(App(row[0], int(row[1]), row[2], _bytes(row[3])) for row in rows if row[1].isdigit())


def _bytes(text: str) -> int | None:
    """Bytes of a number in MiB; None for ``[N/A]``."""
    return int(text) * _MIB if text.isdigit() else None
