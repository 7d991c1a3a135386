"""Which leaves of a state are split over the devices, and along which dim.

Owns: the rule, the tree of shardings of a state, the gather of split parameters under jit, the summary for reports.
Not here: the collectives of `per_device` (`engine.reduce`), the update over split leaves (`engine.update`).
Invariant: a leaf's layout follows from its field, its shape and its dtype alone, so that any optimizer state is served
and a state of shapes (`jax.eval_shape`) is enough.

A floating-point leaf is split along its largest dim that K divides, the first of equals. A leaf without such a dim (a
scalar, an odd size) stays whole on every device, and so does every leaf of another type. Nothing is padded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from paceline.base.units import format_bytes, format_count
from paceline.engine.parallel import Parallel
from paceline.engine.precision import is_float
from paceline.tasks.tree import named_leaves
from paceline.topology.mesh import DATA_AXIS, replicated, split_rows

_SPLIT_FIELDS = {"replicated": (), "zero1": ("opt_state", "ema"), "fsdp": ("params", "opt_state", "ema")}
_NAMED_AT_MOST = 3
_WORDS = {"params": "the parameters", "opt_state": "the optimizer state", "ema": "the moving average"}


def is_placed(parallel: Parallel, mesh: Mesh) -> bool:
    """Whether the step works on split leaves; one device has nothing to split over."""
    return parallel.placement != "replicated" and mesh.size > 1


def split_dim(leaf: Any, *, num_devices: int) -> int | None:
    """The dim that a leaf is split along, or None if it stays whole."""
    shape = np.shape(leaf)
    dims = [dim for dim, size in enumerate(shape) if size and size % num_devices == 0]
    if num_devices == 1 or not dims or not is_float(leaf):
        return None
    return max(dims, key=lambda dim: shape[dim])


def split_shardings(tree: Any, mesh: Mesh) -> Any:
    """Shardings of a tree whose leaves are split wherever the rule allows; only shapes and dtypes are read."""

    def sharding(leaf: Any) -> NamedSharding:
        dim = split_dim(leaf, num_devices=mesh.size)
        return replicated(mesh) if dim is None else NamedSharding(mesh, PartitionSpec(*[None] * dim, DATA_AXIS))

    return jax.tree.map(sharding, tree)


def param_shardings(params: Any, *, parallel: Parallel, mesh: Mesh) -> Any:
    """Shardings of parameters without a device axis: split under `fsdp`, else whole."""
    if "params" in _SPLIT_FIELDS[parallel.placement]:
        return split_shardings(params, mesh)
    return jax.tree.map(lambda _: replicated(mesh), params)


def state_shardings(state: Any, *, parallel: Parallel, mesh: Mesh) -> Any:
    """The `TrainState` of shardings of a state as its scheme keeps it; arrays or shapes serve alike."""
    if parallel.scheme == "pmap":
        return jax.tree.map(lambda _: split_rows(mesh), state)
    whole = jax.tree.map(lambda _: replicated(mesh), state)
    fields = _SPLIT_FIELDS[parallel.placement]
    return dataclasses.replace(whole, **{name: split_shardings(getattr(state, name), mesh) for name in fields})


def sharded_dim(sharding: NamedSharding) -> int | None:
    """The dim that a sharding of `split_shardings` splits, or None."""
    return next((dim for dim, axis in enumerate(sharding.spec) if axis == DATA_AXIS), None)


def gather_at_use(*, parallel: Parallel, mesh: Mesh) -> Callable[[Any], Any]:
    """A function that makes split parameters whole where the loss uses them, under jit; identity if they are whole.

    Without it the compiler may move activations instead. The transpose of the constraint would ask for a whole gradient
    on every device, so it is left out: where the gradient goes is the update's affair.
    """
    if parallel.placement != "fsdp" or not is_placed(parallel, mesh):
        return lambda tree: tree

    @jax.custom_vjp
    def gather(tree: Any) -> Any:
        # The barrier keeps casts to the compute type before the gather, and the gather inside a loop of microbatches.
        return lax.with_sharding_constraint(jax.tree.map(lax.optimization_barrier, tree), replicated(mesh))

    gather.defvjp(lambda tree: (gather(tree), None), lambda _, cotangent: (cotangent,))
    return gather


@dataclass(frozen=True)
class FieldPlacement:
    """How one field of a state is placed.

    Args:
      field: ``params``, ``opt_state`` or ``ema``.
      leaves: number of its leaves.
      replicated: names of those that stay whole on every device.
      replicated_bytes: their size.
      device_bytes: what one device holds of the field.
    """

    field: str
    leaves: int
    replicated: tuple[str, ...]
    replicated_bytes: int
    device_bytes: int


def summarize_placement(state: Any, *, parallel: Parallel, mesh: Mesh) -> list[FieldPlacement]:
    """Each field that the placement splits, with the leaves that it cannot split; empty for `replicated`."""
    return [
        _field_placement(name, getattr(state, name), mesh.size)
        for name in _SPLIT_FIELDS[parallel.placement]
        if jax.tree.leaves(getattr(state, name))
    ]


def _field_placement(field: str, tree: Any, num_devices: int) -> FieldPlacement:
    sizes = {name: math.prod(np.shape(leaf)) * jnp.result_type(leaf).itemsize for name, leaf in named_leaves(tree)}
    whole = tuple(name for name, leaf in named_leaves(tree) if split_dim(leaf, num_devices=num_devices) is None)
    whole_bytes = sum(sizes[name] for name in whole)
    split_bytes = sum(sizes.values()) - whole_bytes
    return FieldPlacement(field, len(sizes), whole, whole_bytes, whole_bytes + split_bytes // num_devices)


def placement_text(fields: list[FieldPlacement], *, placement: str, num_devices: int) -> str:
    """``zero1: 12 of 14 leaves of the optimizer state split over 4 devices, 2 replicated (10 B): 0.count, 0.mu.b``."""
    if not fields:
        return placement
    counts = [
        f"{entry.leaves - len(entry.replicated)} of {entry.leaves} leaves of {_WORDS[entry.field]}" for entry in fields
    ]
    whole, size = [name for entry in fields for name in entry.replicated], sum(f.replicated_bytes for f in fields)
    text = f"{placement}: {', '.join(counts)} split over {format_count(num_devices, 'device')}"
    if not whole:
        return text
    names = ", ".join(whole[:_NAMED_AT_MOST]) + (", ..." if len(whole) > _NAMED_AT_MOST else "")
    return f"{text}, {len(whole)} replicated ({format_bytes(size)}): {names}"
