"""The checksum of a leaf: two words that do not depend on how many devices hold it, or on which part each holds.

Owns: the sum over one part of a leaf on a device or on the host, the programs that sum all leaves where they lie, what
the parts add up to.
Not here: the form in which a leaf is written, of which these are the sums (`checkpoint.bits`); comparison of replicas
during a run (`check.audit`).
Invariant: a change of one word anywhere changes both sums; sums of disjoint parts add, modulo 2**32, to that of the
whole, because a word is mixed with its place in the whole leaf.

Shapes: ``[K, leaves, 2]`` sums by device and leaf.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from paceline.checkpoint.bits import to_written

Sums = tuple[int, int]

_WORDS_AT_ONCE = 1 << 20
_BATCHED_BYTES = 1 << 20


def host_sums(data: np.ndarray) -> Sums:
    """The sums of a whole leaf in its written form, on the host."""
    words = _host_words(data)
    first = second = 0
    with np.errstate(over="ignore"):
        for start in range(0, words.size, _WORDS_AT_ONCE):
            word = words[start : start + _WORDS_AT_ONCE].astype(np.uint32)
            place = np.arange(start, start + word.size, dtype=np.uint64).astype(np.uint32)
            weighted, mixed = _mix(word, place, np.uint32)
            first += int(weighted.sum(dtype=np.uint64))
            second += int(mixed.sum(dtype=np.uint64))
    return first % 2**32, second % 2**32


def _host_words(data: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(data).reshape(-1)
    width = min(flat.dtype.itemsize, 4)
    return flat.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[width])


def part_sums(data: Array, *, starts: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """``[2]`` sums of a part of a leaf in its written form. Traceable.

    Args:
      data: the part.
      starts: for each dim, where the part begins in the whole.
      shape: of the whole.
    """
    word = _words(data)
    extra = word.shape[data.ndim :]
    dims = _merged([*zip(data.shape, starts, shape, strict=True), *((size, 0, size) for size in extra)])
    word = word.reshape([local for local, _, _ in dims]).astype(jnp.uint32)
    place = jnp.zeros(word.shape, jnp.uint32)
    for dim, (_, start, _) in enumerate(dims):
        stride = math.prod(whole for _, _, whole in dims[dim + 1 :]) % 2**32
        steps = lax.broadcasted_iota(jnp.uint32, word.shape, dim) + jnp.asarray(start).astype(jnp.uint32)
        place = place + steps * jnp.uint32(stride)
    weighted, mixed = _mix(word, place, jnp.uint32)
    zero = jnp.uint32(0)
    # One reduction of two operands: as two sums XLA's CPU compiler reads the leaf twice.
    return jnp.stack(lax.reduce((weighted, mixed), (zero, zero), _add, tuple(range(word.ndim))))


def _add(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    return a[0] + b[0], a[1] + b[1]


def _mix(word: Any, place: Any, u32: Any) -> tuple[Any, Any]:
    """Two terms of a word at its place: one linear with an odd weight, one that is linear in nothing."""
    weighted = word * (place * u32(0x9E3779B1) | u32(1))
    mixed = (word ^ (place * u32(0x85EBCA77))) * u32(0xC2B2AE3D)
    mixed = (mixed ^ (mixed >> u32(15))) * u32(0x27D4EB2F)
    return weighted, mixed ^ (mixed >> u32(13))


def _merged(dims: Sequence[tuple[int, Any, int]]) -> list[tuple[int, Any, int]]:
    """``(local, start, whole)`` of each dim, with whole dims joined to the one before: long loops, simple places."""
    merged: list[tuple[int, Any, int]] = [(1, 0, 1)]
    for local, start, whole in dims:
        if local == whole:
            before_local, before_start, before_whole = merged[-1]
            # A start that is traced is uint32, which a size past its range would not go with.
            factor = local if isinstance(before_start, int) else jnp.uint32(local % 2**32)
            merged[-1] = (before_local * local, before_start * factor, before_whole * whole)
        else:
            merged.append((local, start, whole))
    return merged


def _words(data: Array) -> Array:
    """Unsigned words of at most 4 bytes; 8-byte and complex types get a trailing dim of words."""
    if data.dtype == jnp.bool_:
        return data.astype(jnp.uint8)
    if jnp.issubdtype(data.dtype, jnp.complexfloating):
        parts = jnp.stack([_words(lax.real(data)), _words(lax.imag(data))], axis=data.ndim)
        return parts.reshape(*data.shape, -1)
    width = data.dtype.itemsize
    return lax.bitcast_convert_type(data, jnp.uint32 if width >= 4 else f"uint{8 * width}")


def batches(leaves: Sequence[Any], *, tags: Sequence[Any]) -> list[list[int]]:
    """Indices of small leaves that are alike, together, and of each large one alone.

    A program is compiled for each batch, not for each leaf: hundreds of leaves of a few shapes compile much faster.
    """
    found: dict[Any, list[int]] = {}
    for index, (leaf, tag) in enumerate(zip(leaves, tags, strict=True)):
        alike = (leaf.shape, leaf.dtype, tag)
        size = math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 8)
        found.setdefault(alike if size <= _BATCHED_BYTES else index, []).append(index)
    return list(found.values())


def stack_sums(stack: Array, *, starts: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """``[n, 2]`` sums of n parts of leaves of one shape, in their written form. Traceable."""
    return jax.vmap(lambda data: part_sums(data, starts=starts, shape=shape))(stack)


def local_sums(leaves: Sequence[Array], *, mesh: Mesh, specs: Sequence[PartitionSpec]) -> Array:
    """``[1, leaves, 2]`` sums of what this device holds of leaves in their written form. Inside `on_mesh`.

    The shapes are those of the parts.
    """
    order: list[int] = []
    sums: list[Array] = []
    for batch in batches(leaves, tags=specs):
        first, spec = leaves[batch[0]], specs[batch[0]]
        stack = jnp.stack([leaves[index] for index in batch])
        sums.append(stack_sums(stack, starts=_starts(first.shape, spec, mesh), shape=_whole(first.shape, spec, mesh)))
        order += batch
    return jnp.concatenate(sums)[np.argsort(order)][None]


def on_mesh(function: Any, *, mesh: Mesh, specs: tuple[PartitionSpec, ...], out_specs: Any) -> Any:
    """`function` of the parts that each device of the mesh holds. It may not talk to other devices: no device needs
    another one, so that a process may ask for it whenever it likes."""
    # The replication check is off: replicas are summed one by one, and it is the reader who compares them.
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False)


def _starts(shape: tuple[int, ...], spec: PartitionSpec, mesh: Mesh) -> list[Any]:
    """For each dim of a part, where it begins in the whole leaf; inside shard_map."""
    axes = [*spec, *[None] * (len(shape) - len(spec))]
    starts: list[Any] = []
    for size, entry in zip(shape, axes, strict=False):
        names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        index: Any = jnp.uint32(0) if names else 0
        for name in names:
            index = index * jnp.uint32(mesh.shape[name]) + lax.axis_index(name).astype(jnp.uint32)
        starts.append(index * size)
    return starts


def _whole(shape: tuple[int, ...], spec: PartitionSpec, mesh: Mesh) -> tuple[int, ...]:
    """The shape of a leaf of which a device of the mesh holds a part of this shape."""
    axes = [*spec, *[None] * (len(shape) - len(spec))]
    names = [() if entry is None else entry if isinstance(entry, tuple) else (entry,) for entry in axes]
    return tuple(
        size * math.prod(mesh.shape[name] for name in split) for size, split in zip(shape, names, strict=False)
    )


@functools.partial(jax.jit, static_argnames=("mesh", "specs"))
def _mesh_program(leaves: tuple[Array, ...], *, mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Array:
    """``[K, leaves, 2]`` sums of what each device of the mesh holds, in the order of ``mesh.devices.flat``."""

    def local(*own: Array) -> Array:
        return local_sums(own, mesh=mesh, specs=specs)

    mapped = on_mesh(local, mesh=mesh, specs=specs, out_specs=PartitionSpec(mesh.axis_names))
    return mapped(*(to_written(leaf) for leaf in leaves))


@functools.partial(jax.jit, static_argnames="shape")
def _part_program(data: Array, starts: Array, *, shape: tuple[int, ...]) -> Array:
    return part_sums(data, starts=[starts[dim] for dim in range(len(shape))], shape=shape)


def compile_sums(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Compile what `sums_by_device` will run for arrays of these shapes and shardings; any thread may do it."""
    for mesh, members in _by_mesh(shapes)[0].items():
        specs = tuple(leaf.sharding.spec for leaf in members.values())
        with jax.set_mesh(mesh):
            _mesh_program.lower(tuple(members.values()), mesh=mesh, specs=specs).compile()


def _by_mesh(leaves: Mapping[str, Any]) -> tuple[dict[Mesh, dict[str, Any]], dict[str, Any]]:
    """Leaves grouped by mesh, and those without one."""
    meshes: dict[Mesh, dict[str, Any]] = {}
    others: dict[str, Any] = {}
    for name, leaf in leaves.items():
        named = isinstance(leaf.sharding, NamedSharding)
        (meshes.setdefault(leaf.sharding.mesh, {}) if named else others)[name] = leaf
    return meshes, others


def sums_by_device(leaves: Mapping[str, Array]) -> dict[str, dict[Any, Sums]]:
    """The sums of what each device of this process holds of each leaf. Waits for the devices."""
    meshes, others = _by_mesh(leaves)
    found = {name: _sums_of_shards(leaf) for name, leaf in others.items()}
    for mesh, members in meshes.items():
        specs = tuple(leaf.sharding.spec for leaf in members.values())
        with jax.set_mesh(mesh):  # another one may be set around the call
            sums = _mesh_program(tuple(members.values()), mesh=mesh, specs=specs)
        found.update(by_device(sums, names=list(members), mesh=mesh))
    return found


def by_device(sums: Array, *, names: Sequence[str], mesh: Mesh) -> dict[str, dict[Any, Sums]]:
    """Sums ``[K, leaves, 2]`` of the devices of a mesh, by leaf and device of this process. Waits for the devices."""
    devices = list(mesh.devices.flat)
    found: dict[str, dict[Any, Sums]] = {name: {} for name in names}
    for shard in sums.addressable_shards:
        rows = np.asarray(shard.data)
        device = devices[shard.index[0].start or 0]
        for name, (first, second) in zip(names, rows[0].tolist(), strict=True):
            found[name][device] = (first, second)
    return found


def _sums_of_shards(leaf: Array) -> dict[Any, Sums]:
    """Where no mesh says how a leaf is split: one program a shard."""
    found = {}
    for shard in leaf.addressable_shards:
        data = jax.jit(to_written)(shard.data)
        whole = (*leaf.shape, *data.shape[leaf.ndim :])
        starts = np.array([part.start or 0 for part in shard.index] + [0] * (data.ndim - leaf.ndim), np.uint32)
        first, second = np.asarray(_part_program(data, starts, shape=whole)).tolist()
        found[shard.device] = (first, second)
    return found


def owned(found: Mapping[Any, Sums], *, sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> Sums:
    """What this process adds to the sums of a whole leaf: of replicas of one part, that of the lowest device counts."""
    lowest: dict[Any, Any] = {}
    indices = sharding.devices_indices_map(shape)
    for device, index in indices.items():
        key = _hashable(index)
        lowest[key] = min(lowest.get(key, device.id), device.id)
    return total(sums for device, sums in found.items() if lowest[_hashable(indices[device])] == device.id)


def odd_replicas(found: Mapping[Any, Sums], *, sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> bool:
    """Whether two devices that should hold the same part do not."""
    indices = sharding.devices_indices_map(shape)
    parts: dict[Any, Sums] = {}
    return any(parts.setdefault(_hashable(indices[device]), sums) != sums for device, sums in found.items())


def total(parts: Any) -> Sums:
    """Sums of disjoint parts, added."""
    first = second = 0
    for one, two in parts:
        first, second = first + one, second + two
    return first % 2**32, second % 2**32


def _hashable(index: tuple[slice, ...] | None) -> Any:
    return tuple((part.start, part.stop) for part in index or ())
