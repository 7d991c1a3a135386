"""`global_view`: jit over arrays that are split over the mesh; the program sees the whole batch.

The compiler places the collectives. BatchNorm, dropout and metrics are those of one device by construction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import Array, lax

from paceline.engine.metrics import StepMetrics
from paceline.engine.microbatch import sum_rows
from paceline.engine.placement import gather_at_use, state_shardings
from paceline.engine.rng import positional_key, step_key
from paceline.engine.state import TrainState
from paceline.engine.update import StepSpec, placed_update
from paceline.topology.mesh import replicated, split_microbatch_rows, split_rows


def build(spec: StepSpec, state: Any) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """The jitted step ``(state, batch [B@data, ...], valid [B@data]) -> (state, metrics)``; `state` may be shapes."""
    whole, rows = replicated(spec.mesh), split_rows(spec.mesh)
    places = state_shardings(state, parallel=spec.parallel, mesh=spec.mesh)
    return jax.jit(
        functools.partial(_step, spec),
        in_shardings=(places, rows, rows),
        out_shardings=(places, whole),
        donate_argnums=(0,) if spec.parallel.donate else (),
    )


def _step(spec: StepSpec, state: TrainState, batch: Any, valid: Array) -> tuple[TrainState, StepMetrics]:
    count = spec.parallel.accumulation
    key = step_key(state.rng, state.step)

    def key_of(index: Array, rows: int) -> Array:
        return key if count == 1 else positional_key(key, rows=rows, start=index, stride=count)

    sums = sum_rows(
        spec.task, spec.parallel, state=state, batch=batch, valid=valid, key_of=key_of, parts=1,
        place=lambda tree: lax.with_sharding_constraint(tree, split_microbatch_rows(spec.mesh)),
        gather=gather_at_use(parallel=spec.parallel, mesh=spec.mesh),
    )  # fmt: skip
    return placed_update(spec, state=state, sums=sums)
