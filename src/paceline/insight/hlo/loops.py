"""How often a loop of a compiled program runs.

Owns: the trip count that the compiler noted, or that follows from a counter compared with a constant.
Invariant: None where neither says it; never a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.insight.hlo.text import Computation, Instruction, Module

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SAME_VALUE = ("copy", "bitcast", "convert", "reshape")


@dataclass(frozen=True)
class _Scope:
    """A computation and, inside of a fusion, where its parameters come from."""

    module: Module
    computation: Computation
    outer: tuple[_Scope, Instruction] | None = None


def trip_count(loop: Instruction, *, computation: Computation, module: Module) -> int | None:
    """Of a ``while`` of that computation: how often its body runs; None if the program does not say."""
    if found := _KNOWN.search(loop.attributes):
        return int(found[1])
    condition, body = (_named(loop, role, module) for role in ("condition", "body"))
    if condition is None or body is None:
        return None
    compared = _inside(condition.root, _Scope(module, condition))
    if compared is None or compared[0].opcode != "compare":
        return None
    instruction, scope = compared
    sides = [_source(name, scope) for name in instruction.operands]
    return _counted(instruction.attribute("direction") or "", sides, loop=(loop, computation), body=(body, module))


def _named(loop: Instruction, role: str, module: Module) -> Computation | None:
    return module.computations.get((loop.attribute(role) or "").lstrip("%"))


def _inside(value: Instruction, scope: _Scope) -> tuple[Instruction, _Scope] | None:
    """The instruction that computes a value, with fusions and calls opened."""
    while value.opcode in ("fusion", "call"):
        called = scope.module.computations.get(value.called[0]) if value.called else None
        if called is None:
            return None
        scope, value = _Scope(scope.module, called, (scope, value)), called.root
    return value, scope


def _source(name: str, scope: _Scope) -> tuple[str, int] | None:
    """("constant", value) or ("element", index of the loop's tuple), or None."""
    value = scope.computation.by_name.get(name)
    while value is not None and value.opcode in _SAME_VALUE:
        value = scope.computation.by_name.get(value.operands[0])
    if value is None:
        return None
    if value.opcode == "constant":
        return ("constant", int(value.operands[0])) if re.fullmatch(r"-?\d+", value.operands[0]) else None
    if value.opcode == "parameter" and scope.outer is not None:
        outer, fusion = scope.outer
        return _source(fusion.operands[int(value.operands[0])], outer)
    if value.opcode == "get-tuple-element":
        given = scope.computation.by_name.get(value.operands[0])
        if given is not None and given.opcode == "parameter":
            return "element", value.index
    return None


def _counted(
    direction: str, sides: list[tuple[str, int] | None], *, loop: tuple[Instruction, Computation],
    body: tuple[Computation, Module],
) -> int | None:  # fmt: skip
    """Steps from the first value of the counter until the comparison fails."""
    counter, bound = sides
    if counter is None or bound is None or counter[0] != "element":
        return None
    limit = bound[1] if bound[0] == "constant" else _invariant(bound[1], loop=loop, body=body[0])
    first = _first(counter[1], loop=loop)
    step = _step(counter[1], body=body)
    if limit is None or first is None or not step:
        return None
    distance = limit - first
    if direction in ("LE", "GE"):
        distance += 1 if direction == "LE" else -1
    return max(0, -(-distance // step)) if direction in ("LT", "LE", "GT", "GE", "NE") else None


def _first(index: int, *, loop: tuple[Instruction, Computation]) -> int | None:
    """The constant that the loop's tuple begins with at that place."""
    instruction, computation = loop
    start = computation.by_name.get(instruction.operands[0])
    if start is None or start.opcode != "tuple":
        return None
    value = computation.by_name.get(start.operands[index])
    while value is not None and value.opcode in _SAME_VALUE:
        value = computation.by_name.get(value.operands[0])
    if value is None or value.opcode != "constant" or not re.fullmatch(r"-?\d+", value.operands[0]):
        return None
    return int(value.operands[0])


def _invariant(index: int, *, loop: tuple[Instruction, Computation], body: Computation) -> int | None:
    """The value of a constant that the loop carries unchanged."""
    scope = _Scope(Module("", {}, ""), body)
    if body.root.opcode != "tuple" or _source(body.root.operands[index], scope) != ("element", index):
        return None
    return _first(index, loop=loop)


def _step(index: int, *, body: tuple[Computation, Module]) -> int | None:
    """What the body adds to the counter."""
    computation, module = body
    if computation.root.opcode != "tuple":
        return None
    value = computation.by_name.get(computation.root.operands[index])
    opened = None if value is None else _inside(value, _Scope(module, computation))
    if opened is None or opened[0].opcode not in ("add", "subtract"):
        return None
    instruction, scope = opened
    sides = [_source(name, scope) for name in instruction.operands]
    if instruction.opcode == "add" and sides[0] is not None and sides[0][0] == "constant":
        sides.reverse()
    if sides[0] != ("element", index) or sides[1] is None or sides[1][0] != "constant":
        return None
    return sides[1][1] if instruction.opcode == "add" else -sides[1][1]
