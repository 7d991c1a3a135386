"""Timelines for rows that were not compiled, against lines drawn by hand."""

from __future__ import annotations

import pytest

from paceline.insight.plan.rows import timeline_at
from paceline.insight.timeline import Collective, Done, Repeat, Start, Work, each_collective, total_work

GRADIENTS = Collective("sum", "all-reduce", 400, "float32", 8)


def step(rows: int):
    """3 flops a row in a loop of 2 trips; 10 bytes a row and 100 of parameters; an update of 50 bytes."""
    body = Work({"bfloat16": 3.0 * rows}, 10.0 * rows + 100.0, 1, "layer")
    return (Repeat(2, (body,)), Start(GRADIENTS), Done("sum"), Work({}, 50.0, 1, "update"))


def test_each_kernel_is_on_its_own_line():
    """5 rows from 2 and 4: 30 flops, 2 (50 + 100) + 50 bytes; the update and the message stay."""
    made = timeline_at(5, first=(2, step(2)), second=(4, step(4)))
    assert total_work(made).flops == {"bfloat16": 30.0}
    assert total_work(made).bytes == 350.0
    assert made[-1] == Work({}, 50.0, 1, "update")
    assert [one for one, _ in each_collective(made)] == [GRADIENTS]


@pytest.mark.parametrize("rows", [2, 4])
def test_a_compiled_number_of_rows_gives_the_compiled_timeline(rows):
    assert timeline_at(rows, first=(2, step(2)), second=(4, step(4))) == step(rows)


def test_kernels_that_differ_in_their_number_alone_are_the_same():
    """XLA numbers its instructions anew for each size: fusion.3 and fusion.12 are put on one line, their update too."""
    first = (Work({"float32": 4.0}, 20.0, 1, "fusion.3"), Work({}, 50.0, 1, "update.1"))
    second = (Work({"float32": 8.0}, 40.0, 1, "fusion.12"), Work({}, 50.0, 1, "update.7"))
    made = timeline_at(3, first=(2, first), second=(4, second))
    assert made == (Work({"float32": 6.0}, 30.0, 1, "fusion.3"), Work({}, 50.0, 1, "update.1"))


def test_programs_with_other_kernels_are_scaled_as_a_whole():
    """One kernel with 12 flops and 320 bytes for 2 rows, two with 24 and 500 for 4: at 3 rows 18 and 410."""
    second = (Work({"bfloat16": 12.0}, 250.0), Work({"bfloat16": 12.0}, 250.0))
    made = total_work(timeline_at(3, first=(2, (Work({"bfloat16": 12.0}, 320.0),)), second=(4, second)))
    assert made.total_flops == pytest.approx(18.0)
    assert made.bytes == pytest.approx(410.0)


def test_what_of_the_work_is_of_convolutions_follows_the_rows():
    """Three quarters of 8 flops with 2 rows, of 16 with 4: 9 of 12 at 3, kernel by kernel and as a whole."""
    first, second = ((Work({"float32": f}, 8.0, convolutions={"float32": 0.75 * f}),) for f in (8.0, 16.0))
    for other in (second, (*second, Work({}, 0.0))):
        assert total_work(timeline_at(3, first=(2, first), second=(4, other))).convolutions == {"float32": 9.0}


def test_work_is_never_negative():
    """A line that falls below zero ends there."""
    falling = ((Work({"float32": 10.0}, 10.0),), (Work({"float32": 2.0}, 2.0),))
    made = timeline_at(8, first=(2, falling[0]), second=(4, falling[1]))
    assert total_work(made).total_flops == 0.0
    assert total_work(made).bytes == 0.0
