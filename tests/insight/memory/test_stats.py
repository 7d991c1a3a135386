"""What the compiler says of a program."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp

from paceline.insight.memory.stats import MemoryStats, memory_stats


def analysis(**sizes: int) -> SimpleNamespace:
    names = ("argument", "output", "alias", "temp", "generated_code")
    fields = {f"{name}_size_in_bytes": sizes.pop(name, 0) for name in names}
    return SimpleNamespace(memory_analysis=lambda: SimpleNamespace(**fields, **sizes))


def test_a_program_holds_arguments_new_outputs_and_its_block():
    """A float32 [100] in and out and a sum: 400 B, 400 + 4 B; donated, the vector needs no memory of its own."""

    def step(x):
        return x + 1, x.sum()

    shape = jax.ShapeDtypeStruct((100,), jnp.float32)
    kept = memory_stats(jax.jit(step).lower(shape).compile())
    reused = memory_stats(jax.jit(step, donate_argnums=0).lower(shape).compile())
    assert kept is not None and reused is not None
    assert kept.argument_bytes == reused.argument_bytes == 400
    assert 404 <= kept.new_output_bytes < 440  # and a table of pointers
    assert kept.new_output_bytes - reused.new_output_bytes == 400
    assert kept.allocated_bytes >= 804


def test_the_compilers_peak_is_not_believed_where_it_leaves_the_block_out():
    """As the CPU reports it: peak 12 of 10 + 8 - 6 and a block of 100; 112 are needed."""
    found = memory_stats(analysis(argument=10, output=8, alias=6, temp=100, peak_memory_in_bytes=12))
    assert found == MemoryStats(10, 8, 6, 100, 0)
    assert found is not None and found.allocated_bytes == 112


def test_constants_count():
    """Of a total of 150 (jax 0.12), or a peak of 150 (0.10), 112 are explained: 38 are constants."""
    sizes = {"argument": 10, "output": 8, "alias": 6, "temp": 100}
    newer = memory_stats(analysis(**sizes, peak_memory_in_bytes=0, total_allocation_bytes=150))
    older = memory_stats(analysis(**sizes, peak_memory_in_bytes=150))
    assert newer == older == MemoryStats(10, 8, 6, 100, 38)
    assert newer is not None and newer.allocated_bytes == 150


def test_a_compiler_that_says_nothing_is_no_zero():
    """None, not a step that takes no memory."""
    assert memory_stats(SimpleNamespace(memory_analysis=lambda: None)) is None
