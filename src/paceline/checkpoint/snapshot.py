"""A copy of a state at one step, and its checksums, made on the devices while the training thread goes on.

Owns: which leaves a process copies, the programs that copy and sum in one pass, the transfer to the host.
Not here: files (`checkpoint.files`), when a snapshot is taken (`checkpoint.store`).
Invariant: `take` only dispatches. What it returns shares no memory with the state, which the next step may overwrite:
JAX runs the copy before a program that was dispatched after it and reuses the memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from paceline.base.errors import CheckpointError, StateError
from paceline.checkpoint.bits import dtype_name, host_to_written, is_key, to_written, written_dtype, written_shape
from paceline.checkpoint.checksum import (
    Sums,
    batches,
    by_device,
    host_sums,
    local_sums,
    on_mesh,
    owned,
    stack_sums,
)
from paceline.tasks.tree import named_leaves

_ROOM = 1.25


@dataclass(frozen=True)
class Leaf:
    """What is known of a leaf without its numbers. `dtype` is a name; a key's ends in its generator: ``key<rbg>``."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def written(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype in the file."""
        return written_shape(self.shape, self.dtype), written_dtype(self.dtype)


@dataclass
class Snapshot:
    """The copy of a state, perhaps still being made. Each process holds what it will write.

    Args:
      leaves: every leaf of the state, in tree order.
      whole: leaves that process 0 writes alone, in written form, as stacks ``[n, ...]`` of leaves that are alike, with
        their names; on the devices until `to_host`.
      split: leaves whose parts lie with several processes, in written form.
      sums: of each group of leaves, what the devices compute, and how it is read.
    """

    leaves: dict[str, Leaf]
    whole: list[tuple[tuple[str, ...], Any]] = field(default_factory=list)
    split: dict[str, Array] = field(default_factory=dict)
    sums: list[_Sums] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the whole state in the files, all processes together."""
        written = [leaf.written for leaf in self.leaves.values()]
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in written)

    def to_host(self) -> dict[str, np.ndarray]:
        """The numbers of `whole`; each copy on the devices is freed as soon as it is here. Waits."""
        found: dict[str, np.ndarray] = {}
        while self.whole:
            names, stack = self.whole.pop(0)
            rows = np.asarray(stack)
            found.update({name: rows[row, ...] for row, name in enumerate(names)})  # `...`: a scalar stays an array
        return {name: found[name] for name in self.leaves if name in found}

    def own_sums(self) -> dict[str, Sums]:
        """What this process adds to the checksum of each leaf. Waits."""
        found: dict[str, Sums] = {}
        for group in self.sums:
            found.update(group.read())
        return found


@dataclass(frozen=True)
class _Sums:
    """Checksums that are being computed: of whole leaves ``[leaves, 2]``, or by device of a mesh ``[K, leaves, 2]``."""

    names: tuple[str, ...]
    found: Any
    mesh: Mesh | None = None
    shardings: tuple[NamedSharding, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()

    def read(self) -> dict[str, Sums]:
        if self.mesh is None:
            return {
                name: (one, two) for name, (one, two) in zip(self.names, np.asarray(self.found).tolist(), strict=True)
            }
        devices = by_device(self.found, names=self.names, mesh=self.mesh)
        parts = zip(self.names, self.shardings, self.shapes, strict=True)
        return {name: owned(devices[name], sharding=sharding, shape=shape) for name, sharding, shape in parts}


def take(state: Any) -> Snapshot:
    """Dispatch the copy of a state without a device axis. The state may be donated to the next step right after.

    Where the devices have no room for a copy, this waits for the transfer to the host instead.

    Raises: StateError: a leaf was donated already. CheckpointError: two leaves of one name.
    """
    named = unique_leaves(state)
    _check_unused(named)
    first = jax.process_index() == 0
    whole = {name: leaf for name, leaf in named.items() if _is_whole(leaf)}
    split = {name: leaf for name, leaf in named.items() if name not in whole}
    snapshot = Snapshot({name: describe(leaf) for name, leaf in named.items()})
    copy = jax.process_count() > 1 or has_room(named.values())
    if first:
        _take_whole(snapshot, whole, copy=copy)
    for mesh, members in _by_mesh(split).items():
        _take_split(snapshot, members, mesh=mesh, copy=copy)
    return snapshot


def unique_leaves(state: Any) -> dict[str, Any]:
    """Every leaf by its name. Raises: CheckpointError: two have one name."""
    named: dict[str, Any] = {}
    for name, leaf in named_leaves(state):
        if name in named:
            raise CheckpointError(
                what=f"two leaves of the state are called {name!r}",
                why="a checkpoint stores leaves by name, and one would overwrite the other",
                fix="rename a key of the parameters: one with a dot in it reads like a nested one",
            )
        named[name] = leaf
    return named


def describe(leaf: Any) -> Leaf:
    """Shape and dtype of an array, a shape or a number."""
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return Leaf(tuple(np.shape(leaf)), dtype_name(dtype))


def has_room(leaves: Any) -> bool:
    """Whether every device of this process has memory for a second copy of what it holds."""
    needed: dict[Any, int] = {}
    for leaf in leaves:
        if isinstance(leaf, Array) and not is_key(leaf.dtype):
            limited = [device for device in leaf.sharding.addressable_devices if device.platform != "cpu"]
            size = math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize if limited else 0
            for device in limited:
                needed[device] = needed.get(device, 0) + size
    return all(_free_bytes(device) >= _ROOM * size for device, size in needed.items())


def _free_bytes(device: jax.Device) -> float:
    """What a device has never needed so far: memory of a step that is free now is needed again by the next one."""
    memory = device.memory_stats() or {}
    if "bytes_limit" not in memory:
        return math.inf
    return memory["bytes_limit"] - memory.get("peak_bytes_in_use", memory.get("bytes_in_use", 0))


def _is_whole(leaf: Any) -> bool:
    """Whether process 0 has all of it on one device, or in its own memory."""
    if not isinstance(leaf, Array):
        return True
    return leaf.is_fully_replicated or (leaf.is_fully_addressable and not isinstance(leaf.sharding, NamedSharding))


def _by_mesh(leaves: Mapping[str, Array]) -> dict[Mesh, dict[str, Array]]:
    groups: dict[Mesh, dict[str, Array]] = {}
    for name, leaf in leaves.items():
        if not isinstance(leaf.sharding, NamedSharding):
            raise CheckpointError(
                what=f"leaf {name!r} lies on several processes as a {type(leaf.sharding).__name__}",
                why="which part of it a device holds must be said by a mesh",
                fix="place it with a jax.sharding.NamedSharding",
            )
        groups.setdefault(leaf.sharding.mesh, {})[name] = leaf  # pyright: ignore[reportArgumentType]: a concrete array has a concrete mesh
    return groups


def _take_whole(snapshot: Snapshot, leaves: Mapping[str, Any], *, copy: bool) -> None:
    """Copies of one device suffice: replicas are equal, and the audits see to that."""
    on_device: dict[Any, dict[str, Array]] = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, Array) and leaf.is_fully_replicated:
            own = leaf.addressable_data(0)
            on_device.setdefault(own.device, {})[name] = own
        else:
            data = np.asarray(to_written(leaf)) if isinstance(leaf, Array) else host_to_written(np.array(leaf))
            snapshot.whole.append(((name,), data[None]))
            snapshot.sums.append(_Sums((name,), np.array([host_sums(data)], np.uint32)))
    for members in on_device.values():
        names, groups = _grouped(members)
        stacks, sums = _whole_program(groups, copy=copy)
        snapshot.sums.append(_Sums(tuple(name for group in names for name in group), sums))
        snapshot.whole += zip(names, stacks, strict=True) if copy else _transferred(members)


def _grouped(leaves: Mapping[str, Any]) -> tuple[list[tuple[str, ...]], tuple[tuple[Any, ...], ...]]:
    names = list(leaves)
    alike = batches([leaves[name] for name in names], tags=[None] * len(names))
    groups = [tuple(names[index] for index in batch) for batch in alike]
    return groups, tuple(tuple(leaves[name] for name in group) for group in groups)


def _take_split(snapshot: Snapshot, leaves: Mapping[str, Array], *, mesh: Mesh, copy: bool) -> None:
    arrays = tuple(leaves.values())
    shardings: tuple[Any, ...] = tuple(leaf.sharding for leaf in arrays)
    with jax.set_mesh(mesh):  # another one may be set around the call
        copies, sums = _split_program(arrays, mesh=mesh, specs=tuple(item.spec for item in shardings), copy=copy)
    shapes = tuple(leaf.shape for leaf in arrays)
    snapshot.sums.append(_Sums(tuple(leaves), sums, mesh, shardings, shapes))
    if not copy:
        snapshot.whole += _transferred(leaves)
        return
    for name, leaf, made in zip(leaves, arrays, copies, strict=True):
        if leaf.is_fully_addressable:
            snapshot.whole.append(((name,), _Assembled(made)))
        else:
            snapshot.split[name] = made


@dataclass(frozen=True)
class _Assembled:
    """A split array that becomes a stack of one when it is fetched."""

    array: Array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.array)[None]


def _transferred(leaves: Mapping[str, Array]) -> Iterable[tuple[tuple[str, ...], np.ndarray]]:
    """Copies in the memory of the host, waited for. A plain `np.asarray` may be the memory of the device itself."""
    return [((name,), np.array(to_written(leaf), copy=True)[None]) for name, leaf in leaves.items()]


@functools.partial(jax.jit, static_argnames="copy")
def _whole_program(groups: tuple[tuple[Array, ...], ...], *, copy: bool) -> tuple[tuple[Array, ...], Array]:
    """A stack of each group, a copy even of one leaf, and the sums ``[leaves, 2]`` in the order of the groups."""
    stacks = [jnp.stack([to_written(leaf) for leaf in group]) for group in groups]
    sums = [stack_sums(stack, starts=(0,) * (stack.ndim - 1), shape=stack.shape[1:]) for stack in stacks]
    return tuple(stacks) if copy else (), jnp.concatenate(sums)


@functools.partial(jax.jit, static_argnames=("mesh", "specs", "copy"))
def _split_program(
    leaves: tuple[Array, ...], *, mesh: Mesh, specs: tuple[PartitionSpec, ...], copy: bool
) -> tuple[tuple[Array, ...], Array]:
    """Copies as they are split, and the sums ``[K, leaves, 2]``."""

    def local(*own: Array) -> Any:
        # jnp.copy: jit hands an argument that is returned as it came through, memory and all.
        copies = tuple(jnp.copy(data) for data in own) if copy else ()
        return copies, local_sums(own, mesh=mesh, specs=specs)

    out_specs = (specs if copy else (), PartitionSpec(mesh.axis_names))
    return on_mesh(local, mesh=mesh, specs=specs, out_specs=out_specs)(*(to_written(leaf) for leaf in leaves))


def _check_unused(named: Mapping[str, Any]) -> None:
    for name, leaf in named.items():
        if isinstance(leaf, Array) and leaf.is_deleted():
            raise StateError(
                what=f"state leaf {name!r} was given to a step before, which reused its memory",
                why="there is nothing left of it to save",
                fix="save the state that the step returned",
            )


def compile_programs(state: Any) -> Callable[[], None]:
    """A function that compiles what `take` will run for such a state. It holds shapes only: any thread may call it."""
    named = {name: leaf for name, leaf in unique_leaves(state).items() if isinstance(leaf, Array)}
    copy = jax.process_count() > 1 or has_room(named.values())
    on_device: dict[Any, dict[str, Any]] = {}
    split: dict[str, Array] = {}
    for name, leaf in named.items():
        if leaf.is_fully_replicated:
            own = leaf.addressable_data(0)
            on_device.setdefault(own.device, {})[name] = _shape(own)
        elif isinstance(leaf.sharding, NamedSharding):
            split[name] = leaf
    meshes = [(mesh, {name: _shape(leaf) for name, leaf in group.items()}) for mesh, group in _by_mesh(split).items()]

    def compile_all() -> None:
        for members in on_device.values() if jax.process_index() == 0 else ():
            _whole_program.lower(_grouped(members)[1], copy=copy).compile()
        for mesh, members in meshes:
            specs = tuple(leaf.sharding.spec for leaf in members.values())
            with jax.set_mesh(mesh):
                _split_program.lower(tuple(members.values()), mesh=mesh, specs=specs, copy=copy).compile()

    return compile_all


def _shape(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
