"""How many NVIDIA GPUs a process may use. Without a driver call and without jax, which would take them for itself.

Owns: the one count that the supervisor, the processes of a run and the doctor share.
Invariant: what is hidden by CUDA_VISIBLE_DEVICES, or left out by JAX_PLATFORMS, is not counted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

LISTING = Path("/proc/driver/nvidia/gpus")
"""One entry for each GPU that the kernel's driver serves."""
NODES = Path("/dev")

_NODE = re.compile(r"nvidia\d+")
_INDEX = re.compile(r"\d+")
_NAMES = ("GPU-", "MIG-")


def gpu_count(environment: Mapping[str, str] = os.environ, *, listing: Path = LISTING, nodes: Path = NODES) -> int:
    """NVIDIA GPUs that a process started from here may use; 0 where JAX is told to use CPUs.

    Args:
      environment: CUDA_VISIBLE_DEVICES, where set, hides GPUs; JAX_PLATFORMS may leave them out.
      listing: folder with one entry for each GPU of the machine.
      nodes: folder of the devices' files, for containers that hide the listing.
    """
    platforms = {name.strip() for name in environment.get("JAX_PLATFORMS", "").split(",") if name.strip()}
    if platforms and not platforms & {"cuda", "gpu"}:
        return 0
    there = gpus_of_machine(listing=listing, nodes=nodes)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else len(visible_entries(visible, there=there))


def gpus_of_machine(*, listing: Path = LISTING, nodes: Path = NODES) -> int:
    """NVIDIA GPUs of this machine or container, hidden ones included; 0 without a driver."""
    return len(_names(listing)) or sum(_NODE.fullmatch(name) is not None for name in _names(nodes))


def visible_entries(text: str, *, there: int) -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES that CUDA heeds, in order.

    It stops at the first that names no GPU, and sees none at all if one stands there twice.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; for a repeated one, what PyTorch's own reading of
    the variable found CUDA to do (`torch.cuda._parse_visible_devices`).

    Args:
      there: GPUs of the machine.
    """
    heeded: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not names_a_gpu(entry, there=there):
            break
        if entry in heeded:
            return []
        heeded.append(entry)
    return heeded


def names_a_gpu(entry: str, *, there: int) -> bool:
    """Whether an entry may name one of `there` GPUs: an index, or the beginning of a name, which is not looked up."""
    index = leading_number(entry)
    return there > 0 and entry.startswith(_NAMES) if index is None else index < there


def leading_number(entry: str) -> int | None:
    """The index that CUDA reads in an entry; None of a name.

    Of ``0-2`` it reads the leading number alone, as C's strtoul does.
    """
    found = _INDEX.match(entry)
    return int(found[0]) if found else None


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:  # no NVIDIA driver
        return []
