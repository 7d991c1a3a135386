"""One compilation for each content of a program."""

from __future__ import annotations

import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from paceline.insight.compiling.cache import ProgramCache
from paceline.insight.compiling.program import CompileError, compile_program, program_key
from paceline.insight.compiling.target import Target
from paceline.topology.mesh import data_mesh

SOURCE = """
def step(w, x):
    return w - (x @ w).sum(0)
"""


def lowered(*, lines_above: int = 0, rows: int = 8, split: bool = True, donate: bool = False) -> Any:
    """A step whose source stands so many lines further down in another file."""
    names: dict[str, Any] = {}
    exec(compile("\n" * lines_above + textwrap.dedent(SOURCE), f"file{lines_above}.py", "exec"), names)
    mesh = data_mesh(jax.devices()[:2])
    whole, rows_split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    arguments = (
        jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=whole),
        jax.ShapeDtypeStruct((rows, 16), jnp.float32, sharding=rows_split if split else whole),
    )
    return jax.jit(names["step"], donate_argnums=(0,) if donate else ()).lower(*arguments)


def test_the_second_call_compiles_nothing(tmp_path, monkeypatch):
    """Same text, memory and seconds, said to be from the cache; `compile` is not called."""
    cache = ProgramCache(tmp_path)
    first = compile_program(lowered(), cache=cache)
    assert first.platform == "cpu" and "ENTRY" in first.text and first.memory is not None
    assert first.memory.argument_bytes == 16 * 16 * 4 + 4 * 16 * 4  # of one device: w whole, half of 8 rows
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_, **__: pytest.fail("compiled again"))
    second = compile_program(lowered(), cache=cache)
    assert second.from_cache and not first.from_cache
    assert (second.text, second.memory, second.compile_s) == (first.text, first.memory, first.compile_s)


def test_a_cache_that_is_torn_is_compiled_over(tmp_path):
    """The entry is cut off: compiled again, and read the time after."""
    cache = ProgramCache(tmp_path)
    compile_program(lowered(), cache=cache)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:40])
    assert not compile_program(lowered(), cache=cache).from_cache
    assert compile_program(lowered(), cache=cache).from_cache


def test_files_and_lines_of_the_source_do_not_matter():
    """The same function, 50 lines further down in another file, has the same key."""
    assert program_key(lowered()) == program_key(lowered(lines_above=50))


def test_all_that_the_compiler_is_told_matters(monkeypatch):
    """Rows, sharding, donation, option, target, nodes and XLA_FLAGS each give another key; all eight differ."""
    target = Target("gpu_device_info {}", 2, 2)
    keys = [
        program_key(lowered()),
        program_key(lowered(rows=16)),
        program_key(lowered(split=False)),
        program_key(lowered(donate=True)),
        program_key(lowered(), compiler_options={"xla_backend_optimization_level": 1}),
        program_key(lowered(), target=target),
        program_key(lowered(), target=Target("gpu_device_info {}", 2, 1)),
    ]
    monkeypatch.setenv("XLA_FLAGS", "--xla_something=1")
    keys.append(program_key(lowered()))
    assert len(set(keys)) == len(keys)


def test_an_option_that_the_compiler_does_not_know_is_said(tmp_path):
    """Named in the message, with the fix; nothing is kept."""
    with pytest.raises(CompileError, match="xla_no_such_flag") as caught:
        compile_program(lowered(), cache=ProgramCache(tmp_path), compiler_options={"xla_no_such_flag": 1})
    assert "leave the compiler option out" in caught.value.fix
    assert not list(tmp_path.iterdir())


def test_a_compiler_out_of_memory_is_said_with_the_way_out(monkeypatch):
    """The first line of the cause, and a smaller batch as the fix."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 90 GB needed\n  a stack that nobody reads")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    with pytest.raises(CompileError, match="RESOURCE_EXHAUSTED: 90 GB needed") as caught:
        compile_program(lowered())
    assert "stack" not in caught.value.what
    assert "smaller --batch" in caught.value.fix
