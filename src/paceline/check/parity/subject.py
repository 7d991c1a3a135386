"""The engine's own step on K devices, looked at update by update.

Owns: a step of one scheme, placement, K and n for a problem; reading its results off the devices.
Invariant: the program is the one that a run with these options would compile, but for an optimizer that remembers the
gradients it was given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from paceline.check.parity.cases import Case
from paceline.check.parity.problem import Batch, Problem
from paceline.check.parity.trace import Trace, flatten, words
from paceline.check.replication import check_step
from paceline.engine.metrics import StepMetrics
from paceline.engine.parallel import Parallel
from paceline.engine.precision import LossScale
from paceline.engine.state import TrainState, drop_device_axis, new_state, place_state
from paceline.engine.step import StepFunction
from paceline.engine.update import StepSpec
from paceline.tasks.tree import named_leaves
from paceline.topology.mesh import data_mesh, rows_by_device, split_rows

_LOSS_SCALE = 2.0**7
"""A scale at which no healthy float16 update overflows: a left-out update would compare nothing."""


class Recorded(NamedTuple):
    """Optimizer state beside the gradients of the last update."""

    gradients: Any
    inner: Any


class Ran(NamedTuple):
    """What some updates on K devices came to.

    Args:
      trace: the values that device 0 holds.
      drifting: names of state leaves whose replicas differ after the last update.
    """

    trace: Trace
    drifting: tuple[str, ...]


def run_case(problem: Problem, case: Case, *, devices: Sequence[jax.Device]) -> Ran:
    """The updates of `problem` by the engine.

    Raises: ReplicationError: the next state would differ between devices. Whatever else refuses such a step.
    """
    parallel = case_parallel(problem.parallel, case)
    mesh = data_mesh(devices[: case.devices])
    step = StepFunction(StepSpec(problem.task, recording(problem.optimizer), parallel, mesh), check=check_step)
    state = _start(step, problem)
    trace = []
    for batch in problem.batches:
        before = state.empty
        state, metrics = step(state, *_place(step, batch))
        trace.append(_observed(step, state, metrics, empty=words(state.empty).max() > words(before).max()))
    return Ran(trace, drifting_replicas(state, device_axis=parallel.scheme == "pmap"))


def case_parallel(parallel: Parallel, case: Case) -> Parallel:
    """The options of a run, in one scheme, placement and accumulation."""
    own_devices = case.scheme != "global_view"
    return dataclasses.replace(
        parallel,
        scheme=case.scheme,
        placement=case.placement,
        accumulation=case.accumulation,
        reduce_dtype=parallel.reduce_dtype if own_devices else None,
        batch_norm=parallel.batch_norm if own_devices else None,
        bucket_bytes=parallel.bucket_bytes if own_devices and case.placement == "replicated" else None,
        noise_scale=False,  # the norm of a device's gradient depends on K
        dropout="global",
        donate=False,
    )


def recording(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer, with the gradients it was given last in its state."""
    full = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Recorded:
        return Recorded(jax.tree.map(jnp.zeros_like, params), optimizer.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Recorded]:
        changes, inner = full.update(updates, state.inner, params, **extra)
        return changes, Recorded(updates, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def drifting_replicas(tree: Any, *, device_axis: bool) -> tuple[str, ...]:
    """Names of the leaves of which two devices hold different bytes where they should hold the same.

    Args:
      device_axis: leaves have a leading dim of K copies, one a device.
    """
    return tuple(name for name, leaf in named_leaves(tree) if not _replicas_agree(leaf, device_axis))


def _replicas_agree(leaf: jax.Array, device_axis: bool) -> bool:
    copies: dict[str, bytes] = {}
    for shard in leaf.addressable_shards:
        place = "copy" if device_axis else str(shard.index)
        held = words(shard.data).tobytes()
        if copies.setdefault(place, held) != held:
            return False
    return True


def _start(step: StepFunction, problem: Problem) -> TrainState:
    spec = step.spec
    params, model_state = jax.tree.map(jnp.asarray, (problem.params, problem.model_state))
    state = new_state(spec.optimizer, spec.parallel, params=params, model_state=model_state, seed=problem.seed)
    if state.loss_scale is not None:
        scale = LossScale(jnp.asarray(_LOSS_SCALE, jnp.float32), state.loss_scale.good_steps)
        state = dataclasses.replace(state, loss_scale=scale)
    return place_state(state, parallel=spec.parallel, mesh=spec.mesh)


def _place(step: StepFunction, batch: Batch) -> tuple[Any, jax.Array]:
    mesh = step.spec.mesh
    tree = (batch.rows, batch.valid)
    if step.spec.parallel.scheme == "pmap":
        tree = rows_by_device(tree, num_devices=mesh.size)
    return jax.device_put(tree, split_rows(mesh))


def _observed(step: StepFunction, state: TrainState, metrics: StepMetrics, *, empty: Any) -> dict[str, np.ndarray]:
    """The values of one update.

    Args:
      empty: no row had any weight, so the optimizer was not asked and remembers an older gradient than this one, 0.
    """
    spec = step.spec
    one = drop_device_axis(state, parallel=spec.parallel, mesh=spec.mesh)
    values = metrics.fetch()
    return flatten(
        loss=np.asarray(values["loss"]),
        gradient=jax.tree.map(jnp.zeros_like if empty else jnp.asarray, one.opt_state.gradients),
        params=one.params,
        opt_state=one.opt_state.inner,
        model_state=one.model_state,
        ema=one.ema,
        metrics={name: np.asarray(value) for name, value in values.items()},
    )
