"""`per_device`: shard_map; each device runs the step on its own rows and the gradients are reduced once an update."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax import Array
from jax.sharding import PartitionSpec

from paceline.engine.metrics import StepMetrics
from paceline.engine.microbatch import Sums
from paceline.engine.placement import is_placed, split_shardings, state_shardings
from paceline.engine.reduce import gather_leaves, scatter_gradients
from paceline.engine.schemes.local import local_step, reduced_sums
from paceline.engine.state import TrainState
from paceline.engine.update import StepSpec, placed_update
from paceline.topology.mesh import DATA_AXIS, replicated, split_rows

WHOLE, ROWS = PartitionSpec(), PartitionSpec(DATA_AXIS)


def build(spec: StepSpec, state: Any) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """The jitted step ``(state, batch [B@data, ...], valid [B@data]) -> (state, metrics)``; `state` may be shapes.

    The replication check of shard_map is off: under it a one-device loss with a scan over zeros would not trace.
    Nothing relies on it, since every value that leaves `local_step` has been reduced.
    """
    if is_placed(spec.parallel, spec.mesh):
        return _build_placed(spec, state)
    mapped = jax.shard_map(
        local_step(spec),
        mesh=spec.mesh,
        in_specs=(WHOLE, ROWS, ROWS),
        out_specs=WHOLE,
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=(0,) if spec.parallel.donate else ())


def _build_placed(spec: StepSpec, state: Any) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """Gradients by shard_map, reduce-scattered once an update; the update sees global arrays: any optimizer is exact.

    Under `fsdp` the parameters are gathered once an update, before the first microbatch.
    """
    places = state_shardings(state, parallel=spec.parallel, mesh=spec.mesh)
    split = split_shardings(state.params, spec.mesh)
    scatter = functools.partial(scatter_gradients, shardings=split, axis=DATA_AXIS, dtype=spec.parallel.reduce_dtype)

    def sums_of(state: TrainState, batch: Any, valid: Array) -> Sums:
        whole = replace(state, params=gather_leaves(state.params, places.params, axis=DATA_AXIS))
        return reduced_sums(spec, state=whole, batch=batch, valid=valid, reduce=scatter)

    mapped = jax.shard_map(
        sums_of,
        mesh=spec.mesh,
        in_specs=(_specs(places), ROWS, ROWS),
        out_specs=Sums(_specs(split), totals=WHOLE, model_state=WHOLE, means=WHOLE, nominal=WHOLE, noise=WHOLE),  # pyright: ignore[reportArgumentType]: specs in place of arrays
        check_vma=False,
    )

    def step(state: TrainState, batch: Any, valid: Array) -> tuple[TrainState, StepMetrics]:
        return placed_update(spec, state=state, sums=mapped(state, batch, valid))

    rows = split_rows(spec.mesh)
    return jax.jit(
        step,
        in_shardings=(places, rows, rows),
        out_shardings=(places, replicated(spec.mesh)),
        donate_argnums=(0,) if spec.parallel.donate else (),
    )


def _specs(shardings: Any) -> Any:
    return jax.tree.map(lambda sharding: sharding.spec, shardings)
