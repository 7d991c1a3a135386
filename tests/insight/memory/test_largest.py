"""The largest batch that fits."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.engine.parallel import Parallel
from paceline.insight.memory.largest import MemoryFitError, largest_batch
from tests.insight.memory.steps import compiled


class Compiler:
    """Counts what it is asked."""

    def __init__(self, peak: Any) -> None:
        self.asked: list[int] = []
        self._peak = peak

    def __call__(self, rows: int) -> int:
        self.asked.append(rows)
        return self._peak(rows)


@pytest.mark.parametrize("start", [1, 32, 700, 5000])
def test_a_straight_line_takes_few_compilations(start):
    """1000 + 7 b in 10,000 B: 1285 rows, of which the answer is within 3 %, from any start; at most 6 compilations."""
    compiler = Compiler(lambda rows: 1000 + 7 * rows)
    found = largest_batch(compiler, limit_bytes=10_000, start_rows=start)
    assert 1285 / 1.03 <= found.rows <= 1285
    assert found.peak_bytes == 1000 + 7 * found.rows and found.is_bounded
    assert len(compiler.asked) == len(set(compiler.asked)) <= 6
    assert found.compiled == {rows: 1000 + 7 * rows for rows in compiler.asked}


def test_steps_of_a_compiler_do_not_mislead_it():
    """Jumps of 10 % up and down: what is returned was compiled and fits, and 10 % more would not."""
    compiler = Compiler(lambda rows: int((1000 + 7 * rows) * (1.1 if rows // 50 % 2 else 1)))
    found = largest_batch(compiler, limit_bytes=10_000, start_rows=8, most_compilations=12)
    assert found.rows in compiler.asked and found.peak_bytes <= 10_000
    assert min(1000 + 7 * 1.1 * found.rows, 1285) >= 0.9 * 1285 or found.rows >= 0.9 * 1285
    assert len(compiler.asked) <= 12


def test_rows_come_in_multiples():
    """Multiples of 32, at most 1000 rows of data: 992, the last that there are."""
    compiler = Compiler(lambda rows: 1000 + rows)
    found = largest_batch(compiler, limit_bytes=10_000, start_rows=40, multiple=32, most_rows=1000)
    assert found.rows == 992 and not found.is_bounded
    assert all(rows % 32 == 0 for rows in compiler.asked)


def test_a_step_that_does_not_fit_with_one_row_is_refused():
    """1000 B of state in 900: said with both numbers and the way out, after two compilations."""
    compiler = Compiler(lambda rows: 1000 + 7 * rows)
    with pytest.raises(MemoryFitError, match=r"1\.0 kB a device even with 1 row, and 900 B are there") as caught:
        largest_batch(compiler, limit_bytes=900, start_rows=64)
    assert "--placement zero1 or fsdp" in caught.value.fix
    assert compiler.asked == [64, 1]


def test_it_holds_for_the_real_compiler():
    """2 CPU devices, the memory of 256 rows as the limit, in steps of 64: found, after 320 did not fit."""

    def peak(rows: int) -> int:
        return compiled(Parallel(scheme="per_device"), rows=2 * rows, devices=2).allocated_bytes

    found = largest_batch(peak, limit_bytes=peak(256), start_rows=64, multiple=64)
    assert found.rows == 256 and found.is_bounded
    assert len(found.compiled) <= 4
