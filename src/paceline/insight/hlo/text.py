"""The parser: XLA's text of a module into computations and instructions.

Owns: the grammar, for scheduled programs (`Compiled.as_text`) and lowered ones (`Lowered.as_text(dialect="hlo")`); the
lookup of who uses and who calls what.
Not here: what an instruction means.
Invariant: every instruction is read, in the order of the text, which is the schedule of a scheduled program.

An instruction is one line: ``ROOT %name = TYPE opcode(%operand, ...), attribute=value, ...``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

from paceline.insight.hlo.shapes import ProgramTextError, Shape, Type, arrays, parse_type, split_top

_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(|\S+ )")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{\s*$")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_PAIRS = frozenset({
    "async", "copy", "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast", "ragged-all-to-all", "send", "recv",
})  # fmt: skip
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_NAMED_LINE = re.compile(rf"^\s+(?:ROOT )?%?([\w.\-]+) = .*?{_OP_NAME.pattern}", re.MULTILINE)
_BRACKETS = re.compile(r"[()]")
_CALLING = frozenset({
    "fusion", "call", "while", "conditional", "map", "reduce", "reduce-window", "scatter", "select-and-scatter", "sort",
    "custom-call", "async-start", "all-reduce", "all-reduce-start", "reduce-scatter", "reduce-scatter-start",
})  # fmt: skip
_INDEX = re.compile(r"\bindex=(\d+)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")


@dataclass(slots=True)
class Instruction:
    """One instruction.

    Args:
      name: unique in the module.
      type_text: of the result, as spelled.
      opcode: ``dot``, ``fusion``, ``all-reduce-start``, ...
      operands: names of instructions of the same computation; of a parameter or constant, what stands in the brackets.
      attributes: the rest of the line, unparsed.
      is_root: whether its value is the computation's.
    """

    name: str
    type_text: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @property
    def type(self) -> Type:
        """Of the result."""
        return parse_type(self.type_text)

    @property
    def shape(self) -> Shape:
        """Of the result; of a tuple, of its first array."""
        return next(arrays(self.type), Shape("token", ()))

    def attribute(self, name: str) -> str | None:
        """What stands behind ``name=``, up to the next comma that no bracket encloses; None if there is none."""
        found = _named(name).search(self.attributes)
        return None if found is None else _value(self.attributes[found.end() :])

    def numbers(self, name: str) -> tuple[int, ...]:
        """The integers of a list attribute such as ``lhs_contracting_dims={0,1}``; empty if it is absent."""
        return tuple(int(number) for number in re.findall(r"-?\d+", self.attribute(name) or ""))

    @property
    def index(self) -> int:
        """Of a ``get-tuple-element``, which."""
        found = _INDEX.search(self.attributes)
        assert found is not None, "XLA always prints it"
        return int(found[1])

    @property
    def called(self) -> tuple[str, ...]:
        """Computations that it calls; of a conditional its branches, of a loop condition and body, as spelled."""
        if self.opcode not in _CALLING:
            return ()
        branches = [name.strip(" %") for found in _BRANCHES.findall(self.attributes) for name in found.split(",")]
        return (*_CALLED.findall(self.attributes), *branches)

    @property
    def op_name(self) -> str:
        """Where the user's program made it: ``jit(step)/shard_map/psum``; empty if the compiler did."""
        found = _OP_NAME.search(self.attributes)
        return "" if found is None else _unescaped(found[1])


@dataclass
class Computation:
    """Instructions in order, the last value being that of `root`."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def root(self) -> Instruction:
        """The instruction whose value the computation has."""
        return next((one for one in self.instructions if one.is_root), self.instructions[-1])

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Parameters by number."""
        return {int(one.operands[0]): one for one in self.instructions if one.opcode == "parameter"}

    @functools.cached_property
    def users(self) -> dict[str, list[tuple[Instruction, int]]]:
        """For each value, the instructions that take it and as which operand; but see `elements`."""
        found: dict[str, list[tuple[Instruction, int]]] = {}
        for instruction in self.instructions:
            if instruction.opcode != "get-tuple-element":
                for position, operand in enumerate(instruction.operands):
                    found.setdefault(operand, []).append((instruction, position))
        return found

    @functools.cached_property
    def elements(self) -> dict[tuple[str, int], list[Instruction]]:
        """For each tuple and place in it, the instructions ``get-tuple-element`` that take that element out."""
        found: dict[tuple[str, int], list[Instruction]] = {}
        for one in self.instructions:
            if one.opcode == "get-tuple-element":
                found.setdefault((one.operands[0], one.index), []).append(one)
        return found

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions whose values it takes."""
        return [self.by_name[name] for name in instruction.operands if name in self.by_name]


@dataclass
class Module:
    """A program.

    Args:
      header: its first line.
      computations: by name.
      entry: name of the one that runs.
    """

    header: str
    computations: dict[str, Computation]
    entry: str

    @functools.cached_property
    def callers(self) -> dict[str, tuple[Computation, Instruction]]:
        """For each computation the first instruction that calls it, and where."""
        found: dict[str, tuple[Computation, Instruction]] = {}
        for computation in self.computations.values():
            for instruction in computation.instructions:
                for called in instruction.called:
                    found.setdefault(called, (computation, instruction))
        return found

    def header_number(self, name: str, default: int) -> int:
        """An integer of the first line, such as ``num_partitions=8``."""
        found = re.search(rf"\b{name}=(\d+)", self.header)
        return default if found is None else int(found[1])

    @property
    def is_scheduled(self) -> bool:
        """Whether the order of instructions is the order in which they run."""
        return "is_scheduled=true" in self.header


def parse_module(text: str) -> Module:
    """Read a program.

    Raises: ProgramTextError: not a program as XLA prints it.
    """
    computations: dict[str, Computation] = {}
    header, entry, current = "", "", None
    for line in text.splitlines():
        if line.startswith(" "):
            if current is not None and (instruction := _instruction(line)) is not None:
                current.instructions.append(instruction)
        elif line.startswith("HloModule"):
            header = line
        elif line.endswith("{") and (found := _HEADER.match(line)):
            current = computations[found[2]] = Computation(found[2])
            entry = found[2] if found[1] else entry
        elif line.startswith("}"):
            current = None
    if not header or entry not in computations or not computations[entry].instructions:
        raise ProgramTextError(
            what=f"text that is no compiled program; it begins with {text[:60]!r}",
            why="there is nothing in it that could be counted",
            fix="give the text of jax.jit(f).lower(...).compile().as_text(), or of "
            ".lower(...).as_text(dialect='hlo') for a program that is not compiled",
        )
    return Module(header, computations, entry)


def op_names(text: str) -> dict[str, str]:
    """`Instruction.op_name` of every instruction that has one, by its name: a tenth of the time of reading the text."""
    return {found[1]: _unescaped(found[2]) for found in _NAMED_LINE.finditer(text)}


def _unescaped(op_name: str) -> str:
    return op_name.replace("\\'", "'")


def _instruction(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(line)
    if found is None:
        return None
    start = found.start(3)
    end = _closing(line, start) if found[3] == "(" else found.end(3)
    opcode = _OPCODE.match(line, end)
    if opcode is None:
        raise ProgramTextError(
            what=f"an instruction of a compiled program that cannot be read: {line.strip()[:80]!r}",
            why="whatever it computes or sends would be missing from every count",
            fix="use jax 0.10 to 0.12, whose programs this version of Paceline reads",
        )
    close = _closing(line, opcode.end() - 1)
    inside = line[opcode.end() : close - 1]
    operands = (inside,) if opcode[1] in ("parameter", "constant") else _operands(inside)
    name, type_text = _synchronous(opcode[1], line[start:end].strip())
    return Instruction(found[2], type_text, name, operands, line[close:], bool(found[1]))


def _synchronous(opcode: str, type_text: str) -> tuple[str, str]:
    """Opcode and type of a kernel that runs beside others, ``fusion-start``, as if it ran where it starts.

    Its ``-done`` only hands the value on. Collectives and copies keep their pairs.
    """
    base, _, end = opcode.rpartition("-")
    if end not in ("start", "done") or base in _PAIRS:
        return opcode, type_text
    return (base, split_top(type_text[1:-1])[1]) if end == "start" else ("async-done", type_text)


def _operands(inside: str) -> tuple[str, ...]:
    """Names, whether or not their types stand before them."""
    if not inside:
        return ()
    if "(" in inside or "[" in inside or "/*" in inside:
        return tuple(part.split(" ")[-1].lstrip("%") for part in split_top(inside))
    return tuple(part.strip(" %") for part in inside.split(","))


@functools.cache
def _named(attribute: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w\"]){attribute}=")


def _closing(line: str, start: int) -> int:
    """Index behind the bracket that closes the one at `start`."""
    depth = 0
    for found in _BRACKETS.finditer(line, start):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    return len(line)


def _value(text: str) -> str:
    """What stands in `text` up to the first comma outside of brackets and quotes."""
    depth, quoted = 0, False
    for position, sign in enumerate(text):
        if sign == '"' and text[position - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif sign in "({[":
            depth += 1
        elif sign in ")}]":
            depth -= 1
        elif sign == "," and depth == 0:
            return text[:position].strip()
    return text.strip()
