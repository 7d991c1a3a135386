"""Which devices exchange with each other in a collective.

Owns: the forms in which XLA writes groups: ``{{0,1},{2,3}}``, ``{}`` (all), ``[2,4]<=[8]``, ``[2,4]<=[4,2]T(1,0)``,
``mesh['data'=8] {'data'}``, and pairs of a permutation.
Invariant: a form that is not known gives None, never a guess.
"""

from __future__ import annotations

import math
import re
from itertools import product

from paceline.insight.hlo.text import Instruction, Module

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"^\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"^mesh\[([^\]]*)\](.*?)\s*\{([^}]*)\}")


def parse_groups(instruction: Instruction, module: Module) -> Groups | None:
    """The groups of a collective, in device numbers of the program; None if they cannot be read."""
    if (pairs := instruction.attribute("source_target_pairs")) is not None:
        numbers = re.findall(r"\d+", pairs)
        return (tuple(sorted({int(number) for number in numbers})),)
    text = instruction.attribute("replica_groups")
    if text is None or text == "{}":
        count = module.header_number("num_partitions", 1) * module.header_number("replica_count", 1)
        return (tuple(range(count)),)
    if text.startswith("{"):
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,\s]*)\}", text))
    if found := _IOTA.match(text):
        return _iota(_numbers(found[1]), _numbers(found[2]), _numbers(found[3] or ""))
    if found := _MESH.match(text):
        return _mesh(found[1], found[2], found[3])
    return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _iota(groups: tuple[int, ...], dims: tuple[int, ...], order: tuple[int, ...]) -> Groups:
    """0, 1, ... as an array of `dims`, transposed by `order`, reshaped to [groups, size of one]."""
    size = groups[-1]
    order = order or tuple(range(len(dims)))
    strides = [math.prod(dims[dim + 1 :]) for dim in order]
    places = product(*(range(dims[dim]) for dim in order))
    flat = [sum(i * stride for i, stride in zip(place, strides, strict=True)) for place in places]
    return tuple(tuple(flat[start : start + size]) for start in range(0, len(flat), size))


def _mesh(axes: str, more: str, over: str) -> Groups | None:
    """Devices in mesh order; a group varies along the axes in `over` and agrees on the rest."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", axes)}
    chosen = re.findall(r"'([^']*)'", over)
    if ":" in over or "device_ids" in more or not set(chosen) <= set(sizes):
        return None
    names = list(sizes)
    order = [names.index(name) for name in names if name not in chosen] + [names.index(name) for name in chosen]
    size = math.prod(sizes[name] for name in chosen)
    return _iota((size,), tuple(sizes.values()), tuple(order))
