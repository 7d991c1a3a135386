"""Which devices should hold the same bytes of a leaf.

Owns: reading a leaf's sharding for groups of replicas, and the reason where there are none.
Not here: whether they do hold the same (`check.audit`): a sharding label says what should be, not what is.
Invariant: every leaf of a tree either has a layout or a reason why it is not compared.

Shapes: a leaf of ``[...]`` is replicated along some mesh axes, or ``[K, ...]`` holds one copy a device, as `jax.pmap`
makes it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.core
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from paceline.base.errors import StateError

UNDECIDED = "has the layout of jax.pmap's copies: device_axis=True compares it, False takes it as parts of one array"
"""The reason of a leaf that may hold copies, in a tree where others do not, when nothing says what it is."""


@dataclass(frozen=True)
class Layout:
    """Where the copies of a leaf lie.

    Args:
      mesh: the devices.
      spec: how the array is split over them.
      copy_axes: mesh axes along which the devices hold copies.
    """

    mesh: Mesh
    spec: PartitionSpec
    copy_axes: tuple[str, ...]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of devices that hold the same part, as places in ``mesh.devices.flat``."""
        return _groups(self.mesh, self.copy_axes)


def layouts(
    named: Sequence[tuple[str, Any]], *, device_axis: bool | None
) -> tuple[dict[str, Layout], dict[str, str]]:  # fmt: skip
    """Layouts of the leaves that have replicas, and for each of the others the reason why it has none.

    Args:
      named: leaves with their names.
      device_axis: whether a leaf ``[K, ...]`` with one row a device holds copies; None: if all leaves have this form.
    Raises: StateError: a leaf that a step used up, or one that is traced.
    """
    reasons = {name: _reason(name, leaf) for name, leaf in named}
    there = [leaf for name, leaf in named if reasons[name] is None]
    stacked = all(_is_stacked(leaf) for leaf in there) if device_axis is None else device_axis
    found: dict[str, Layout] = {}
    excluded: dict[str, str] = {}
    for name, leaf in named:
        layout = reasons[name] or _layout(leaf, stacked=stacked)
        if device_axis is None and reasons[name] is None and not stacked and _is_stacked(leaf):
            layout = UNDECIDED
        if isinstance(layout, Layout):
            found[name] = layout
        else:
            excluded[name] = layout
    return found, excluded


def _reason(name: str, leaf: Any) -> str | None:
    """Why a leaf cannot have replicas that a program could compare, or None."""
    if not isinstance(leaf, jax.Array):
        return f"a {type(leaf).__name__} of the host, not an array on devices"
    if isinstance(leaf, jax.core.Tracer):
        raise StateError(
            what=f"leaf {name!r} is traced: the comparison of replicas was called inside jit, pmap or shard_map",
            why="what devices hold is only known when the program runs",
            fix="call it on the arrays that the compiled function returns",
        )
    if leaf.is_deleted():
        raise StateError(
            what=f"leaf {name!r} was given to a step before, which reused its memory",
            why="its bytes are gone",
            fix="compare the state that the step returned, or use Parallel(donate=False)",
        )
    if leaf.size == 0:
        return "holds no elements"
    if len(leaf.sharding.device_set) == 1:
        return "lives on one device"
    if not isinstance(leaf.sharding, NamedSharding):
        return f"its sharding is a {type(leaf.sharding).__name__}, which names no mesh"
    if leaf.sharding.memory_kind not in (None, next(iter(leaf.devices())).default_memory().kind):
        return f"lies in {leaf.sharding.memory_kind} memory, which no program on the devices reads"
    return None


def _layout(leaf: jax.Array, *, stacked: bool) -> Layout | str:
    assert isinstance(leaf.sharding, NamedSharding), "checked by _reason"
    mesh, spec = leaf.sharding.mesh, leaf.sharding.spec
    assert isinstance(mesh, Mesh), "an array that exists has devices"
    if stacked:
        if not _is_stacked(leaf):
            return f"has no leading device axis of size {mesh.size}, split over the devices"
        return Layout(mesh, spec, tuple(mesh.axis_names))
    used = set(itertools.chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in spec))
    copy_axes = tuple(name for name in mesh.axis_names if name not in used and mesh.shape[name] > 1)
    if not copy_axes:
        return f"split over {mesh.size} devices: each holds another part, so there is no replica to compare"
    return Layout(mesh, spec, copy_axes)


def _is_stacked(leaf: jax.Array) -> bool:
    """Whether each device holds one row of a leading dim of size K: what `jax.pmap` returns."""
    num_devices = len(leaf.sharding.device_set)
    return leaf.shape[:1] == (num_devices,) and leaf.sharding.shard_shape(leaf.shape) == (1, *leaf.shape[1:])


@functools.lru_cache(maxsize=256)
def _groups(mesh: Mesh, copy_axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    places = np.arange(mesh.size).reshape(mesh.devices.shape)
    dims = [mesh.axis_names.index(name) for name in copy_axes]
    last = np.moveaxis(places, dims, range(-len(dims), 0))
    rows = last.reshape(-1, int(np.prod([mesh.shape[name] for name in copy_axes])))
    return tuple(tuple(int(place) for place in row) for row in rows)
