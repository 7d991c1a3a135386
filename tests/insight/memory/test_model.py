"""Peak memory for batch sizes that were not compiled."""

from __future__ import annotations

import pytest

from paceline.engine.parallel import Parallel
from paceline.insight.memory.accounting import account_state
from paceline.insight.memory.model import MemoryModel
from tests.insight.memory.steps import ROWS, compiled, state_of

STEP = Parallel(scheme="per_device")


def peak(rows: int, parallel: Parallel = STEP) -> int:
    """Of one of two devices, from the compiler."""
    return compiled(parallel, rows=2 * rows, devices=2).allocated_bytes


@pytest.mark.parametrize("rows", [96, 160, 320])
def test_between_and_beyond_compiled_sizes_it_is_within_three_percent(rows):
    """Compiled at 64, 128 and 256 rows a device; asked for one of each interval and for one beyond."""
    model = MemoryModel({size: peak(size) for size in (64, 128, 256)})
    assert model.peak(rows) == pytest.approx(peak(rows), rel=0.03)
    assert model.is_near(rows) == (rows < 256)


def test_microbatches_take_the_memory_of_their_own_rows():
    """512 rows in 4 microbatches: the temporaries of 128 rows, a sum of gradients more, and all rows twice; 5 %."""
    sizes = account_state(state_of(STEP), parallel=STEP, num_devices=2, batch=ROWS, rows=2)
    model = MemoryModel({size: peak(size) for size in (64, 128, 256)}, 1, sizes.gradients, sizes.batch)
    accumulated = peak(512, Parallel(scheme="per_device", accumulation=4))
    assert model.peak(512, accumulation=4) == pytest.approx(accumulated, rel=0.05)
    assert accumulated < 0.6 * peak(512)


def test_it_is_the_compilers_number_where_there_is_one():
    """At compiled sizes exactly that; between, the line: 100 and 300 at 2 and 4 are 200 at 3."""
    model = MemoryModel({2: 100, 4: 300, 16: 1000})
    assert [model.peak(rows) for rows in (2, 3, 4, 16)] == [100, 200, 300, 1000]
    assert model.peak(1) == 0  # the line of the first two
    assert model.peak(28) == 1700  # the line of the last two
    assert [model.is_near(rows) for rows in (1, 3, 4, 8, 32)] == [False, True, True, False, False]


def test_microbatches_on_paper():
    """10 B fixed, 5 B an activation row, 1 B a batch row, gradients 4 B; 4 parts of 8 rows: 10 + 2 * 5 + 2 * 8 + 4."""
    model = MemoryModel({1: 16, 2: 22}, gradients=4, row_bytes=1)
    assert model.peak(8) == 10 + 8 * 6
    assert model.peak(8, accumulation=4) == 10 + 2 * 5 + 2 * 8 + 4
    accumulated = MemoryModel({4: 10 + 5 + 8 + 4, 8: 10 + 10 + 16 + 4}, accumulation=4, gradients=4, row_bytes=1)
    assert accumulated.peak(16) == 10 + 20 + 32 + 4
    assert accumulated.peak(2, accumulation=1) == 10 + 2 * 6


def test_rows_for_a_limit_are_the_most_that_fit():
    """100 + 10 b: 89 rows in 999 B; none in 105 B."""
    model = MemoryModel({1: 110, 2: 120})
    assert model.rows_for(999) == 89
    assert model.rows_for(105) == 0
