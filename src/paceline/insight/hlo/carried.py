"""Bytes of each leaf in each collective of a program.

Owns: the choice between the leaves that a message might carry.
Not here: the ways of values (`leaves`).
Invariant: what reaches a leaf by sums and scalar factors alone is part of its gradient, and every part counts. Only
where nothing does, the nearest of what reaches it at all is named: under `global_view` the compiler reduces sums from
which the gradient of a BatchNorm's scale follows; its statistics, of the same shape, enter there too, farther away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from paceline.insight.hlo.collectives import collective_of, gathered
from paceline.insight.hlo.leaves import Claim, LeafTracer, Value
from paceline.insight.hlo.shapes import Shape, arrays
from paceline.insight.hlo.text import Module
from paceline.insight.hlo.timeline import FoundCollective


class _Claim(NamedTuple):
    """A claim, the collective and the operand that it is of, and its bytes."""

    claim: Claim
    collective: str
    operand: int
    size: int


def carried_by(
    found: Mapping[str, FoundCollective], *, module: Module, parameters: Mapping[int, str]
) -> dict[str, dict[str, int]]:
    """For each collective, by name, the leaves that it carries with their bytes.

    A leaf of no bytes shares those of another: two biases that are added have one gradient, which is sent once.
    """
    tracer = LeafTracer(module, parameters)
    gathers, reductions = list[_Claim](), list[_Claim]()
    leaves: dict[str, dict[str, int]] = {}
    for name, one in found.items():
        gather = one.collective.kind == "all-gather"
        leaves[name] = _sources(one, module=module, tracer=tracer) if gather else {}
        if not leaves[name]:
            (gathers if gather else reductions).extend(_claims(one, name, module=module, tracer=tracer))
    for family in (gathers, reductions):
        for claim, name, _, size in _chosen(family):
            leaves[name][claim.leaf] = leaves[name].get(claim.leaf, 0) + size
    return leaves


def _chosen(claims: list[_Claim]) -> list[_Claim]:
    """One leaf a piece; of each leaf all linear claims, else the nearest; leaves that are left share a piece."""
    pieces: dict[tuple[str, int, int], _Claim] = {}
    for one in sorted(claims, key=lambda one: (not one.claim.linear, one.claim.distance)):
        pieces.setdefault((one.collective, one.operand, one.claim.piece), one)
    best: dict[str, tuple[bool, int]] = {}
    for one in pieces.values():
        rank = (not one.claim.linear, 0 if one.claim.linear else one.claim.distance)
        best[one.claim.leaf] = min(rank, best.get(one.claim.leaf, rank))
    chosen = [
        one
        for one in pieces.values()
        if (not one.claim.linear, 0 if one.claim.linear else one.claim.distance) == best[one.claim.leaf]
    ]
    shared: dict[str, _Claim] = {}
    for one in claims:
        if one.claim.linear and one.claim.leaf not in best and one.claim.leaf.startswith("params."):
            shared.setdefault(one.claim.leaf, one._replace(size=0))
    return [*chosen, *shared.values()]


def _claims(one: FoundCollective, name: str, *, module: Module, tracer: LeafTracer) -> list[_Claim]:
    """Leaves in which what a collective delivers may end, with their bytes on the wire."""
    result = one.start if one.done is None else one.done
    many = isinstance(result.type, tuple)
    found = []
    for operand, shape in enumerate(_wire(one, module)):
        value = Value(one.computation.name, result.name, operand if many else None)
        delivered = tracer.delivered(value)
        found += [_Claim(claim, name, operand, round(claim.share * shape.bytes)) for claim in delivered]
    return found


def _sources(one: FoundCollective, *, module: Module, tracer: LeafTracer) -> dict[str, int]:
    """Leaves of which an all-gather sends parts, with the bytes of the whole."""
    inside = collective_of(one.start, module)
    assert inside is not None, "found as a collective"
    wrapper = inside[2]
    home = wrapper or one.computation
    leaves: dict[str, int] = {}
    for operand, shape in zip(inside[1].operands, _wire(one, module), strict=False):
        parts = tracer.origins(Value(home.name, operand))
        total = sum(elements for _, elements in parts)
        for name, elements in parts:
            leaves[name] = leaves.get(name, 0) + round(shape.bytes * elements / max(1, total))
    return leaves


def _wire(one: FoundCollective, module: Module) -> list[Shape]:
    """The arrays that cross the wire: results of an all-gather, operands of the rest."""
    inside = collective_of(one.start, module)
    assert inside is not None, "found as a collective"
    kind, instruction, wrapper = inside
    if kind == "all-gather":
        return gathered(one.start, wrapper)
    home = wrapper or one.computation
    return [shape for operand in home.operands(instruction) for shape in arrays(operand.type)]
