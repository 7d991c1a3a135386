"""Floating-point operations of an instruction: dots and convolutions, wherever they stand.

Owns: dots, fusions and what they call; a multiply-add is two operations, no other operation counts.
Not here: convolutions (`convolution`), library calls (`custom_calls`), loops (`timeline` repeats them).
Invariant: what cannot be counted is named in `unknown`, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from paceline.insight.hlo.convolution import multiply_adds
from paceline.insight.hlo.custom_calls import Flops, custom_call_flops, is_convolution, target
from paceline.insight.hlo.precision import product_type, several_passes
from paceline.insight.hlo.shapes import Shape
from paceline.insight.hlo.text import Computation, Instruction, Module

_CALLING = ("fusion", "call", "map", "async-start", "reduce", "reduce-window", "select-and-scatter", "scatter")
_UNKNOWN = ("ragged-dot", "scaled-dot", "fft", "triangular-solve", "cholesky", "infeed", "outfeed", "send", "recv")
"""Opcodes whose work is not counted here."""


class FlopCounter:
    """Counts over one module, remembering each computation.

    Attributes:
      unknown: names of opcodes and custom calls whose operations could not be counted, with how many of each.
      passes: algorithms of products that take several passes of a narrower type, which is not counted.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._counted: dict[str, tuple[Flops, Flops]] = {}
        self.unknown: dict[str, int] = {}
        self.passes: set[str] = set()

    def of(self, instruction: Instruction, computation: Computation) -> tuple[Flops, Flops]:
        """FLOPs of one instruction of that computation, by type of the operands (`precision.product_type`), and those
        of them that are of convolutions."""
        opcode = instruction.opcode
        if opcode == "dot":
            return self._dot(instruction, _shapes(instruction, computation)), {}
        if opcode == "convolution":
            image, kernel = _shapes(instruction, computation)[:2]
            count = multiply_adds(instruction, image=image, kernel=kernel, output=instruction.shape)
            flops = {product_type(instruction, image): 2.0 * count}
            return flops, flops
        if opcode == "custom-call":
            flops = self._custom_call(instruction, computation)
            return flops, flops if is_convolution(instruction) else {}
        if opcode in _UNKNOWN:
            self._miss(opcode)
        return _add_both(map(self._called, instruction.called)) if opcode in _CALLING else ({}, {})

    def _called(self, name: str) -> tuple[Flops, Flops]:
        if name not in self._counted:
            computation = self._module.computations.get(name)
            inside = [] if computation is None else computation.instructions
            self._counted[name] = _add_both(self.of(one, computation) for one in inside if computation is not None)
        return self._counted[name]

    def _dot(self, instruction: Instruction, operands: list[Shape]) -> Flops:
        """Every element of the result is a sum over the contracted dims; batch dims are dims of the result."""
        algorithm = several_passes(instruction)
        self.passes |= {algorithm} if algorithm else set()
        inner = math.prod(operands[0].dims[dim] for dim in instruction.numbers("lhs_contracting_dims"))
        return {product_type(instruction, operands[0]): 2.0 * instruction.shape.elements * inner}

    def _custom_call(self, instruction: Instruction, computation: Computation) -> Flops:
        counted = custom_call_flops(instruction, _shapes(instruction, computation))
        if counted is None:
            self._miss(target(instruction) or "custom-call")
        return counted or {}

    def _miss(self, name: str) -> None:
        self.unknown[name] = self.unknown.get(name, 0) + 1


def add_flops(*counts: Flops) -> Flops:
    """The sum, dtype by dtype."""
    total: Flops = {}
    for count in counts:
        for dtype, flops in count.items():
            total[dtype] = total.get(dtype, 0.0) + flops
    return total


def _add_both(counts: Iterable[tuple[Flops, Flops]]) -> tuple[Flops, Flops]:
    pairs = list(counts)
    return add_flops(*(all_ for all_, _ in pairs)), add_flops(*(convolutions for _, convolutions in pairs))


def _shapes(instruction: Instruction, computation: Computation) -> list[Shape]:
    return [operand.shape for operand in computation.operands(instruction)]
