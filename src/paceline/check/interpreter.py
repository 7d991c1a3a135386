"""An abstract interpreter over jaxprs: each value carries labels, a token and a site instead of numbers.

Owns: the walk over equations and into what they call, tokens, draws, the fixpoint of a loop.
Not here: what single operations do to labels (`check.rules`).
Invariant: what no rule knows takes the labels of all its inputs, and of every axis over which something varies inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import Literal

from paceline.check.places import Site, enclosing, place
from paceline.check.values import NONE, Draw, Labels, Value, differs, first_site, union

_DRAWS = {"random_bits", "random_gamma", "threefry2x32", "rng_bit_generator"}
# Apply their jaxpr again and again, to parts of their inputs.
_FOLDS = {"reduce", "reduce_window"}

Rule = Callable[["Interpreter", Any, list[Value]], list[Value]]
"""Values of the outputs of an equation from those of its inputs."""
LoopBody = Callable[[list[Value]], tuple[Labels, list[Value], list[Value]]]
"""From the carry to: labels of the condition, the carry afterwards, other outputs."""


@dataclass
class Interpreter:
    """The state of one interpretation.

    Args:
      rules: by the name of a primitive.
      axes: mesh axes that are bound where the interpreter is.
      draws: random draws so far.
      written: what mutable arrays hold, by the token of the reference.
      branches: the branches of conditionals that the interpreter is in.
      fresh: numbers that no other token has.
    """

    rules: Mapping[str, Rule]
    axes: tuple[Any, ...] = ()
    draws: list[Draw] = field(default_factory=list)
    written: dict[int, Value] = field(default_factory=dict)
    branches: tuple[tuple[int, int], ...] = ()
    fresh: Iterator[int] = field(default_factory=lambda: itertools.count(-2, -1))
    _tokens: dict[Any, int] = field(default_factory=dict)
    _outer: Site | None = None

    def token(self, *parts: Any) -> int:
        """One number for equal parts; a new one where they cannot be compared."""
        try:
            return self._tokens.setdefault(parts, len(self._tokens))
        except TypeError:
            return next(self.fresh)

    def operation(self, equation: Any, values: Sequence[Value]) -> int:
        """One token for an operation on these inputs."""
        inputs = tuple(value.token for value in values)
        return self.token(equation.primitive.name, inputs, tuple(equation.params.items()))

    def body(self, jaxpr: Any, inputs: Sequence[Value], *, caller: Any = None) -> list[Value]:
        """Values of the outputs of a jaxpr, closed or not, for values of its inputs."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        known = dict(zip(inner.invars, inputs, strict=True))
        for variable, constant in zip(inner.constvars, getattr(jaxpr, "consts", ()), strict=True):
            known[variable] = Value(token=self.token("constant", id(constant)))
        before = self._outer
        if caller is not None:
            self._outer = Site(caller, self._outer)
        for equation in inner.eqns:
            values = [self._read(known, operand) for operand in equation.invars]
            known.update(zip(equation.outvars, self._equation(equation, values), strict=True))
        self._outer = before
        return [self._read(known, output) for output in inner.outvars]

    def _read(self, known: Mapping[Any, Value], operand: Any) -> Value:
        if isinstance(operand, Literal):
            return Value(token=self.token("literal", str(operand.aval), str(operand.val)))
        return known[operand]

    def _equation(self, equation: Any, values: list[Value]) -> list[Value]:
        rule = self.rules.get(equation.primitive.name)
        if rule is not None:
            return rule(self, equation, values)
        called = callee(equation)
        if called is not None:
            return self.body(called, values, caller=equation)
        if equation.primitive.name in _DRAWS:
            self._draw(equation, values)
        return self.results(equation, values, labels=union(values) | self._inside(equation))

    def results(self, equation: Any, values: Sequence[Value], *, labels: Labels) -> list[Value]:
        """Outputs of an equation that all have `labels`."""
        site = Site(equation, self._outer, first_site(values)) if differs(labels) else None
        operation = self.operation(equation, values)
        return [Value(labels, self.token(operation, index), site) for index in range(len(equation.outvars))]

    def fixpoint(self, equation: Any, values: list[Value], *, first: list[Value], body: LoopBody) -> list[Value]:
        """Outputs of a loop: its body is repeated until what it carries from `first` gathers no more labels.

        What is carried has one token for all iterations, and another behind the loop.
        """
        operation = self.operation(equation, values)
        carry = [value._replace(token=self.token("carried", operation, index)) for index, value in enumerate(first)]
        mark = len(self.draws)
        while True:
            del self.draws[mark:]
            written = dict(self.written)
            control, after, others = body(carry)
            joined = [_joined(old, new, control=control) for old, new in zip(carry, after, strict=True)]
            if self.written == written and all(map(_same_labels, carry, joined)):
                break
            carry = joined
        outputs = [*joined, *others]
        return [value._replace(token=self.token("looped", operation, index)) for index, value in enumerate(outputs)]

    def _draw(self, equation: Any, values: Sequence[Value]) -> None:
        site = Site(equation, self._outer)
        stacks = [str(call.source_info.name_stack) for call in enclosing(site)]
        draw = Draw(
            shape=tuple(equation.outvars[-1].aval.shape),
            labels=union(values),
            key=values[0].token if len(values) == 1 else self.token("key", *(value.token for value in values)),
            where=place(site),
            backward=any("transpose(" in stack or "rematted_computation" in stack for stack in stacks),
            branches=self.branches,
            axes=self.axes,
        )
        self.draws.append(draw)

    def _inside(self, equation: Any) -> Labels:
        """Labels that arise in the jaxprs of an equation that is not interpreted, whatever its inputs."""
        found = [nested for parameter in equation.params.values() for nested in _equations(parameter)]
        if not found:
            return NONE
        inner = Interpreter(self.rules, self.axes)
        nothing = ([Value(token=next(inner.fresh)) for _ in nested.invars] for nested in found)
        return NONE.union(*(union(inner._equation(*pair)) for pair in zip(found, nothing, strict=True)))


def _joined(old: Value, new: Value, *, control: Labels) -> Value:
    """What a loop carries, after one more iteration."""
    return Value(old.labels | new.labels | control, old.token, new.site or old.site)


def _same_labels(old: Value, new: Value) -> bool:
    return old.labels == new.labels


def _equations(parameter: Any) -> Iterator[Any]:
    for jaxpr in parameter if isinstance(parameter, tuple | list) else (parameter,):
        yield from getattr(getattr(jaxpr, "jaxpr", jaxpr), "eqns", ())


def _arity(owner: Any) -> tuple[int, int]:
    return len(owner.invars), len(owner.outvars)


def callee(equation: Any) -> Any:
    """The jaxpr that an equation calls: the one that takes what it takes and gives what it gives."""
    if equation.primitive.name in _FOLDS:
        return None
    for parameter in equation.params.values():
        inner = getattr(parameter, "jaxpr", parameter)
        if hasattr(inner, "eqns") and _arity(inner) == _arity(equation):
            return parameter
    return None
