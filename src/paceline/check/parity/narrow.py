"""Losses and steps that compute in narrower types than float64 when they are given float64.

Owns: the search through the jaxpr; the problem in which such a loss computes in float64 throughout.
Not here: how a function is made to do so (`check.parity.widen`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.check.parity.problem import Problem
from paceline.check.parity.widen import widened_loss
from paceline.engine.rng import base_key
from paceline.engine.usercode import user_code, with_data_axis
from paceline.tasks.task import Task

_CASTS = {"convert_element_type", "bitcast_convert_type"}
"""Draws of random numbers start from bits of float32; what a program goes on to compute in is what counts."""


def narrowest_type(jaxpr: Any) -> np.dtype:
    """The floating-point type with the least digits in which a closed jaxpr computes or returns something."""
    inner = jaxpr.jaxpr
    found = [*_computing(inner), *(variable.aval.dtype for variable in inner.outvars)]
    floats = [dtype for dtype in found if jnp.issubdtype(dtype, jnp.floating)]
    return np.dtype(max(floats, key=lambda dtype: jnp.finfo(dtype).eps, default=np.float64))


def loss_type(problem: Problem) -> np.dtype:
    """The narrowest type of the loss of a float64 problem, under `jax.enable_x64`."""
    arguments = jax.tree.map(jnp.asarray, (problem.params, problem.model_state, problem.batches[0].rows))
    key = base_key(problem.seed)
    loss = with_data_axis(problem.task, *arguments, key, fields=("loss",)).loss
    with user_code(f"the loss of task {problem.task.name!r}"):
        return narrowest_type(jax.make_jaxpr(loss)(*arguments, key))


def throughout(problem: Problem) -> Problem:
    """A float64 problem whose loss computes in nothing narrower."""
    return problem if loss_type(problem) == np.float64 else dataclasses.replace(problem, task=_wide_task(problem.task))


def _wide_task(task: Task) -> Task:
    synced = task.synced
    return dataclasses.replace(
        task,
        loss=widened_loss(task.loss),
        synced=None if synced is None else lambda axis: _wide_task(synced(axis)),
    )


def _computing(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        if equation.primitive.name not in _CASTS:
            yield from (variable.aval.dtype for variable in equation.outvars if hasattr(variable.aval, "dtype"))
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _computing(inner)
