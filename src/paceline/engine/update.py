"""From the sums of all rows to the next state: the part of a step that every device computes alike.

Owns: the division by the true weight, clipping, the finite check, optimizer, moving average, loss scale, counters.
Invariant: identical inputs give identical outputs on every device; an update that is left out changes nothing but the
counters and the loss scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.sharding import Mesh

from paceline.base.errors import TaskError
from paceline.engine.metrics import StepMetrics, pack
from paceline.engine.microbatch import Sums
from paceline.engine.noise import local_gradient_norm
from paceline.engine.parallel import Parallel
from paceline.engine.placement import is_placed, split_shardings
from paceline.engine.precision import next_loss_scale
from paceline.engine.state import TrainState
from paceline.engine.usercode import optimizer_code
from paceline.tasks.task import Task
from paceline.tasks.tree import named_leaves

Schedule = Callable[[Any], Any]


@dataclass(frozen=True)
class StepSpec:
    """All that determines a step program.

    Args:
      task: the user's loss.
      optimizer: any optax optimizer that does not evaluate the loss itself, as `lbfgs` with a line search, `sam` and
        `sophia` do.
      parallel: how the step runs.
      mesh: the data mesh.
      schedule: learning rate by update count, for reports; the optimizer has its own copy.
    """

    task: Task
    optimizer: optax.GradientTransformation
    parallel: Parallel
    mesh: Mesh
    schedule: Schedule | None = None


def check_task(task: Any, optimizer: Any, *, caller: str) -> None:
    """Raise TaskError unless these are a task and an optax optimizer.

    Args:
      caller: what they were passed to, as the user writes it.
    """
    if not isinstance(task, Task):
        raise TaskError(
            what=f"the task is of type {type(task).__name__}",
            why="a step needs to know how to call the loss",
            fix=f"wrap the loss: {caller}(paceline.task(loss), ...)",
        )
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TaskError(
            what=f"the optimizer is of type {type(optimizer).__name__}",
            why="a step needs its init and its update",
            fix="pass an optax optimizer, such as optax.sgd(0.1); of optax.MultiSteps, its gradient_transformation()",
        )


def apply_update(spec: StepSpec, *, state: TrainState, sums: Sums) -> tuple[TrainState, StepMetrics]:
    """The next state and the numbers of the step, from sums over all rows of the global batch."""
    parallel = spec.parallel
    factor = _mean_factor(state, sums)
    gradients, leaf_norms, norm = _mean_gradients(sums, factor)
    loss = sums.totals["loss"].mean()
    finite = jnp.isfinite(norm) & jnp.isfinite(loss)
    applied = finite & _has_weight(sums) & ~_halted(parallel, state)
    if parallel.clip_norm is not None:
        gradients = _clip(gradients, norm, parallel.clip_norm)
    next_state = _next_state(spec, state, sums, gradients=gradients, loss=loss, applied=applied, finite=finite)
    values = {"loss": loss, "gradient_norm": norm, "weight": sums.totals["loss"].weight}
    values["skipped_updates"] = next_state.skipped
    values |= _learning_rate(spec, state, next_state) | _noise(sums, factor)
    if state.loss_scale is not None:
        values["loss_scale"] = state.loss_scale.scale
    values |= {name: total.mean() for name, total in sums.totals.items() if name != "loss"}
    return next_state, pack(values, leaf_norms)


def placed_update(spec: StepSpec, *, state: TrainState, sums: Sums) -> tuple[TrainState, StepMetrics]:
    """`apply_update` over global arrays under jit, each device on its part of every leaf that the placement splits.

    The compiler adds what an optimizer needs of the other parts: for a global norm a sum of scalars, for a factored
    moment a sum of rows. Parameters come out split; the output sharding of the step gathers those that are kept whole.
    """
    if not is_placed(spec.parallel, spec.mesh):
        return apply_update(spec, state=state, sums=sums)
    split = split_shardings(state.params, spec.mesh)
    sums = sums._replace(gradients=lax.with_sharding_constraint(sums.gradients, split))
    state = replace(state, params=lax.with_sharding_constraint(state.params, split))
    next_state, metrics = apply_update(spec, state=state, sums=sums)
    return replace(next_state, params=lax.with_sharding_constraint(next_state.params, split)), metrics


def _has_weight(sums: Sums) -> Array:
    return sums.totals["loss"].weight > 0


def _mean_factor(state: TrainState, sums: Sums) -> Array:
    """What turns sums of gradients into gradients of the mean loss."""
    weight = sums.totals["loss"].weight
    dtype = sums.nominal.dtype
    factor = sums.nominal / jnp.where(weight == 0, jnp.ones((), weight.dtype), weight).astype(dtype)
    return factor if state.loss_scale is None else factor / state.loss_scale.scale


def _noise(sums: Sums, factor: Array) -> dict[str, Array]:
    """What the gradient noise scale is estimated from, if it is measured."""
    if sums.noise is None:
        return {}
    norm = local_gradient_norm(sums.noise, sums.totals["loss"].weight, factor=factor)
    return {"local_gradient_norm": norm, "gradient_devices": sums.noise.devices}


def _mean_gradients(sums: Sums, factor: Array) -> tuple[Any, dict[str, Array], Array]:
    """Gradients of the mean loss, the norm of each leaf, and the global norm (overflows above about 1e19)."""
    # Norms from the sums: of the product, the compiler would make one more copy of all gradients before the update.
    squares = {name: jnp.sum(jnp.square(leaf)) for name, leaf in named_leaves(sums.gradients)}
    leaf_norms = {name: jnp.sqrt(square) * factor.astype(square.dtype) for name, square in squares.items()}
    norm = jnp.sqrt(jnp.sum(jnp.stack(list(squares.values()))))
    gradients = jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), sums.gradients)
    return gradients, leaf_norms, norm * factor.astype(norm.dtype)


def _learning_rate(spec: StepSpec, state: TrainState, next_state: TrainState) -> dict[str, Array]:
    """The rate of this update: of the schedule if there is one, else what `optax.inject_hyperparams` keeps, if any.

    It keeps the rate of the last update that was applied, so it is read after this one.
    """
    if spec.schedule is not None:
        return {"learning_rate": jnp.asarray(spec.schedule(state.step - state.skipped - state.empty))}
    kept = optax.tree_utils.tree_get_all_with_path(next_state.opt_state, "learning_rate")
    return {"learning_rate": jnp.asarray(kept[0][1])} if kept else {}


def _halted(parallel: Parallel, state: TrainState) -> Array:
    """Under `stop` nothing is updated after the first bad step, so the state stays the last good one."""
    if parallel.nonfinite == "skip" or parallel.precision == "float16":
        return jnp.zeros((), jnp.bool_)
    return state.skipped > 0


def _clip(gradients: Any, norm: Array, limit: float) -> Any:
    factor = jnp.minimum(1.0, limit / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    return jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), gradients)


def _next_state(
    spec: StepSpec, state: TrainState, sums: Sums, *, gradients: Any, loss: Array, applied: Array, finite: Array
) -> TrainState:
    optimizer = optax.with_extra_args_support(spec.optimizer)

    def updated() -> tuple[Any, Any, Any, Any]:
        with optimizer_code(spec.optimizer):
            updates, opt_state = optimizer.update(gradients, state.opt_state, state.params, value=loss, grad=gradients)
        params = optax.apply_updates(state.params, updates)
        return params, opt_state, sums.model_state, _moving_average(state.ema, params, spec.parallel.ema_decay)

    old = (state.params, state.opt_state, state.model_state, state.ema)
    platform = spec.mesh.devices.flat[0].platform
    params, opt_state, model_state, ema = _new_or_old(applied, updated, old=old, platform=platform)
    return TrainState(
        step=state.step + 1,
        skipped=state.skipped + (~finite).astype(jnp.int32),
        empty=state.empty + (finite & ~_has_weight(sums)).astype(jnp.int32),
        params=params,
        model_state=model_state,
        opt_state=opt_state,
        rng=state.rng,
        ema=ema,
        loss_scale=None if state.loss_scale is None else next_loss_scale(state.loss_scale, finite),
    )


def _new_or_old(applied: Array, new: Callable[[], Any], *, old: Any, platform: str) -> Any:
    """``new()`` if the update is applied, else `old`.

    On the CPU as a branch: with selects the compiler copies the optimizer state and computes its update once more for
    the parameters (a quarter of a step with adam). A GPU would have to ask the host which branch to take, so that no
    step could be queued behind another; there the selects melt into the update.
    """
    if platform == "cpu":
        return lax.cond(applied, new, lambda: old)
    return jax.tree.map(lambda a, b: jnp.where(applied, a, b), new(), old)


def _moving_average(ema: Any, params: Any, decay: float | None) -> Any:
    if decay is None:
        return None
    return jax.tree.map(lambda average, leaf: decay * average + (1 - decay) * leaf, ema, params)
