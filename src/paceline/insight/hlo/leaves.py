"""Which leaves of the state a collective carries, and how many bytes of each.

Owns: names of the program's inputs and outputs as users write them, and the way of a value through the program: what an
all-gather sends back to the inputs that it came from, what a reduction delivers on to the outputs that it ends in.
Not here: the collectives (`collectives`).
Invariant: a leaf is named only if a chain of operations that keep its elements apart connects it with the message;
where there is none, nothing is named.

A gradient reaches the new parameters and the new optimizer state element by element; a loss, a norm or a statistic
does not. A message may hold many leaves: a slice of it is followed as a piece of its own.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from paceline.insight.hlo.custom_calls import is_marker
from paceline.insight.hlo.shapes import Shape
from paceline.insight.hlo.text import Computation, Instruction, Module

_STOPS = frozenset({
    "reduce", "dot", "convolution", "reduce-window", "gather", "scatter", "custom-call", "broadcast", "compare",
    "is-finite", "concatenate", "pad", "sort", "iota", "select-and-scatter", "all-to-all", "collective-permute",
    "cholesky", "dynamic-update-slice", "get-tuple-element", "fusion", "call", "while", "conditional",
})  # fmt: skip
"""Operations behind which an element is no longer the same leaf's."""
_RENAMING = frozenset(
    {"bitcast", "convert", "copy", "reshape", "transpose", "dynamic-slice", "copy-start", "copy-done", "async-done"}
)
_COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather")
_LINEAR = frozenset({*_RENAMING, "add", "subtract", "negate", "reverse"})
_BARRIERS = ("opt-barrier", "optimization-barrier")
_OPTIMIZER_FIELDS = ("opt_state.", "ema.")


@dataclass(frozen=True)
class Value:
    """An array of a program: an instruction's, or one element of its tuple."""

    computation: str
    name: str
    index: int | None = None


Step = Literal["same", "slice", "nonlinear"]
"""What an operation does to a value: keeps it or adds to it, takes a slice, or anything else element by element."""


class _Place(NamedTuple):
    value: Value
    piece: int
    share: float
    distance: int
    linear: bool


@dataclass(frozen=True)
class Claim:
    """A leaf that a piece of a message ends in.

    Args:
      piece: number of the piece; 0 is the whole, which counts as one unless slices of it end in leaves.
      leaf: its name.
      share: part of the message's elements that the piece has.
      distance: operations between the message and the leaf.
      linear: whether only sums and scalar factors stand between them, as between a gradient and the optimizer's state.
    """

    piece: int
    leaf: str
    share: float
    distance: int
    linear: bool


def dotted(path: str) -> str:
    """``state.params['first']['w']`` as `paceline.tasks.tree` names it: ``params.first.w``; the state needs no name."""
    text = re.sub(r"\[\\?['\"]?([^\]'\"\\]*)\\?['\"]?\]", r".\1", path)
    return text.removeprefix("state.")


def parameter_names(module: Module, given: Sequence[str] = ()) -> dict[int, str]:
    """Names of the entry's parameters by number.

    Args:
      given: names of all arguments in order, for programs that only number them: ``flat_args[3]`` after `jax.pmap`, or
        lowered ones.
    """
    found = {}
    entry = module.computations[module.entry].parameters
    for number, parameter in entry.items():
        name = parameter.op_name or (given[number] if len(given) == len(entry) else parameter.name)
        if (flat := re.fullmatch(r"flat_args\[(\d+)\]", name)) and int(flat[1]) < len(given):
            name = given[int(flat[1])]
        found[number] = dotted(name)
    return found


def output_names(module: Module, parameters: Mapping[int, str]) -> dict[int, str]:
    """Names of the entry's outputs: of the parameter whose memory they take, else of the one in the same place.

    The second holds as far as types agree from the first output on: what a step returns first is what it took first.
    """
    entry = module.computations[module.entry]
    numbers = {int(out or 0): int(into) for out, into in re.findall(r"\{(\d*)\}: \((\d+),", module.header)}
    types = entry.root.type if isinstance(entry.root.type, tuple) else (entry.root.type,)
    for place, type_ in enumerate(types):
        if place not in entry.parameters or entry.parameters[place].type != type_:
            break
        numbers.setdefault(place, place)
    return {place: parameters[number] for place, number in numbers.items() if number in parameters}


class LeafTracer:
    """Follows values through one module."""

    def __init__(self, module: Module, parameters: Mapping[int, str]) -> None:
        self._module = module
        self._parameters = parameters
        self._outputs = output_names(module, parameters)
        self._params = {name.removeprefix("params.") for name in parameters.values() if name.startswith("params.")}

    def delivered(self, value: Value) -> list[Claim]:
        """Leaves in which a value or slices of it end, nearest first; each leaf at most once a piece and linearity."""
        whole = max(1, self._elements(value))
        queue = deque([_Place(value, 0, 1.0, 0, linear=True)])
        seen, pieces = {(value, True)}, 1
        claims: dict[tuple[int, str, bool], Claim] = {}
        while queue:
            at = queue.popleft()
            if (leaf := self._leaf(at.value)) is not None:
                claims.setdefault((at.piece, leaf, at.linear), Claim(at.piece, leaf, at.share, at.distance, at.linear))
                continue
            for after, step in self._next(at.value):
                linear = at.linear and step != "nonlinear"
                if (after, linear) in seen:
                    continue
                seen.add((after, linear))
                piece, share = at.piece, at.share
                if step == "slice":
                    piece, share, pieces = pieces, self._elements(after) / whole, pieces + 1
                queue.append(_Place(after, piece, share, at.distance + 1, linear))
        return list(claims.values())

    def origins(self, value: Value) -> list[tuple[str, int]]:
        """Leaves that a value was made from by renaming only, with elements of each."""
        computation = self._module.computations[value.computation]
        one = computation.by_name.get(value.name)
        if one is None:
            return []
        if one.opcode == "parameter":
            return self._parameter_origins(one, value)
        if one.opcode == "concatenate":
            return [found for part in one.operands for found in self.origins(Value(value.computation, part))]
        before = self._before(one, value)
        return [] if before is None else self.origins(before)

    def _before(self, one: Instruction, value: Value) -> Value | None:
        here, given = value.computation, list(one.operands)
        if (one.opcode in _BARRIERS or is_marker(one)) and len(given) > 1:
            return Value(here, given[value.index or 0])
        if one.opcode in _RENAMING or one.opcode in _BARRIERS or is_marker(one):
            return Value(here, given[0], value.index)
        if one.opcode == "get-tuple-element":
            return Value(here, one.operands[0], one.index)
        if one.opcode == "tuple" and value.index is not None:
            return Value(here, one.operands[value.index], None)
        if one.opcode in ("fusion", "call") and one.called and one.called[0] in self._module.computations:
            return Value(one.called[0], self._module.computations[one.called[0]].root.name, value.index)
        return None

    def _parameter_origins(self, parameter: Instruction, value: Value) -> list[tuple[str, int]]:
        number = int(parameter.operands[0])
        if value.computation == self._module.entry:
            name = self._parameters.get(number)
            return [] if name is None else [(name, self._elements(value))]
        if value.computation not in self._module.callers:
            return []
        caller, instruction = self._module.callers[value.computation]
        if instruction.opcode == "conditional":
            number = 1 + _branch(instruction, value.computation)
        return self.origins(Value(caller.name, instruction.operands[number], value.index))

    def _elements(self, value: Value) -> int:
        type_ = self._module.computations[value.computation].by_name[value.name].type
        if value.index is not None and isinstance(type_, tuple):
            type_ = type_[value.index]
        return type_.elements if isinstance(type_, Shape) else 0

    def _leaf(self, value: Value) -> str | None:
        """The leaf that an output of the program is; optimizer state and average count as their parameter."""
        entry = self._module.computations[self._module.entry]
        if value.computation != self._module.entry or not entry.by_name[value.name].is_root:
            return None
        name = self._outputs.get(value.index or 0)
        if name is not None and name.startswith(_OPTIMIZER_FIELDS):
            parts = name.split(".")
            suffixes = (".".join(parts[start:]) for start in range(1, len(parts)))
            name = next((f"params.{suffix}" for suffix in suffixes if suffix in self._params), name)
        return name

    def _next(self, value: Value) -> Iterator[tuple[Value, Step]]:
        """Where a value goes with its elements kept apart, and what happens to it on the way."""
        computation = self._module.computations[value.computation]
        if computation.by_name[value.name].is_root and computation.name in self._module.callers:
            caller, instruction = self._module.callers[computation.name]
            if computation.name != (instruction.attribute("condition") or "").lstrip("%"):
                yield Value(caller.name, instruction.name, value.index), "same"
        if value.index is not None:
            for part in computation.elements.get((value.name, value.index), []):
                yield Value(computation.name, part.name), "same"
        for user, position in computation.users.get(value.name, []):
            if (after := self._through(value, user, position, computation)) is not None:
                yield after
            elif value.index is None and self._keeps_elements(user, value):
                yield Value(computation.name, user.name), _step(user, position, computation)

    def _through(
        self, value: Value, user: Instruction, position: int, computation: Computation
    ) -> tuple[Value, Step] | None:
        """Through tuples, calls and slices."""
        here, opcode = computation.name, user.opcode
        if opcode in ("fusion", "call", "while", "conditional"):
            inner = self._entered(user, position)
            return None if inner is None else (Value(inner[0], inner[1], value.index), "same")
        if opcode in _BARRIERS or is_marker(user):
            return Value(here, user.name, value.index if len(user.operands) == 1 else position), "same"
        if opcode.endswith("-done"):
            return Value(here, user.name, value.index), "same"
        if value.index is not None:
            return None
        if opcode.removesuffix("-start") in _COLLECTIVES:
            return Value(here, user.name, position if len(user.operands) > 1 else None), "same"
        if opcode == "tuple":
            return Value(here, user.name, position), "same"
        if opcode in ("slice", "dynamic-slice") and position == 0:
            return Value(here, user.name), "slice" if opcode == "slice" else "same"
        # One layer's part of what a loop stacks; what rows are added to.
        if (opcode == "dynamic-update-slice" and position < 2) or (opcode == "scatter" and position == 0):
            return Value(here, user.name), "same"
        return None

    def _keeps_elements(self, user: Instruction, value: Value) -> bool:
        if user.opcode in _STOPS or user.opcode.endswith(("-start", "-done")) or not isinstance(user.type, Shape):
            return False
        return user.type.elements == self._elements(value) and user.type.dtype != "pred"

    def _entered(self, user: Instruction, position: int) -> tuple[str, str] | None:
        """The parameter of a called computation that an operand becomes."""
        if user.opcode == "while":
            name, number = (user.attribute("body") or "").lstrip("%"), 0
        elif user.opcode == "conditional":
            if position == 0:
                return None
            name, number = user.called[position - 1], 0
        else:
            name, number = user.called[0], position
        computation = self._module.computations.get(name)
        if computation is None or number not in computation.parameters:
            return None
        return name, computation.parameters[number].name


def _branch(conditional: Instruction, name: str) -> int:
    return conditional.called.index(name)


def _step(user: Instruction, position: int, computation: Computation) -> Step:
    """Whether an elementwise operation is linear in one operand: the other factor must be one number for all."""
    if user.opcode in _LINEAR or (user.opcode == "select" and position > 0):
        return "same"
    if user.opcode == "multiply" or (user.opcode == "divide" and position == 0):
        other = computation.by_name.get(user.operands[1 - position])
        if other is not None and _is_one_number(other, computation):
            return "same"
    return "nonlinear"


def _is_one_number(value: Instruction, computation: Computation) -> bool:
    while value.opcode in _RENAMING or value.opcode == "broadcast":
        if value.shape.elements == 1 or value.operands[0] not in computation.by_name:
            break
        value = computation.by_name[value.operands[0]]
    return value.shape.elements == 1
