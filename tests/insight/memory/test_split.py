"""The parts of a step's memory."""

from __future__ import annotations

from paceline.engine.parallel import Parallel
from paceline.insight.memory.accounting import Accounting, account_state
from paceline.insight.memory.split import split_memory
from paceline.insight.memory.stats import MemoryStats
from tests.insight.memory.steps import ROWS, compiled, state_of

EXPECTED = Accounting(
    params=40, opt_state=80, ema=0, model_state=6, counters=20, batch=30, gradients=40, compute_params=20
)


def test_the_parts_of_a_compiled_step_add_up_to_its_peak():
    """zero1 with adam on 4 devices: every part named, nothing left over, two batches wait."""
    parallel = Parallel(placement="zero1")
    expected = account_state(state_of(parallel), parallel=parallel, num_devices=4, batch=ROWS, rows=16)
    memory = split_memory(compiled(parallel, rows=16), expected=expected, waiting=2 * expected.batch)
    parts = memory.parts()
    assert sum(parts.values()) == memory.peak
    assert "not accounted for" not in parts
    assert parts["parameters"] == expected.params and parts["batches ahead"] == 2 * 4 * 261


def test_gradients_are_taken_out_of_the_temporaries():
    """Of 100 B 40 are gradients; a block smaller than them is all gradients."""
    memory = split_memory(MemoryStats(176, 150, 146, 100), expected=EXPECTED, waiting=60)
    assert (memory.gradients, memory.activations) == (40, 60)
    assert memory.peak == 176 + 4 + 100 + 60
    small = split_memory(MemoryStats(176, 150, 146, 30), expected=EXPECTED)
    assert (small.gradients, small.activations) == (30, 0)


def test_what_the_program_does_not_use_is_held_all_the_same():
    """The compiler dropped 30 B of a batch that the loss does not read; the device still has them."""
    memory = split_memory(MemoryStats(146, 0, 0, 100), expected=EXPECTED)
    assert memory.arguments == 176 and memory.compiler_arguments == 146
    assert sum(memory.parts().values()) == memory.peak == 276


def test_without_the_arithmetic_there_is_no_split():
    """Arguments and temporaries as the compiler gives them; constants count as temporaries."""
    memory = split_memory(MemoryStats(176, 150, 146, 100, other_bytes=5))
    assert memory.parts() == {"arguments": 176, "outputs": 4, "temporaries": 105}
