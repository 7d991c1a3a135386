"""Compiled programs for the tests: stored ones, and functions compiled here.

Owns: where a stored text lies, which versions and platforms there are.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from paceline.insight.hlo.program import Program, read_program

PROGRAMS = Path(__file__).parent / "programs"
COMPILERS = sorted(path.name for path in PROGRAMS.iterdir())
"""``jax0.10-cpu``, ``jax0.10-cuda``, ...; 4 devices on the CPU, 8 GPUs."""
CUDA = [name for name in COMPILERS if name.endswith("cuda")]

MLP = {
    "params.first.b": 256, "params.first.w": 8192, "params.second.b": 256, "params.second.w": 65536,
    "params.third.b": 8, "params.third.w": 2048,
}  # fmt: skip
"""Elements of each leaf of the stored MLP; together 76,296."""


def stored_text(name: str, compiler: str) -> str:
    """What the compiler made of a step of `make_programs`."""
    return gzip.decompress((PROGRAMS / compiler / f"{name}.txt.gz").read_bytes()).decode()


@functools.cache
def stored(name: str, compiler: str) -> Program:
    """That program, read; `jax.pmap` only numbers its arguments, so they are named here."""
    leaves = [name.removeprefix("params.") for name in MLP]
    names = ["step", "skipped", "empty", *MLP, *(f"opt_state.0.trace.{leaf}" for leaf in leaves), "rng"]
    return read_program(stored_text(name, compiler), parameters=[*names, "batch.x", "batch.y", "valid"])


def compiled(function: Callable[..., Any], *arguments: Any) -> Program:
    """A function compiled here, for one CPU device."""
    return read_program(jax.jit(function).lower(*arguments).compile().as_text() or "")


def lowered(function: Callable[..., Any], *arguments: Any) -> Program:
    """A function that is not compiled."""
    return read_program(jax.jit(function).lower(*arguments).as_text(dialect="hlo"))


def array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    """An abstract array."""
    return jax.ShapeDtypeStruct(shape, dtype)
