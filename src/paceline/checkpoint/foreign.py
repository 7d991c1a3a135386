"""Checkpoints that other code wrote with Orbax, in the classic replicated form too: a leading device axis on each leaf.

Owns: finding the leaves, recognising the axis, the comparison of the replicas.
Not here: the Orbax calls (`checkpoint.arrays`), placing (`checkpoint.placing`).
Invariant: replicas are imported only if all are equal, bit for bit. There are no checksums: what the files hold is
believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.base.errors import CheckpointError
from paceline.checkpoint import arrays
from paceline.checkpoint.bits import host_to_written
from paceline.checkpoint.match import match
from paceline.checkpoint.placing import Target, place
from paceline.checkpoint.snapshot import Leaf, describe
from paceline.tasks.tree import named_leaves


def load(item: Path, wanted: Mapping[str, Target], *, source: str) -> dict[str, Any]:
    """The leaves of an Orbax item, placed; the first copy of each if they have a device axis.

    Raises: CheckpointError: it cannot be read, does not fit, or its replicas differ.
    """
    held = _read(item, source)
    there = {name: describe(array) for name, array in held.items()}
    names, axis = _fit(wanted, there, source=source)
    leaves: dict[str, Any] = {}
    for name, target in wanted.items():
        data = held.pop(names[name])
        if axis is not None:
            _check_replicas(names[name], data, source=source)
            data = data[0, ...]  # `...`: a scalar stays an array
        leaves[name] = place(host_to_written(data), target)
    return leaves


def step_of(leaves: Mapping[str, Any], named: int | None) -> int:
    """The step: as the state says, else as the folder is called, else 0."""
    if "step" in leaves:
        return int(np.asarray(leaves["step"]))
    return named or 0


def _read(item: Path, source: str) -> dict[str, np.ndarray]:
    try:
        tree = arrays.read_tree(item)
    except Exception as error:
        raise CheckpointError(
            what=f"{source} cannot be read by Orbax: {' '.join(str(error).split())[:300]}",
            why="other code wrote it, and files are missing or damaged, or its form is not known here",
            fix="restore it with the code that wrote it, and save its parameters with paceline.export_weights",
        ) from error
    return {name: np.asarray(leaf) for name, leaf in named_leaves(tree) if leaf is not None}


def _fit(wanted: Mapping[str, Target], there: Mapping[str, Leaf], *, source: str) -> tuple[dict[str, str], int | None]:
    """Names in the checkpoint, and the size of the device axis or None. Raises: CheckpointError: it does not fit."""
    plain = {name: _plain(target.leaf) for name, target in wanted.items()}
    try:
        return match(plain, there, source=source), None
    except CheckpointError as error:
        for size in sorted({leaf.shape[0] for leaf in there.values() if leaf.shape}):
            with_axis = {name: Leaf((size, *leaf.shape), leaf.dtype) for name, leaf in plain.items()}
            try:
                return match(with_axis, there, source=source), size
            except CheckpointError:
                continue
        raise error


def _plain(leaf: Leaf) -> Leaf:
    """Keys are stored as their data by most."""
    if not leaf.dtype.startswith("key<"):
        return leaf
    shape, dtype = leaf.written
    return Leaf(shape, dtype.name)


def _check_replicas(name: str, data: np.ndarray, *, source: str) -> None:
    rows = [np.ascontiguousarray(row).tobytes() for row in data]
    commonest, count = Counter(rows).most_common(1)[0]
    if count == len(rows):
        return
    odd = [index for index, row in enumerate(rows) if row != commonest]
    if 2 * count <= len(rows):
        which = f"no majority of the {len(rows)} replicas is equal"
    else:
        which = f"that of device{'s' if len(odd) > 1 else ''} {', '.join(map(str, odd))} is unlike the other {count}"
    raise CheckpointError(
        what=f"{source} has one copy of each leaf for {len(rows)} devices, and those of {name!r} differ: {which}",
        why="the devices of the run that saved it had drifted apart, and no copy can be told right",
        fix="take an earlier checkpoint, or restore it with the code that wrote it and choose a copy",
    )
