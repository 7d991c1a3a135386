"""Finding a device by its name, or as JAX names it.

Owns: the comparison of names, what a short name means, the error for an unknown one.
Not here: the numbers (`hardware.catalog`), this CPU's (`hardware.cpu`).
Invariant: an unknown device is an error that says "unknown"; nothing ever stands in for it.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache

import jax

from paceline.base.errors import DeviceError
from paceline.insight.hardware.catalog import DEVICES, Device
from paceline.insight.hardware.cpu import this_cpu

_CPU_NAMES = frozenset({"cpu", "thiscpu"})
_MEMORY_FORMS = {"A100": "A100-40 is the one with 40 GB", "V100": "V100-16 is the one with 16 GB"}
_BOARD_FORMS = {
    "H100": "H100-PCIe is the card",
    "A100": "A100-PCIe is the card",
    "P100": "P100-PCIe is the card",
}


def find_device(name: str) -> Device:
    """The device of that name; ``cpu`` is measured, which takes about a second the first time in a process.

    A name that several forms of a device share means the commonest one, and the name of the result says which:
    ``A100`` is "A100 SXM 80 GB". `meaning` has the other forms.

    Raises: DeviceError: no such device; the fix names the nearest.
    """
    key = _key(name)
    if key in _CPU_NAMES:
        return this_cpu()
    if key in _table():
        return _table()[key]
    close = get_close_matches(key, list(_table()), n=3, cutoff=0.5)
    names = list(dict.fromkeys(_table()[match].name for match in close))
    known = ", ".join(device.name for device in DEVICES)
    raise DeviceError(
        what=f"unknown device {name!r}",
        why="its rates and its memory are not known, and those of another device would give wrong answers",
        fix=f"perhaps {' or '.join(repr(n) for n in names)}" if names else f"use one of: {known}, cpu",
    )


def meaning(name: str) -> str:
    """What a short name was taken for, in words; empty where the name leaves no choice.

    Raises: DeviceError: no such device.
    """
    device = find_device(name)
    if _key(name) in _CPU_NAMES or _key(name) == _key(device.name):
        return device.note
    short = _key(name).upper()
    others = [forms[short] for forms in (_MEMORY_FORMS, _BOARD_FORMS) if short in forms]
    said = f"{name} is taken for {device.name}" if others else ""
    return "; ".join(part for part in (said, *others, device.note) if part)


def from_jax_device(device: jax.Device) -> Device | None:
    """The table's entry for a device that JAX sees, by its `device_kind`; None if it is not in the table.

    A CPU is measured (`this_cpu`).
    """
    if device.platform == "cpu":
        return this_cpu()
    return _table().get(_key(device.device_kind))


def _key(name: str) -> str:
    """``NVIDIA A100-SXM4-80GB`` and ``a100 sxm4 80gb`` are one name."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"nvidia|amdinstinct|geforce|tesla", "", re.sub(r"\s", "", name.lower())))


@cache
def _table() -> dict[str, Device]:
    return {_key(name): device for device in DEVICES for name in (device.name, *device.aliases)}
