"""The loss protocol: three forms of a loss or metric, one exact mean.

Owns: the forms ``[B]`` rows, `Weighted` and scalar; their reduction to a total and a weight.
Not here: sums across devices (`engine.reduce`) and across microbatches (`engine.microbatch`).
Invariant: sum of totals over sum of weights equals the one-device answer for the same rows, however they are split.

Shapes: b = rows that the loss was given (the whole batch, a device's share or a microbatch).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from paceline.base.errors import LossError, PacelineError


@functools.partial(jax.tree_util.register_dataclass, data_fields=("total", "weight"), meta_fields=("nominal",))
@dataclass(frozen=True)
class Weighted:
    """A sum and the weight it is to be divided by, for example the summed loss of all tokens and their number.

    Args:
      total: ``[b]`` one total a row, or a scalar over all rows. Only the ``[b]`` form can be masked by Paceline.
      weight: the weight of `total`, same shape. Carries no gradient.
      nominal: a constant close to the usual sum of `weight` over the rows that the loss was given, such as their number
        of tokens, padding included. It keeps float16 gradients in range and does not change the result. Default: the
        number of rows.
    """

    total: Array
    weight: Array
    nominal: float | None = None


@functools.partial(jax.tree_util.register_dataclass, data_fields=("loss", "metrics", "model_state"), meta_fields=())
@dataclass(frozen=True)
class Outcome:
    """What a full-signature loss returns.

    Args:
      loss: ``[b]`` per-row losses, `Weighted`, or a scalar mean over the rows.
      metrics: name to value in the same three forms; integers and booleans are counted in int32.
      model_state: the new model state, same tree as the one given; `{}` for a model without state.
    """

    loss: Any
    metrics: Mapping[str, Any] = field(default_factory=dict)
    model_state: Any = field(default_factory=dict)


class Totals(NamedTuple):
    """A sum over rows and its weight, both scalars, float32 (float64 under x64) or int32."""

    total: Array
    weight: Array

    def mean(self) -> Array:
        """total / weight as a floating-point scalar; 0.0 when the weight is 0."""
        dtype = jnp.result_type(self.total.dtype, float)
        weight = self.weight.astype(dtype)
        safe = jnp.where(weight == 0, jnp.ones((), dtype), weight)
        return jnp.where(weight == 0, jnp.zeros((), dtype), self.total.astype(dtype) / safe)


def totals(value: Any, valid: Array, *, name: str) -> Totals:
    """Reduce one loss or metric to its total and weight over the valid rows.

    Args:
      value: any of the three forms.
      valid: bool ``[b]``; False marks a padding row. Ignored by forms that cannot be masked (see `is_maskable`).
      name: how errors call this value.
    Returns: `Totals`, accumulated in at least float32, or in int32 for counts. The weight carries no gradient.
    Raises: LossError: `value` has none of the three forms.
    """
    rows = valid.shape[0]
    check_form(value, rows, name=name)
    if isinstance(value, Weighted):
        total, weight = _widen(value.total), jax.lax.stop_gradient(_widen(value.weight))
        if total.ndim == 1:
            total, weight = _masked_sum(total, valid), _masked_sum(weight, valid)
        return Totals(total, weight)
    array = _widen(value)
    if array.ndim == 1:
        # In the type of the total (exact up to 2**24 rows): an integer would cross the wire in a message of its own.
        return Totals(_masked_sum(array, valid), jnp.sum(valid, dtype=array.dtype))
    return Totals(array * rows, jnp.asarray(rows, jnp.int32))


def nominal_weight(value: Any, rows: int) -> float:
    """The weight a full batch of `rows` rows is expected to have: a constant, known before the step.

    Raises: LossError: a nominal weight that the loss cannot be divided by.
    """
    if not isinstance(value, Weighted) or value.nominal is None:
        return float(rows)
    if not 0 < value.nominal < math.inf:
        raise LossError(
            what=f"the loss is Weighted with nominal={value.nominal!r}",
            why="the loss is divided by it before it is differentiated",
            fix="use a positive number near the usual sum of the weights, or leave nominal out",
        )
    return float(value.nominal)


def is_maskable(value: Any) -> bool:
    """Whether padded rows can be left out of `value`: it has one entry a row."""
    array = value.total if isinstance(value, Weighted) else value
    return len(jnp.shape(array)) == 1


def outcome_is_maskable(outcome: Outcome) -> bool:
    """Whether padded rows can be left out of the loss and of every metric."""
    return is_maskable(outcome.loss) and all(is_maskable(value) for value in outcome.metrics.values())


def check_loss(value: Any, rows: int) -> None:
    """Raise LossError unless `value` is a loss for `rows` rows: one of the three forms, and floating point."""
    check_form(value, rows, name="the loss")
    dtype = jnp.result_type(value.total if isinstance(value, Weighted) else value)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise LossError(
            what=f"the loss has dtype {dtype}",
            why="only a floating-point number has a gradient",
            fix="cast it, for example with .astype(jnp.float32)",
        )


def check_form(value: Any, rows: int, *, name: str) -> None:
    """Raise LossError unless `value` has one of the three forms for `rows` rows."""
    if isinstance(value, Weighted):
        shapes = jnp.shape(value.total), jnp.shape(value.weight)
        if shapes[0] != shapes[1] or shapes[0] not in ((), (rows,)):
            raise _form_error(f"{name} has a total of shape {shapes[0]} and a weight of shape {shapes[1]}", rows)
    elif not hasattr(value, "dtype") and not isinstance(value, int | float):
        raise _form_error(f"{name} is of type {type(value).__name__}", rows)
    elif jnp.shape(value) not in ((), (rows,)):
        raise _form_error(f"{name} has shape {jnp.shape(value)} for {rows} rows", rows)


def _form_error(what: str, rows: int) -> PacelineError:
    return LossError(
        what=what,
        why="Paceline must know which rows a loss or metric belongs to in order to average it exactly over devices",
        fix=f"return one value a row (shape ({rows},)), paceline.Weighted(total, weight), or a scalar mean over rows",
    )


def _widen(value: Any) -> Array:
    """At least float32, or int32 for integers and booleans: a bfloat16 sum stops growing at 256."""
    array = jnp.asarray(value)
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(jnp.promote_types(array.dtype, jnp.float32))
    return array.astype(jnp.int32)


def _masked_sum(rows: Array, valid: Array) -> Array:
    return jnp.sum(jnp.where(valid, rows, jnp.zeros((), rows.dtype)), dtype=rows.dtype)
