"""An Equinox module and its state as nested dicts of arrays, and back.

Owns: the split of a module into parameters (its floating-point arrays), model state (its other arrays and its
`eqx.nn.State`) and structure (the rest); the name of every leaf.
Invariant: a name is the path of the layer, ``bn.mean`` and not the index under which Equinox files it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from paceline.tasks.adapters.common import Path, nested, pick
from paceline.tasks.task import Initial, RunningStatistics

_STATE_NAMES = {
    "batch_state_index": ("mean", "variance"),
    "batch_counter": ("count",),
    "ema_state_index": ("mean", "variance"),
    "ema_first_time_index": ("first_time",),
}


class Model(NamedTuple):
    """A module and its state, abstract or not; None for a module without one, which is called without it."""

    module: Any
    state: eqx.nn.State | None


def stateful_model(made: Any) -> Model | None:
    """The model that a build function made, or None if it made something else."""
    if isinstance(made, eqx.Module):
        module, state = eqx.nn.make_with_state(lambda: made)()
        return Model(module, state if _layers(module, eqx.nn.StateIndex) else None)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], eqx.nn.State):
        return Model(eqx.nn.delete_init_state(made[0]), made[1])
    return None


def split(model: Model, state_paths: Iterable[Path]) -> Initial:
    """Parameters and model state; `state_paths` are those of the state's leaves (see `state_paths`)."""
    arrays = {_parts(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(model.module) if _is_array(leaf)}
    params = {path: leaf for path, leaf in arrays.items() if _is_parameter(leaf)}
    others = {path: leaf for path, leaf in arrays.items() if not _is_parameter(leaf)}
    return Initial(nested(params), nested(others | dict(zip(state_paths, jax.tree.leaves(model.state), strict=True))))


def join(
    like: Model, *, params: Mapping[str, Any], model_state: Mapping[str, Any], state_paths: Iterable[Path]
) -> Model:
    """The model of the structure of `like` with these arrays."""

    def fill(path: Any, leaf: Any) -> Any:
        if not _is_array(leaf):
            return leaf
        return pick(params if _is_parameter(leaf) else model_state, _parts(path))

    values = [pick(model_state, path) for path in state_paths]
    state = jax.tree.unflatten(jax.tree.structure(like.state), values)
    return Model(jax.tree_util.tree_map_with_path(fill, like.module), state)


def state_paths(model: Model) -> list[Path]:
    """A path for every leaf of the state, in order: below the layer that it belongs to."""
    leaves, structure = jax.tree.flatten(model.state)
    if model.state is None:
        return []
    numbered = jax.tree.unflatten(structure, range(len(leaves)))
    paths: list[Path] = [("state", str(number)) for number in range(len(leaves))]
    for path, layer in _layers(model.module, (eqx.nn.BatchNorm, eqx.nn.StateIndex)):
        for index, names in _indices(layer):
            inner = jax.tree_util.tree_leaves_with_path(numbered.get(index))
            for position, (below, number) in enumerate(inner):
                paths[number] = (*path, names[position]) if names else (*path, *_parts(below))
    return paths


def batch_norm_statistics(module: Any) -> list[RunningStatistics]:
    """Running statistics of every BatchNorm that normalises by those of its batch."""
    layers = [(path, layer) for path, layer in _layers(module, eqx.nn.BatchNorm) if layer.mode == "batch"]
    return [
        RunningStatistics(".".join([*path, "mean"]), ".".join([*path, "variance"]), layer.momentum)
        for path, layer in layers
    ]


def _layers(module: Any, kinds: Any) -> list[tuple[Path, Any]]:
    """Every node of these kinds with its path."""
    nodes = jax.tree_util.tree_leaves_with_path(module, is_leaf=lambda node: isinstance(node, kinds))
    return [(_parts(path), node) for path, node in nodes if isinstance(node, kinds)]


def _indices(layer: Any) -> list[tuple[eqx.nn.StateIndex, Sequence[str]]]:
    """The indices of a layer's state, each with the names of its leaves if it is a BatchNorm."""
    if isinstance(layer, eqx.nn.StateIndex):
        return [(layer, ())]
    indices = [(getattr(layer, field), names) for field, names in _STATE_NAMES.items()]
    return [(index, names) for index, names in indices if index is not None]


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _is_parameter(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _parts(path: Sequence[Any]) -> Path:
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)
