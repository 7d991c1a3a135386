"""The work of one program on the rows it sees: microbatches, gradient sums, totals.

Owns: the strided split into n microbatches, the differentiation of the user's loss, the sums over microbatches.
Not here: sums across devices (`engine.reduce`), the update (`engine.update`).
Invariant: the sums are those of all valid rows, whatever n; dividing by the weight is left to after the reduction.

Shapes: b = rows that this program sees (B under `global_view`, B/K otherwise), n = microbatches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from paceline.engine.noise import LocalSquares
from paceline.engine.parallel import Parallel
from paceline.engine.precision import cast_floats
from paceline.engine.state import TrainState
from paceline.engine.statistics import batch_means, same_types
from paceline.tasks.losses import Outcome, Totals, check_loss, nominal_weight, totals
from paceline.tasks.task import Task
from paceline.telemetry.metrics import user_metric


class Sums(NamedTuple):
    """What the rows of one program add up to.

    Args:
      gradients: gradient of ``loss_scale * total loss / nominal weight``, float32, tree of the parameters.
      totals: total and weight of the loss (key ``loss``) and of every metric.
      model_state: the model state after all microbatches.
      means: for each declared statistic ``[n, ...]``, local batch means (see `engine.statistics`).
      nominal: the constant weight that the loss was divided by.
      noise: what the gradient noise scale is estimated from, if that is asked for.
    """

    gradients: Any
    totals: dict[str, Totals]
    model_state: Any
    means: list[Array]
    nominal: Array
    noise: LocalSquares | None = None


KeyOf = Callable[[Array, int], Array]
"""Key of microbatch j (may be traced) with so many rows."""


def sum_rows(
    task: Task, parallel: Parallel, *, state: TrainState, batch: Any, valid: Array, key_of: KeyOf, parts: int,
    place: Callable[[Any], Any] = lambda tree: tree, gather: Callable[[Any], Any] = lambda tree: tree,
) -> Sums:  # fmt: skip
    """Gradients, totals and model state over all rows that this program sees.

    Args:
      batch: leaves ``[b, ...]``; microbatch j holds rows j, j + n, j + 2n, ... so that no row changes its device.
      valid: bool ``[b]``, False marks padding.
      key_of: the random key of a microbatch.
      parts: programs that share the global batch (K, or 1 under `global_view`).
      place: puts a sharding on the ``[n, b/n, ...]`` tree.
      gather: makes split parameters whole, where the loss of each microbatch uses them.
    """
    count = parallel.accumulation
    params = state.params
    scale = 1.0 if state.loss_scale is None else state.loss_scale.scale

    def one(model_state: Any, index: Array, rows: Any, mask: Array) -> tuple[Sums, Any]:
        sums = _microbatch(
            task, parallel, params=params, model_state=model_state, batch=rows, valid=mask,
            key=key_of(index, mask.shape[0]), scale=scale, parts=parts * count, gather=gather,
        )  # fmt: skip
        means = batch_means(task.statistics, first=state.model_state, before=model_state, after=sums.model_state)
        return sums._replace(model_state=None, means=[]), (sums.model_state, means)

    if count == 1:
        sums, (model_state, means) = one(state.model_state, jnp.zeros((), jnp.int32), batch, valid)
        return sums._replace(model_state=model_state, means=[mean[None] for mean in means])
    split_batch, split_valid = place(_stride(batch, count)), place(_stride(valid, count))
    return _scan(one, state.model_state, split_batch, split_valid, count)


def _scan(one: Callable[..., Any], model_state: Any, batch: Any, valid: Array, count: int) -> Sums:
    """Add up `one` over the leading microbatch dim."""
    indices = jnp.arange(count)
    first = jax.eval_shape(one, model_state, indices[0], *jax.tree.map(lambda leaf: leaf[0], (batch, valid)))[0]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)

    def body(carry: tuple[Sums, Any], xs: tuple[Array, Any, Array]) -> tuple[tuple[Sums, Any], list[Array]]:
        sums, (new_state, means) = one(carry[1], *xs)
        added = jax.tree.map(jnp.add, carry[0], sums)
        return (added._replace(nominal=sums.nominal), new_state), means

    (sums, new_state), means = lax.scan(body, (zeros, model_state), (indices, batch, valid))
    return sums._replace(model_state=new_state, means=means)


def _microbatch(
    task: Task, parallel: Parallel, *, params: Any, model_state: Any, batch: Any, valid: Array, key: Array,
    scale: Array | float, parts: int, gather: Callable[[Any], Any],
) -> Sums:  # fmt: skip
    """Differentiate total / nominal weight of one microbatch. Parameters and gradients are float32."""

    def objective(params: Any) -> tuple[Array, tuple[dict[str, Totals], Any, Array]]:
        compute_params = gather(cast_floats(params, parallel.precision))
        outcome = task.loss(compute_params, model_state, cast_floats(batch, parallel.precision), key)
        sums = outcome_totals(outcome, valid)
        nominal = nominal_weight(outcome.loss, valid.shape[0]) * parts
        total = sums["loss"].total
        new_state = same_types(outcome.model_state, model_state)
        return total * (scale / nominal), (sums, new_state, jnp.asarray(nominal, total.dtype))

    gradients, (sums, new_state, nominal) = jax.grad(objective, has_aux=True)(params)
    return Sums(gradients, sums, new_state, [], nominal)


def outcome_totals(outcome: Outcome, valid: Array) -> dict[str, Totals]:
    """Totals of the loss (key ``loss``) and of every metric over the valid rows.

    Raises: LossError: one of them has none of the three forms, or a metric has a name that reports use themselves.
    """
    check_loss(outcome.loss, valid.shape[0])
    sums = {"loss": totals(outcome.loss, valid, name="the loss")}
    for name, value in outcome.metrics.items():
        user_metric(name)
        sums[name] = totals(value, valid, name=f"metric {name!r}")
    return sums


def _stride(tree: Any, count: int) -> Any:
    """``[b, ...]`` to ``[n, b/n, ...]`` with row i in microbatch i % n: under jit no row leaves its device."""

    def split(leaf: Array) -> Array:
        return leaf.reshape(leaf.shape[0] // count, count, *leaf.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, tree)
