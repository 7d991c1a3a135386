"""Replicas that differ, made equal again from a device that the majority agrees with.

Owns: the choice of the device to copy from, and the copy.
Not here: finding out what differs (`check.audit`).
Invariant: afterwards every replica holds the bytes of one healthy device, NaN payloads included; split leaves are left
as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from paceline.base.errors import ReplicaError
from paceline.check.audit import Audit, by_mesh
from paceline.check.fingerprint import from_bits, to_bits
from paceline.check.layout import Layout, layouts
from paceline.tasks.tree import named_leaves


def repair(tree: Any, audit: Audit, *, device_axis: bool | None = None, donate: bool = False) -> Any:
    """The tree with all replicas of every leaf copied from a device in which the audit found nothing odd.

    Every leaf is copied, not only those found to differ: the tree may be some steps ahead of the audit. All processes
    must call it with the same audit, since it is a collective.

    Args:
      tree: the audited tree, or what later steps made of it.
      audit: what `replicas` found.
      device_axis: as for `replicas`.
      donate: reuse the memory of `tree`, which cannot be used afterwards; else both are held for a moment.
    Raises: ReplicaError: no majority, or no device that the majority agrees with in every leaf.
    """
    if not audit.divergences:
        return tree
    named = named_leaves(tree)
    found, _ = layouts(named, device_axis=device_axis)
    leaves = dict(named)
    wrong = _wrong_devices(audit)
    program = _program(donate)
    for mesh, members in by_mesh(found).items():
        sources = np.stack([_sources(layout, wrong) for layout in members.values()])
        with jax.set_mesh(mesh):  # another one may be set around the call
            copied = program(tuple(leaves[name] for name in members), sources, layouts=tuple(members.values()))
        leaves.update(zip(members, copied, strict=True))
    return jax.tree.unflatten(jax.tree.structure(tree), [leaves[name] for name, _ in named])


def _wrong_devices(audit: Audit) -> set[int]:
    for divergence in audit.divergences:
        if not divergence.odd:
            raise ReplicaError(
                what=f"cannot repair: {divergence}",
                why="a repair copies what most replicas agree on, and here that is nothing",
                fix="go back to a state from before the difference",
            )
    return {device for divergence in audit.divergences for device in divergence.devices}


def _sources(layout: Layout, wrong: set[int]) -> np.ndarray:
    """bool ``[K]``: True for the one device of each group of replicas to copy from."""
    devices = list(layout.mesh.devices.flat)
    chosen = np.zeros(len(devices), bool)
    for group in layout.groups:
        healthy = [place for place in group if devices[place].id not in wrong]
        if not healthy:
            ids = ", ".join(str(devices[place].id) for place in group)
            raise ReplicaError(
                what=f"cannot repair: each of the devices {ids} is wrong in some leaf",
                why="a repair copies the whole state of one device that agrees with the majority in every leaf",
                fix="go back to a state from before the difference",
            )
        chosen[healthy[0]] = True
    return chosen


@functools.lru_cache(maxsize=2)
def _program(donate: bool) -> Callable[..., tuple[Array, ...]]:
    return jax.jit(_broadcast, static_argnames="layouts", donate_argnums=(0,) if donate else ())


def _broadcast(leaves: tuple[Array, ...], sources: Any, *, layouts: tuple[Layout, ...]) -> tuple[Array, ...]:
    """Copies from `sources`, bool ``[leaves, K]``, as a sum of words in which all others are 0."""
    mesh = layouts[0].mesh
    specs = tuple(layout.spec for layout in layouts)

    def local(sources: Array, *own: Array) -> tuple[Array, ...]:
        mine = sources[:, lax.axis_index(mesh.axis_names)]
        return tuple(
            _from_source(leaf, mine[number], axes=layout.copy_axes)
            for number, (leaf, layout) in enumerate(zip(own, layouts, strict=True))
        )

    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(PartitionSpec(), *specs), out_specs=specs, check_vma=False
    )  # fmt: skip
    return mapped(sources, *leaves)


def _from_source(leaf: Array, is_source: Array, *, axes: tuple[str, ...]) -> Array:
    bits = to_bits(leaf)
    return from_bits(lax.psum(jnp.where(is_source, bits, jnp.zeros_like(bits)), axes), like=leaf)
