"""CUDA_VISIBLE_DEVICES: entries that name no GPU, GPUs named twice, fewer than asked for.

Owns: the variable against the GPUs of the machine.
Not here: the count itself (`base.gpus`), which process takes which GPU (`processes`).
Imports no jax.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.base.gpus import gpus_of_machine, leading_number, names_a_gpu, visible_entries
from paceline.base.units import format_count
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.gpus import Driver
from paceline.doctor.environment.system import System
from paceline.doctor.finding import Finding

CHECK = "visible"
_NAME = "CUDA_VISIBLE_DEVICES"


def visible_findings(system: System, driver: Driver, *, asked: Asked) -> list[Finding]:
    """What CUDA makes of the variable."""
    text = system.environment.get(_NAME)
    there = len(driver.gpus) or gpus_of_machine(listing=system.path("/proc/driver/nvidia/gpus"),
                                                nodes=system.path("/dev"))  # fmt: skip
    if text is None:
        return [Finding(CHECK, "ok", f"{_NAME} is not set" + (f": all {there} GPUs are visible" if there else ""))]
    if not there:
        return [Finding(CHECK, "ok", f"{_NAME}={text!r}, on a machine without NVIDIA GPU")]
    found = [*_entries(text, driver, there=there), *_too_few(text, asked, there=there)]
    seen = visible_entries(text, there=there)
    return found or [Finding(CHECK, "ok", f"{_NAME}={text!r} shows {format_count(len(seen), 'GPU')} of {there}")]


def _entries(text: str, driver: Driver, *, there: int) -> Iterator[Finding]:
    entries = [part.strip() for part in text.split(",")]
    if text.strip() in ("", "-1"):
        return
    repeated = sorted({entry for entry in entries if entries.count(entry) > 1 and names_a_gpu(entry, there=there)})
    if repeated:
        once = ",".join(dict.fromkeys(entries))
        what = f"{_NAME}={text!r} names {' and '.join(repeated)} twice, and CUDA then shows no GPU at all"
        yield Finding(CHECK, "error", what, f"set {_NAME}={once}")
        return
    fix = f"use numbers 0 to {there - 1}, joined by commas without ranges"
    for place, entry in enumerate(entries):
        problem = _problem(entry, driver, there=there)
        if problem is not None:
            hidden = len(entries) - place - 1
            what = f"{_NAME}={text!r}: {entry!r} {problem}"
            what += f", and CUDA hides the {format_count(hidden, 'GPU')} behind it too" if hidden else ""
            yield Finding(CHECK, "error", what, fix)
            return
        if not entry.isdigit() and (index := leading_number(entry)) is not None:
            what = f"{_NAME}={text!r}: of {entry!r} CUDA reads the number in front alone, GPU {index}"
            yield Finding(CHECK, "error", what, fix)


def _problem(entry: str, driver: Driver, *, there: int) -> str | None:
    """Why an entry names no GPU; None if it does."""
    index = leading_number(entry)
    if index is not None:
        return None if index < there else f"names no GPU: there are {there}"
    if entry.startswith("GPU-") and driver.gpus:
        return None if any(gpu.uuid.startswith(entry) for gpu in driver.gpus) else "is the name of no GPU here"
    if entry.startswith(("GPU-", "MIG-")):
        return None
    return "is no number or name of a GPU" if entry else "is empty"


def _too_few(text: str, asked: Asked, *, there: int) -> Iterator[Finding]:
    """Fewer than the run takes on this machine. With several processes `devices` counts those of all."""
    wanted = asked.devices if asked.own_processes in (None, 1) else None
    if asked.processes and asked.devices_per_process:
        wanted = asked.processes * asked.devices_per_process
    if asked.simulate is not None or wanted is None:
        return
    seen = len(visible_entries(text, there=there))
    if seen < wanted:
        fix = (
            f"use {seen} of them at most" if seen and wanted > there else f"unset {_NAME}, or name {wanted} GPUs in it"
        )
        yield Finding(CHECK, "error", f"{wanted} GPUs asked for, but {_NAME}={text!r} shows {seen} of {there}", fix)
