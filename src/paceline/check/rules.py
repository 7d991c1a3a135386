"""What single operations do to labels and tokens.

Owns: collectives, `shard_map`, loops, conditionals, mutable arrays, and operations on keys.
Not here: the walk (`check.interpreter`). An operation without a rule gives its outputs the labels of all its inputs.
Invariant: a label is lost only where a collective makes a value the same on all devices of an axis. The names of
primitives are those of JAX 0.10 to 0.12.
"""

from __future__ import annotations

import itertools
from typing import Any

from paceline.check.interpreter import Interpreter, Rule
from paceline.check.values import NONE, SPLIT, Labels, Value, differs, first_site, union, varies

# Same on all devices of the axis afterwards.
_REDUCING = (
    "psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant", "all_gather_reduced", "pbroadcast",
    "psum_start", "psum_invariant_start", "all_gather_start", "all_gather_reduced_start", "pbroadcast_start",
    "pbroadcast_dynamic",
)  # fmt: skip
# Different on the devices of the axis afterwards, whatever they were before.
_VARYING = (
    "axis_index", "ppermute", "all_to_all", "ragged_all_to_all", "reduce_scatter", "psend", "precv",
    "ppermute_start", "all_to_all_start", "reduce_scatter_start", "unreduced_psum", "unreduced_psum_start",
    "unreduced_reduce_scatter", "unreduced_reduce_scatter_start", "unreduced_pmax", "unreduced_pmin",
)  # fmt: skip
# A host, or a device by itself, decides the value.
_OWN = ("io_callback", "rng_uniform")
# Output i comes from input i alone.
_PAIRED = ("optimization_barrier", "device_put")
_SAME_VALUE = (
    "squeeze",
    "copy",
    "convert_element_type",
    "pvary",
    "sharding_constraint",
    "random_wrap",
    "random_unwrap",
)


def _scan(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    num_consts, num_carry = scan_sizes(equation.params)
    constants, xs = values[:num_consts], values[num_consts + num_carry :]

    def body(carry: list[Value]) -> tuple[Labels, list[Value], list[Value]]:
        outputs = interpreter.body(equation.params["jaxpr"], [*constants, *carry, *xs], caller=equation)
        return NONE, outputs[:num_carry], outputs[num_carry:]

    return interpreter.fixpoint(equation, values, first=values[num_consts : num_consts + num_carry], body=body)


def scan_sizes(params: Any) -> tuple[int, int]:
    """Number of constants and of carried values; JAX 0.12 keeps them in a tree."""
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)


def _while(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    num_cond, num_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    cond_constants, body_constants = values[:num_cond], values[num_cond : num_cond + num_body]

    def body(carry: list[Value]) -> tuple[Labels, list[Value], list[Value]]:
        going_on = interpreter.body(equation.params["cond_jaxpr"], [*cond_constants, *carry], caller=equation)
        after = interpreter.body(equation.params["body_jaxpr"], [*body_constants, *carry], caller=equation)
        return going_on[0].labels, after, []

    return interpreter.fixpoint(equation, values, first=values[num_cond + num_body :], body=body)


def _cond(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    before, number = interpreter.branches, next(interpreter.fresh)
    results = []
    for index, branch in enumerate(equation.params["branches"]):
        interpreter.branches = (*before, (number, index))
        results.append(interpreter.body(branch, values[1:], caller=equation))
    interpreter.branches = before
    operation = interpreter.operation(equation, values)
    outputs = []
    for index, choices in enumerate(zip(*results, strict=True)):
        tokens = {choice.token for choice in choices}
        token = tokens.pop() if len(tokens) == 1 else interpreter.token(operation, index)
        outputs.append(Value(union(choices) | values[0].labels, token, first_site((*choices, values[0]))))
    return outputs


def _shard_map(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    params = equation.params
    inputs = [
        value._replace(labels=_entering(value.labels, _named(spec)))
        for value, spec in zip(values, params["in_specs"], strict=True)
    ]
    before, interpreter.axes = interpreter.axes, (*interpreter.axes, *sorted(params["newly_manual_axes"], key=str))
    outputs = interpreter.body(params["jaxpr"], inputs, caller=equation)
    interpreter.axes = before
    return [
        value._replace(labels=_leaving(value.labels, _named(spec)))
        for value, spec in zip(outputs, params["out_specs"], strict=True)
    ]


def _named(spec: Any) -> Labels:
    """Labels of the axes that a partition spec names."""
    names = itertools.chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in spec)
    return frozenset(varies(name) for name in names if name is not None)


def _entering(labels: Labels, named: Labels) -> Labels:
    return (labels - {SPLIT}) | (named if SPLIT in labels else NONE)


def _leaving(labels: Labels, named: Labels) -> Labels:
    """Where the spec names no axis over which the value differs, it goes on differing, whatever its sharding says."""
    return (labels - named) | {SPLIT} if labels & named else labels


def _reduce(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    axes = _axis_labels(equation)
    if equation.params.get("axis_index_groups") is not None:
        return interpreter.results(equation, values, labels=union(values) | axes)
    return _paired(interpreter, equation, [value._replace(labels=value.labels - axes) for value in values])


def _paired(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    results = interpreter.results(equation, values, labels=union(values))
    if len(results) != len(values):
        return results
    return [
        result._replace(labels=value.labels, site=result.site if differs(value.labels) else None)
        for result, value in zip(results, values, strict=True)
    ]


def _vary(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    return interpreter.results(equation, values, labels=union(values) | _axis_labels(equation))


def _own(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    results = interpreter.results(equation, values, labels=union(values) | {varies(axis) for axis in interpreter.axes})
    return [result._replace(token=next(interpreter.fresh)) for result in results]


def _axis_labels(equation: Any) -> Labels:
    """Labels of the axes that a collective names."""
    names = equation.params.get("axes", equation.params.get("axis_name", ()))
    names = names if isinstance(names, tuple | list) else (names,)
    return frozenset(map(varies, names))


def _same_value(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    """Keeps the token: a key, its words, and the row of one key in either shape are the same key."""
    results = interpreter.results(equation, values, labels=union(values))
    return [result._replace(token=values[0].token) for result in results]


def _unstack(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    """Rows have the tokens that slices of one row have, so that both ways of taking a key are the same key."""
    results = interpreter.results(equation, values, labels=values[0].labels)
    if equation.params["axis"] != 0:
        return results
    return [result._replace(token=interpreter.token("row", values[0].token, row)) for row, result in enumerate(results)]


def _slice(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    (result,) = interpreter.results(equation, values, labels=values[0].labels)
    kept, whole = equation.outvars[0].aval.shape, equation.invars[0].aval.shape
    if kept[0] != 1 or kept[1:] != whole[1:]:
        return [result]
    return [result._replace(token=interpreter.token("row", values[0].token, equation.params["start_indices"][0]))]


def _new_reference(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    return [values[0]._replace(token=next(interpreter.fresh))]


def _write(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    """A mutable array gathers the labels of all that is written to it."""
    held = [*values[1:], interpreter.written.get(values[0].token, Value())]
    interpreter.written[values[0].token] = Value(union(held), site=first_site(held))
    return _take(interpreter, equation, values)


def _take(interpreter: Interpreter, equation: Any, values: list[Value]) -> list[Value]:
    held = [*values, interpreter.written.get(values[0].token, Value())]
    return [
        result._replace(token=next(interpreter.fresh))
        for result in interpreter.results(equation, held, labels=union(held))
    ]


RULES: dict[str, Rule] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    "slice": _slice,
    "unstack": _unstack,
    "new_ref": _new_reference,
    "get": _take,
    "freeze": _take,
    "swap": _write,
    "addupdate": _write,
}
RULES |= dict.fromkeys(_REDUCING, _reduce) | dict.fromkeys(_VARYING, _vary) | dict.fromkeys(_OWN, _own)
RULES |= dict.fromkeys(_PAIRED, _paired) | dict.fromkeys(_SAME_VALUE, _same_value)
