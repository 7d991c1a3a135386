"""Machines that are not here: folders in place of /proc and /dev, a program in place of nvidia-smi."""

from __future__ import annotations

import stat
from pathlib import Path

from paceline.doctor.environment.system import System
from paceline.doctor.finding import Finding

NAME = "NVIDIA H100 80GB HBM3"
UUIDS = ("GPU-11aa", "GPU-22bb", "GPU-33cc", "GPU-44dd")
PACKAGES = {"jax": "0.12.0", "jaxlib": "0.12.0", "jax-cuda13-plugin": "0.12.0", "jax-cuda13-pjrt": "0.12.0"}
GIB = 1024**3
ADDRESSES = {"node1": ["10.0.0.1"], "node2": ["10.0.0.2"], "localhost": ["127.0.0.1"]}
OWN = ("10.0.0.1", "127.0.0.1")
EXTRAS = frozenset({"cuda", "cuda12", "cuda13", "cuda12-local", "cuda13-local", "rocm7-local", "tpu", "k8s"})
BARE_ORDER = [
    "devices", "versions", "flags", "variables", "visible", "processes", "occupied", "network", "limits", "collectives",
    "cache",
]  # fmt: skip


def machine(root: Path, *, files: dict[str, str] | None = None, **fields) -> System:
    """A machine whose files are those given, without variables; PATH holds `root`/bin only.

    Args:
      files: absolute name to content.
      fields: of `System`; `environment` is added to.
    """
    for name, content in (files or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    environment = {"PATH": str(root / "bin"), **fields.pop("environment", {})}
    usual = {
        "cores": 16, "host_name": "node1", "packages": lambda: PACKAGES,
        "addresses": lambda name: ADDRESSES.get(name, []), "owns": lambda address: address in OWN,
        "extras": lambda: EXTRAS,
        "limit": lambda name: {"NOFILE": 65536, "NPROC": 90000}.get(name), "space": lambda path: (16 * GIB, 15 * GIB),
    }  # fmt: skip
    return System(environment=environment, root=root, **{**usual, **fields})


def gpu_machine(root: Path, count: int = 4, **fields) -> System:
    """A machine with so many GPUs in the driver's listing."""
    for number in range(count):
        (root / f"proc/driver/nvidia/gpus/0000:0{number}:00.0").mkdir(parents=True, exist_ok=True)
    return machine(root, **fields)


def fake_smi(
    root: Path, *, count: int = 4, used_mib: int = 3, driver: str = "580.65.06", capability: str = "9.0",
    apps: tuple[str, ...] = (), memory: str = "81559",
) -> None:  # fmt: skip
    """A program nvidia-smi that prints such a machine in the real one's form: csv,noheader,nounits, memory in MiB."""
    rows = [
        f"{number}, {UUIDS[number]}, {NAME}, {memory}, {3 if number else used_mib}, {capability}, {driver}"
        for number in range(count)
    ]
    script(
        root,
        "nvidia-smi",
        f'case "$1" in --query-gpu=*) echo "{chr(10).join(rows)}";; *) echo "{chr(10).join(apps)}";; esac',
    )


def script(root: Path, name: str, body: str) -> None:
    """A program of the machine."""
    path = root / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def only(found: list[Finding], level: str = "error") -> Finding:
    """The one finding of a level."""
    chosen = [finding for finding in found if finding.level == level]
    assert len(chosen) == 1, [line for finding in found for line in finding.lines()]
    return chosen[0]


def levels(found: list[Finding]) -> set[str]:
    return {finding.level for finding in found}
