"""The narrowest floating-point type that a loss computes in when it is given float64.

Owns: the search through the jaxpr. A loss that casts to float32 inside cannot be proven equal to 1e-10.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.check.parity.problem import Problem
from paceline.engine.rng import base_key
from paceline.engine.usercode import with_data_axis


def narrowest_type(problem: Problem) -> np.dtype:
    """Of the loss of a float64 problem, under `jax.enable_x64`."""
    arguments = jax.tree.map(jnp.asarray, (problem.params, problem.model_state, problem.batches[0].rows))
    key = base_key(problem.seed)
    loss = with_data_axis(problem.task, *arguments, key, fields=("loss",)).loss
    jaxpr = jax.make_jaxpr(loss)(*arguments, key)
    found = (dtype for dtype in _types(jaxpr.jaxpr) if jnp.issubdtype(dtype, jnp.floating))
    return max(found, key=lambda dtype: jnp.finfo(dtype).eps, default=np.dtype(np.float64))


def _types(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield from (variable.aval.dtype for variable in equation.outvars if hasattr(variable.aval, "dtype"))
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _types(inner)
