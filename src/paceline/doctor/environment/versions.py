"""Do jax, jaxlib, the plugin of the accelerator and its driver fit each other?

Owns: installed versions, the oldest driver for a CUDA, the GPUs that a CUDA still serves, a GPU without a plugin.
Not here: what JAX sees in the end (`devices`).
Invariant: reads package metadata only, so it works where jax cannot be imported. Imports no jax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from paceline.doctor.environment.gpus import Driver
from paceline.doctor.environment.system import System
from paceline.doctor.finding import Finding

CHECK = "versions"

OLDEST_DRIVER = {12: 525, 13: 580}
"""Major version of CUDA to that of the oldest Linux driver. Source: NVIDIA, CUDA Compatibility, "Minor Version
Compatibility", table 1 (docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""

OLDEST_CAPABILITY = {12: 5.2, 13: 7.5}
"""Compute capability from which JAX's plugins for a CUDA serve a GPU. Source: JAX, "Installation", NVIDIA GPU."""

_PLUGIN = re.compile(r"jax-cuda(\d+)-plugin")
_PARTS = ("plugin", "pjrt")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


def version_findings(system: System, driver: Driver, *, importing: str | None = None) -> list[Finding]:
    """Mismatches, each with the command that mends it; else one line with all versions.

    Args:
      importing: why jax could not be imported, in its own words; None if it could.
    """
    packages = system.packages()
    found = [*_importing(packages, importing), *_plugins(system, driver), *_driver(system, driver)]
    if any(finding.level == "error" for finding in found):
        return found
    return [*found, Finding(CHECK, "ok", _versions(packages, driver))]


def cuda_of(packages: Mapping[str, str]) -> int | None:
    """Major version of the CUDA that the newest installed plugin of JAX is made for; None without a plugin."""
    found = [int(match[1]) for match in map(_PLUGIN.fullmatch, packages) if match]
    return max(found, default=None)


def _versions(packages: Mapping[str, str], driver: Driver) -> str:
    order = sorted(packages, key=lambda name: (not name.startswith("jax"), name))
    texts = [f"{name} {packages[name]}" for name in order]
    texts += [f"NVIDIA driver {driver.version}"] if driver.version else []
    return ", ".join(texts) or "no package of JAX has metadata here"


def _importing(packages: Mapping[str, str], importing: str | None) -> Iterator[Finding]:
    if importing is not None:
        version = packages.get("jax", "")
        fix = f'pip install --upgrade "jax=={version}"' if version else "pip install --upgrade jax"
        yield Finding(CHECK, "error", f"jax cannot be imported: {importing}", f"{fix}, which brings the jaxlib for it")


def _plugins(system: System, driver: Driver) -> Iterator[Finding]:
    """Plugins beside jaxlib: JAX leaves out one of another version, and trains on CPU."""
    packages, extras = system.packages(), system.extras()
    jaxlib = packages.get("jaxlib", "")
    cudas = sorted(int(match[1]) for match in map(_PLUGIN.fullmatch, packages) if match)
    for cuda in cudas:
        for part in _PARTS:
            name = f"jax-cuda{cuda}-{part}"
            version = packages.get(name)
            install = f'pip install --upgrade "jax[cuda{cuda}]=={packages.get("jax", jaxlib)}"'
            if extras and f"cuda{cuda}" not in extras:  # left over from an older jax
                install = f"pip uninstall jax-cuda{cuda}-plugin jax-cuda{cuda}-pjrt: this jax has none for CUDA {cuda}"
            if version is None:
                yield Finding(CHECK, "error", f"{name} is missing beside its other half, so JAX runs on CPU", install)
            elif jaxlib and _numbers(version) != _numbers(jaxlib):
                what = f"{name} {version} beside jaxlib {jaxlib}: JAX leaves a plugin of another version out and"
                yield Finding(CHECK, "error", f"{what} runs on CPU", install)
    if len(cudas) > 1:
        drop = min(cudas)
        yield Finding(CHECK, "warning", f"plugins for CUDA {' and '.join(map(str, cudas))} are installed side by side",
                      f"pip uninstall jax-cuda{drop}-plugin jax-cuda{drop}-pjrt")  # fmt: skip
    if not cudas and driver.present and not any("rocm" in name for name in packages):
        extra = 12 if driver.major is not None and driver.major < OLDEST_DRIVER[13] else 13
        yield Finding(CHECK, "error", "this machine has an NVIDIA GPU, but JAX has no plugin for it and runs on CPU",
                      f'pip install --upgrade "jax[cuda{extra}]=={packages.get("jax", jaxlib)}"')  # fmt: skip


def _driver(system: System, driver: Driver) -> Iterator[Finding]:
    """A driver that is broken, or too old for the plugin's CUDA; GPUs that this CUDA no longer serves."""
    if driver.problem is not None:
        mismatch = "version mismatch" in driver.problem
        fix = "restart the machine, or load the kernel module of the installed driver again" if mismatch else (
            "mend the driver first: nvidia-smi has to list the GPUs; inside a container, start it with --gpus all"
        )  # fmt: skip
        yield Finding(CHECK, "error", driver.problem, fix)
    cuda = cuda_of(system.packages())
    if cuda is None:
        return
    oldest, older = OLDEST_DRIVER.get(cuda), f"cuda{cuda - 1}"
    extra = f'pip install "jax[{older}]"' if older in system.extras() else None
    if oldest is not None and driver.major is not None and driver.major < oldest:
        fix = f"update the driver to {oldest} or newer"
        fix += f", or {extra}" if extra and driver.major >= OLDEST_DRIVER.get(cuda - 1, oldest) else ""
        yield Finding(CHECK, "error", f"driver {driver.version} is too old for CUDA {cuda}, which needs {oldest} or "
                      "newer, so JAX runs on CPU", fix)  # fmt: skip
    least = OLDEST_CAPABILITY.get(cuda, 0.0)
    for gpu in driver.gpus:
        if gpu.capability is not None and gpu.capability < least:
            what = f"GPU {gpu.index} ({gpu.name}) has compute capability {gpu.capability}, below {least} of CUDA {cuda}"
            served = gpu.capability >= OLDEST_CAPABILITY.get(cuda - 1, least)
            yield Finding(CHECK, "error", what, extra if extra and served else "use a newer GPU")


def _numbers(version: str) -> str:
    """The leading dotted numbers, which JAX compares."""
    found = _NUMBERS.match(version)
    return found[0] if found else version
