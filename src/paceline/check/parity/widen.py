"""A function with all of its arithmetic in float64, whatever types its author casts to.

Owns: the evaluation of a jaxpr in which every floating-point value is float64 (complex: complex128).
Not here: which functions need it (`check.parity.narrow`).
Invariant: apart from types the program is the one that was traced. What has a meaning in one type only (the bits of a
number, a kernel, a callback) is computed in that type; a constant has the value that its type gave it.

So a proof to 1e-10 does not end at a BatchNorm that insists on float32, or at a model that computes in bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from paceline.check.interpreter import callee
from paceline.check.rules import scan_sizes
from paceline.tasks.task import LossFunction

_INLINED = {"jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call"}
_TYPED = {"bitcast_convert_type", "nextafter", "pure_callback", "io_callback", "ffi_call", "random_gamma"}
_ALGORITHMS = ("precision",)
"""Parameters that name an algorithm for narrow types, which float64 has no use for."""

Values = list[Any]


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in float64, under `jax.enable_x64`. To differentiate a loss, use `widened_loss`."""

    def wide(*arguments: Any) -> Any:
        # A new function each time: JAX would remember what the last trace gave, of a function that may be random.
        jaxpr, shapes = jax.make_jaxpr(lambda *given: function(*given), return_shape=True)(*arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), _evaluate(jaxpr, jax.tree.leaves(arguments)))

    return wide


def widened_loss(loss: LossFunction) -> LossFunction:
    """The loss in float64, to be differentiated by its parameters.

    Its gradient is the user's own, custom derivatives included: it is traced in their types, and then widened.
    """

    def gradient(arguments: tuple[Any, ...], cotangents: Values) -> Any:
        params, *others = arguments

        def floats(params: Any) -> Values:
            return [leaf for leaf in jax.tree.leaves(loss(params, *others)) if _is_inexact(leaf)]

        values, pull = jax.vjp(floats, params)
        return pull([given.astype(value.dtype) for given, value in zip(cotangents, values, strict=True)])[0]

    def forward(*arguments: Any) -> tuple[Any, tuple[Any, ...]]:
        return wide(*arguments), arguments

    def backward(arguments: tuple[Any, ...], cotangent: Any) -> tuple[Any, ...]:
        floats = [leaf for leaf in jax.tree.leaves(cotangent) if leaf.dtype != jax.dtypes.float0]
        return widened(gradient)(arguments, floats), *[None] * (len(arguments) - 1)

    wide = jax.custom_vjp(widened(loss))
    wide.defvjp(forward, backward)
    return wide


def _evaluate(jaxpr: Any, inputs: Sequence[Any]) -> Values:
    """Outputs of a closed jaxpr."""
    inner = jaxpr.jaxpr
    known = dict(zip([*inner.invars, *inner.constvars], map(_up, [*inputs, *jaxpr.consts]), strict=True))
    for equation in inner.eqns:
        values = [_read(known, operand) for operand in equation.invars]
        known.update(zip(equation.outvars, map(_up, _apply(equation, values)), strict=True))
    return [_read(known, output) for output in inner.outvars]


def _read(known: Mapping[Any, Any], operand: Any) -> Any:
    if not isinstance(operand, Literal):
        return known[operand]
    aval: Any = operand.aval
    return _up(np.asarray(operand.val, aval.dtype))


def _apply(equation: Any, values: Values) -> Values:
    name, params = equation.primitive.name, equation.params
    if name in _RULES:
        return _RULES[name](params, values)
    if name in _INLINED:
        return _evaluate(_closed(callee(equation)), values)
    if name in _TYPED or any(map(_has_equations, params.values())):
        values = [_cast(value, operand.aval.dtype) for value, operand in zip(values, equation.invars, strict=True)]
    else:
        params = {key: None if key in _ALGORITHMS else _wide_parameter(value) for key, value in params.items()}
    results = equation.primitive.bind(*values, **equation.primitive.get_bind_params(params))
    return list(results) if equation.primitive.multiple_results else [results]


def _scan(params: Mapping[str, Any], values: Values) -> Values:
    num_consts, num_carry = scan_sizes(params)
    constants, first, rows = values[:num_consts], values[num_consts:][:num_carry], values[num_consts + num_carry :]

    def body(carry: Values, row: Values) -> tuple[Values, Values]:
        outputs = _evaluate(params["jaxpr"], [*constants, *carry, *row])
        return outputs[:num_carry], outputs[num_carry:]

    options = {key: params[key] for key in ("length", "reverse", "unroll")}
    last, stacked = lax.scan(body, first, rows, **options)
    return [*last, *stacked]


def _while(params: Mapping[str, Any], values: Values) -> Values:
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond, body, first = values[:num_cond], values[num_cond:][:num_body], values[num_cond + num_body :]
    return lax.while_loop(
        lambda carry: _evaluate(params["cond_jaxpr"], [*cond, *carry])[0],
        lambda carry: _evaluate(params["body_jaxpr"], [*body, *carry]),
        first,
    )


def _cond(params: Mapping[str, Any], values: Values) -> Values:
    branches = [lambda *given, branch=branch: _evaluate(branch, given) for branch in params["branches"]]
    return lax.switch(values[0], branches, *values[1:])


def _scatter(combine: Callable[..., Any], params: Mapping[str, Any], values: Values) -> Values:
    options = {key: params[key] for key in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")}
    numbers = options.pop("dimension_numbers")
    return [combine(*values, numbers, **options)]


def _shard_map(params: Mapping[str, Any], values: Values) -> Values:
    mapped = jax.shard_map(
        lambda *given: tuple(_evaluate(_closed(params["jaxpr"]), given)),
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        axis_names=set(params["newly_manual_axes"]),
        check_vma=params["check_vma"],
    )
    return list(mapped(*values))


# Each has the jaxpr of its combination, in the narrow type, among its parameters.
_SCATTERS = {
    "scatter": lax.scatter, "scatter-add": lax.scatter_add, "scatter-sub": lax.scatter_sub,
    "scatter-mul": lax.scatter_mul, "scatter-min": lax.scatter_min, "scatter-max": lax.scatter_max,
}  # fmt: skip
_RULES: dict[str, Callable[[Mapping[str, Any], Values], Values]] = {
    **{name: functools.partial(_scatter, combine) for name, combine in _SCATTERS.items()},
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    "reduce_precision": lambda params, values: values,
}


def _closed(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ())


def _has_equations(parameter: Any) -> bool:
    several = parameter if isinstance(parameter, tuple | list) else (parameter,)
    return any(hasattr(getattr(entry, "jaxpr", entry), "eqns") for entry in several)


def _wide_parameter(parameter: Any) -> Any:
    return _wide_type(parameter) if isinstance(parameter, np.dtype) else parameter


def _wide_type(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype(np.float64)
    return np.dtype(np.complex128) if jnp.issubdtype(dtype, jnp.complexfloating) else dtype


def _is_inexact(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def _up(value: Any) -> Any:
    return _cast(value, _wide_type(value.dtype))


def _cast(value: Any, dtype: Any) -> Any:
    return lax.convert_element_type(value, dtype) if _is_inexact(value) and value.dtype != dtype else value
