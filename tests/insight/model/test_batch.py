"""Other batch sizes from one program, by pencil."""

from __future__ import annotations

import pytest

from paceline.insight.model.batch import row_independent, scaled
from paceline.insight.timeline import Collective, Done, Repeat, Start, Timeline, Work, total_work

REDUCE = Collective("gradients", "all-reduce", 4000, "float32", 8)


def program(rows: int) -> Timeline:
    """10 flops and 6 bytes a row, 100 bytes of parameters; twice in a loop, then the optimizer's 300 bytes."""
    body = (Work({"float32": 10.0 * rows}, 6.0 * rows + 100.0, 2),)
    return (Repeat(2, body), Start(REDUCE), Done("gradients"), Work({}, 300.0, 1))


def test_two_batch_sizes_show_what_does_not_grow_with_rows():
    """Two times 100 and 300 bytes are 500; no arithmetic."""
    fixed = row_independent(program(8), program(16), first_rows=8, second_rows=16)
    assert fixed.bytes == pytest.approx(500)
    assert fixed.flops == {"float32": 0.0}


@pytest.mark.parametrize("rows", [2, 4, 32])
def test_a_scaled_program_has_the_totals_of_one_compiled_for_those_rows(rows):
    """From 8 rows to others: flops and bytes of the whole (rtol 1e-12)."""
    fixed = row_independent(program(8), program(16), first_rows=8, second_rows=16)
    found, expected = total_work(scaled(program(8), rows / 8, fixed=fixed)), total_work(program(rows))
    assert found.flops == pytest.approx(expected.flops)
    assert found.bytes == pytest.approx(expected.bytes)
    assert found.kernels == expected.kernels


def test_collectives_and_order_stay():
    """Half the rows send the same gradients."""
    half = scaled(program(8), 0.5, fixed=Work())
    assert half[1:3] == (Start(REDUCE), Done("gradients"))


def test_a_factor_of_one_changes_nothing():
    """Bit for bit."""
    assert scaled(program(8), 1.0, fixed=Work({}, 500.0)) == program(8)
