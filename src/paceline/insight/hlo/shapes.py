"""Types of values in a compiled program: ``f32[8,256]{1,0}``, tuples of them, and their sizes.

Owns: the grammar of types, the names of dtypes as JAX spells them, sizes in bytes.
Invariant: layouts change no size here: what XLA pads on some chips is not padded on CPUs and GPUs.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.base.errors import PacelineError

_FLOATS = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_BITS = {"pred": 8, "bf16": 16, "token": 0, "opaque": 0, "tf32": 32}
_OTHERS = {"pred": "bool", "c64": "complex64", "c128": "complex128"}

_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
_PRIMITIVE = re.compile(r"^(?:[sucf]|f\d+e\d+m)(\d+)")


class ProgramTextError(PacelineError):
    """Text that is no program as XLA prints it, or one newer than this reader."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An array type.

    Args:
      dtype: as XLA spells it: ``bf16``, ``s32``, ``pred``.
      dims: sizes, the upper bound of a dynamic one.
    """

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Size in memory; 4-bit types are packed two a byte."""
        return (self.elements * dtype_bits(self.dtype) + 7) // 8


Type = Shape | tuple[Any, ...]
"""An array, or a tuple of types (`Any` because the checks of annotations in tests know no recursive type)."""


@functools.lru_cache(maxsize=1 << 14)
def parse_type(text: str) -> Type:
    """The type that `text` spells, as ``(f32[2,3]{1,0}, s4[])``.

    Raises: ProgramTextError: it spells none.
    """
    text = text.strip()
    if text.startswith("("):
        return tuple(parse_type(part) for part in split_top(text[1:-1]) if part)
    found = _ARRAY.match(text)
    if found is None:
        if text.startswith(("token", "opaque")):
            return Shape("token", ())
        raise _unreadable(text)
    dims = tuple(int(size.lstrip("<=")) for size in found[2].split(",") if size)
    return Shape(found[1], dims)


def split_top(text: str) -> list[str]:
    """The parts of `text` between commas that no bracket encloses, without comments such as ``/*index=5*/``."""
    if "/*" in text:
        text = re.sub(r"/\*.*?\*/", "", text)
    parts, depth, start = [], 0, 0
    for found in re.finditer(r"[(){}\[\],]", text):
        sign = found[0]
        if sign == ",":
            if depth == 0:
                parts.append(text[start : found.start()].strip())
                start = found.end()
        else:
            depth += 1 if sign in "({[" else -1
    return [*parts, text[start:].strip()]


def arrays(type_: Type) -> Iterator[Shape]:
    """Every array of a type, in order."""
    if isinstance(type_, Shape):
        yield type_
    else:
        for part in type_:
            yield from arrays(part)


def bytes_of(type_: Type) -> int:
    """Size of all its arrays."""
    return sum(shape.bytes for shape in arrays(type_))


@functools.cache
def dtype_bits(dtype: str) -> int:
    """Bits an element takes.

    Raises: ProgramTextError: XLA has no such dtype.
    """
    if dtype in _BITS:
        return _BITS[dtype]
    found = _PRIMITIVE.match(dtype)
    if found is None:
        raise _unreadable(dtype)
    # f8e4m3fn: the digits behind f; s4, c64: those behind the letter.
    return int(re.sub(r"^[a-z]+(\d+).*", r"\1", dtype))


def dtype_name(dtype: str) -> str:
    """As JAX names it: ``bf16`` is bfloat16, ``f8e4m3fn`` float8_e4m3fn, ``s32`` int32, ``pred`` bool."""
    if dtype in _FLOATS or dtype in _OTHERS:
        return _FLOATS.get(dtype) or _OTHERS[dtype]
    if found := re.fullmatch(r"f(\d+)(e\d+m\d+\w*)", dtype):
        return f"float{found[1]}_{found[2]}"
    if found := re.fullmatch(r"([su])(\d+)", dtype):
        return f"{'int' if found[1] == 's' else 'uint'}{found[2]}"
    return dtype


def _unreadable(text: str) -> ProgramTextError:
    return ProgramTextError(
        what=f"a compiled program spells a type {text[:60]!r}",
        why="its size is not known, so neither memory traffic nor messages could be counted",
        fix="use jax 0.10 to 0.12, whose programs this version of Paceline reads",
    )
