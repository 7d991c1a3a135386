"""A curve in a row of characters: heights by pencil."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.dashboard.terminal.sparkline import BLOCKS, PLAIN_BLOCKS, sparkline


def test_a_line_that_rises_takes_every_height():
    """Eight steps, eight columns, eight blocks; and the same in plain characters."""
    assert sparkline(range(8), range(8), width=8) == BLOCKS
    assert sparkline(range(8), range(8), width=8, blocks=PLAIN_BLOCKS) == PLAIN_BLOCKS


def test_a_column_is_the_mean_of_its_steps():
    """Steps 1 to 6 in three columns: means 1, 5, 3, which are the lowest, the highest, the middle."""
    drawn = sparkline([1, 2, 3, 4, 5, 6], [0, 2, 4, 6, 3, 3], width=3)
    assert drawn == BLOCKS[0] + BLOCKS[7] + BLOCKS[4]


def test_columns_are_equal_parts_of_the_steps_not_of_the_points():
    """Nothing was recorded from step 3 to 6: the two columns in between are empty."""
    assert sparkline([1, 2, 7, 8], [1, 1, 2, 2], width=4) == BLOCKS[0] + "  " + BLOCKS[7]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_shown_and_leaves_the_scale_alone(odd):
    assert sparkline([1, 2, 3, 4], [0, odd, 1, 0], width=4) == BLOCKS[0] + "!" + BLOCKS[7] + BLOCKS[0]
    assert sparkline([1, 2], [odd, odd], width=4) == "!!"


def test_flat_lines_and_no_line_at_all():
    """Flat is the middle; nothing is nothing."""
    assert sparkline([1, 2, 3], [5, 5, 5], width=3) == BLOCKS[4] * 3
    assert sparkline([], [], width=10) == ""
    assert sparkline([1], [1], width=0) == ""
    assert sparkline([7], [1], width=10) == BLOCKS[4]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(allow_nan=True)), min_size=1, max_size=50),
    st.integers(1, 200),
)
def test_any_curve_fits_its_width(points, width):
    """Whatever the numbers, also where their span is no float."""
    points = sorted(dict(points).items())
    steps, values = zip(*points, strict=True)
    drawn = sparkline(steps, values, width=width)
    assert 1 <= len(drawn) <= width
    assert set(drawn) <= set(BLOCKS) | {"!", " "}
