"""Bytes that a kernel reads from and writes to the device's memory.

Owns: the rule for each kind of top-level instruction. A fusion is one kernel: what it computes inside stays inside.
Not here: caches. A value read twice by one kernel counts once; by two kernels, twice.
Invariant: what only renames a value costs nothing; a slice costs the slice, an update in place costs the update twice.
"""

from __future__ import annotations

from paceline.insight.hlo.custom_calls import is_marker, result_without_workspace
from paceline.insight.hlo.shapes import bytes_of
from paceline.insight.hlo.text import Computation, Instruction, Module

FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency", "partition-id",
    "replica-id", "opt-barrier", "optimization-barrier", "domain", "get-dimension-size", "async-update",
})  # fmt: skip
"""Opcodes that run no kernel."""

_SLICING = ("dynamic-slice", "slice", "gather")
_RENAMING = ("bitcast", "reshape", "convert", "copy")


def kernel_bytes(instruction: Instruction, *, computation: Computation, module: Module) -> int:
    """Read plus written by a top-level instruction."""
    opcode = instruction.opcode
    operands = {operand.name: operand for operand in computation.operands(instruction)}
    if opcode in FREE or opcode.endswith("-done") or is_marker(instruction):
        return 0
    if opcode == "fusion" and instruction.called and instruction.called[0] in module.computations:
        return _fusion_bytes(instruction, computation, module.computations[instruction.called[0]])
    if opcode in _SLICING:
        indices = [operand for operand in list(operands.values())[1:] if opcode == "gather"]
        return 2 * bytes_of(instruction.type) + sum(bytes_of(index.type) for index in indices)
    if opcode == "dynamic-update-slice":
        return 2 * bytes_of(computation.operands(instruction)[1].type)
    if opcode == "scatter":  # reads indices and updates, reads and writes the rows that they change
        given = computation.operands(instruction)
        count = (len(given) - 1) // 2
        return bytes_of(given[count].type) + 3 * sum(bytes_of(update.type) for update in given[count + 1 :])
    read = sum(bytes_of(operand.type) for operand in operands.values())
    if opcode == "custom-call":
        return read + result_without_workspace(instruction)
    if opcode == "copy-start":
        return 2 * read
    return read + bytes_of(instruction.type)


def _fusion_bytes(instruction: Instruction, computation: Computation, body: Computation) -> int:
    read: dict[str, int] = {}
    for position, operand in enumerate(instruction.operands):
        parameter = body.parameters.get(position)
        source = computation.by_name.get(operand)
        if parameter is not None and source is not None:
            read[operand] = min(bytes_of(source.type), read.get(operand, 0) + _read_bytes(parameter, body))
    return sum(read.values()) + _written_bytes(body.root, body)


def _read_bytes(value: Instruction, body: Computation) -> int:
    """Of a value that a kernel finds in memory, what it reads: all, unless every use takes a slice or updates one."""
    total = 0
    for user, position in body.users.get(value.name, []):
        if user.opcode in _SLICING and position == 0:
            total += bytes_of(user.type)
        elif user.opcode == "dynamic-update-slice" and position == 0 and _is_result(user, body):
            continue
        elif user.opcode == "scatter" and position == 0 and _is_result(user, body):
            total += _written_bytes(user, body)
        elif user.opcode in _RENAMING and not user.is_root:
            inner = _read_bytes(user, body)
            total += inner * bytes_of(value.type) // max(1, bytes_of(user.type))
        else:
            return bytes_of(value.type)
    return min(total, bytes_of(value.type))


def _is_result(value: Instruction, body: Computation) -> bool:
    """Whether a fusion writes the value out, so that an update of it can be done in place."""
    while not value.is_root:
        users = body.users.get(value.name, [])
        if len(users) != 1 or users[0][0].opcode not in (*_RENAMING, "tuple"):
            return False
        value = users[0][0]
    return True


def _written_bytes(value: Instruction, body: Computation) -> int:
    if value.opcode == "tuple":
        return sum(_written_bytes(part, body) for part in body.operands(value))
    source = value
    while source.opcode in _RENAMING and (given := body.operands(source)):
        source = given[0]
    if source.opcode == "dynamic-update-slice":
        update = bytes_of(body.operands(source)[1].type)
        return update * bytes_of(value.type) // max(1, bytes_of(source.type))
    if source.opcode == "scatter":
        return sum(bytes_of(update.type) for update in body.operands(source)[2:])
    return bytes_of(value.type)
