"""The step as one device sees it, for the schemes that run once a device.

Invariant: gradients are accumulated over all microbatches without communication and reduced once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from paceline.engine.metrics import StepMetrics
from paceline.engine.microbatch import KeyOf, Sums, sum_rows
from paceline.engine.noise import LocalSquares, local_squares
from paceline.engine.reduce import sum_gradients, sum_packed
from paceline.engine.rng import positional_key, step_key
from paceline.engine.state import TrainState
from paceline.engine.statistics import check_statistics, merge_model_state
from paceline.engine.update import StepSpec, apply_update
from paceline.topology.mesh import DATA_AXIS

LocalStep = Callable[[TrainState, Any, Array], tuple[TrainState, StepMetrics]]


def local_step(spec: StepSpec) -> LocalStep:
    """The update from one device's rows: ``(state, batch [B/K, ...], valid [B/K]) -> (state, metrics)``.

    To be called with axis ``data`` bound. The state has no device axis and is the same on every device, before and
    after.
    """
    return functools.partial(_step, spec)


def _step(spec: StepSpec, state: TrainState, batch: Any, valid: Array) -> tuple[TrainState, StepMetrics]:
    parallel = spec.parallel
    reduce = functools.partial(
        sum_gradients, axis=DATA_AXIS, dtype=parallel.reduce_dtype, bucket_bytes=parallel.bucket_bytes
    )
    sums = reduced_sums(spec, state=state, batch=batch, valid=valid, reduce=reduce)
    return apply_update(spec, state=state, sums=sums)


def reduced_sums(spec: StepSpec, *, state: TrainState, batch: Any, valid: Array, reduce: Callable[[Any], Any]) -> Sums:
    """Sums over all rows of the global batch, from one device's rows; call with axis ``data`` bound.

    Args:
      state: with whole parameters; optimizer state and moving average are not read.
      reduce: sums the tree of gradients over the axis.
    """
    num_devices = spec.mesh.size
    statistics = () if spec.parallel.synced_batch_norm else spec.task.statistics
    if num_devices > 1 and not spec.parallel.synced_batch_norm:
        check_statistics(statistics, state.model_state)
    sums = sum_rows(
        spec.task, spec.parallel, state=state, batch=batch, valid=valid,
        key_of=_key_of(spec, state, valid.shape[0]), parts=num_devices,
    )  # fmt: skip
    means = sums.means if statistics else []
    model_state = merge_model_state(sums.model_state, means, statistics=statistics, axis=DATA_AXIS)
    gradients = reduce(sums.gradients)
    totals, noise = sum_packed((sums.totals, _noise(spec, sums)), DATA_AXIS)
    return Sums(gradients, totals, model_state, means=[], nominal=sums.nominal, noise=noise)


def _noise(spec: StepSpec, sums: Sums) -> LocalSquares | None:
    """Of this device's rows; one device has nothing to compare itself with."""
    if not spec.parallel.noise_scale or spec.mesh.size == 1:
        return None
    loss = sums.totals["loss"]
    return local_squares(sums.gradients, loss.weight, like=loss.total)


def _key_of(spec: StepSpec, state: TrainState, rows: int) -> KeyOf:
    """Keys of this device's microbatches under the dropout stream asked for; `rows` is B/K."""
    count = spec.parallel.accumulation
    key = step_key(state.rng, state.step)
    device = lax.axis_index(DATA_AXIS)

    def key_of(index: Array, microbatch_rows: int) -> Array:
        if spec.parallel.dropout == "global":
            start = device * rows + index
            return positional_key(key, rows=microbatch_rows, start=start.astype(jnp.uint32), stride=count)
        own = jnp.asarray(index, jnp.uint32)
        if spec.parallel.dropout == "per_device":
            own = own + device.astype(jnp.uint32) * count
        return step_key(key, own)

    return key_of
