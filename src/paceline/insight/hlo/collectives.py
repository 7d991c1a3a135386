"""Collectives as a compiled program spells them, in one form.

Owns: which instructions begin and end one, its kind, bytes, type on the wire, group, whether it blocks.
Not here: which leaves it carries (`leaves`), what runs meanwhile (`timeline`).
Invariant: `bytes` is what `insight.timeline.Collective` says: the whole value.

CPUs run ``all-reduce`` and block. GPUs run ``all-reduce-start`` ... ``all-reduce-done``, or ``async-start`` around a
computation; with ``is_sync`` in its configuration such a pair runs like any kernel, in its turn.
"""

from __future__ import annotations

from typing import cast, get_args

from paceline.insight.hlo.groups import Groups, parse_groups
from paceline.insight.hlo.shapes import Shape, arrays, dtype_name
from paceline.insight.hlo.text import Computation, Instruction, Module
from paceline.insight.timeline import Collective, Kind

_KINDS = {kind: kind for kind in get_args(Kind)} | {"ragged-all-to-all": "all-to-all"}
_LIKE_A_GATHER = ("all-gather",)


def collective_of(instruction: Instruction, module: Module) -> tuple[str, Instruction, Computation | None] | None:
    """Kind, the instruction that says what, and the computation it stands in if that is a wrapper; None if it is none.

    Of a pair only the start is one.
    """
    opcode = instruction.opcode.removesuffix("-start")
    if opcode in _KINDS:
        return _KINDS[opcode], instruction, None
    if instruction.opcode == "async-start":
        for name in instruction.called:
            wrapped = module.computations[name]
            for inner in wrapped.instructions:
                if inner.opcode in _KINDS:
                    return _KINDS[inner.opcode], inner, wrapped
    return None


def read_collective(
    instruction: Instruction, *, computation: Computation, module: Module, has_done: bool
) -> tuple[Collective, Groups | None]:
    """The collective that `instruction` begins.

    Args:
      has_done: whether a ``-done`` of its own waits for it in the same computation.
    """
    found = collective_of(instruction, module)
    assert found is not None, "asked only of collectives"
    kind, inner, wrapper = found
    operands = [shape for one in (wrapper or computation).operands(inner) for shape in arrays(one.type)]
    groups = parse_groups(inner, module)
    size = max(map(len, groups)) if groups else 0
    carried = gathered(instruction, wrapper) if kind in _LIKE_A_GATHER else operands
    widest = max(operands, key=lambda shape: shape.bytes)
    collective = Collective(
        name=instruction.name,
        kind=cast(Kind, kind),
        bytes=sum(shape.bytes for shape in carried),
        dtype=dtype_name(widest.dtype),
        group=size,
        asynchronous=has_done and '"is_sync":true' not in instruction.attributes,
    )
    return collective, groups


def gathered(instruction: Instruction, wrapper: Computation | None) -> list[Shape]:
    """Results of an all-gather; one that is only started lists its operands before them."""
    if wrapper is not None:
        return list(arrays(wrapper.root.type))
    type_ = instruction.type
    if instruction.opcode.endswith("-start") and not isinstance(type_, Shape):
        return list(arrays(type_[1]))
    return list(arrays(type_))


def finished_by(instruction: Instruction, computation: Computation) -> Instruction | None:
    """The instruction that waits for what `instruction` starts, if it stands in the same computation."""
    if not instruction.opcode.endswith("-start"):
        return None
    names = [instruction.name]
    while names:
        for user, _ in computation.users.get(names.pop(), []):
            if user.opcode.endswith("-done"):
                return user
            if user.opcode == "async-update":
                names.append(user.name)
    return None
