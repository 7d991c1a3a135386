"""The interval of a number from the steps of one run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.dashboard.compare.spread import block_interval


def mean(part):
    return float(part.mean())


def test_the_interval_is_that_of_the_means_of_ten_blocks():
    """Blocks of 2 with means 0 ... 9: half the width is 2.262 x sd(0 ... 9) / sqrt(10)."""
    values = np.repeat(np.arange(10.0), 2)
    half = 2.262 * math.sqrt(110 / 12) / math.sqrt(10)
    assert block_interval(values, mean, at=4.5) == pytest.approx((4.5 - half, 4.5 + half))


def test_the_earliest_values_are_left_out_where_blocks_do_not_divide():
    """Of 25 values the first 5 are in no block: whatever they are, the interval is the same."""
    values = np.concatenate([np.full(5, 1e6), np.repeat(np.arange(10.0), 2)])
    assert block_interval(values, mean, at=4.5) == block_interval(values[5:], mean, at=4.5)


def test_too_few_values_have_no_interval():
    """19 values make no ten blocks of two."""
    assert block_interval(np.arange(19.0), mean, at=9.0) is None
    assert block_interval(np.arange(20.0), mean, at=9.5) is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_has_no_interval(bad):
    values = np.arange(20.0)
    values[7] = bad
    assert block_interval(values, mean, at=9.5) is None
    assert block_interval(np.arange(20.0), mean, at=bad) is None


def test_the_interval_holds_the_mean_of_steps_that_follow_each_other():
    """Steps that are alike their neighbours (r = 0.9): the true mean is inside in 95 of 100 series, within 3 sigma.

    Independent values would give an interval that holds it in about 35 of 100.
    """
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        noise = rng.normal(size=3000)
        series = np.empty(3000)
        series[0] = noise[0] / math.sqrt(1 - 0.81)
        for place in range(1, 3000):
            series[place] = 0.9 * series[place - 1] + noise[place]
        found = block_interval(series, mean, at=mean(series))
        assert found is not None
        low, high = found
        held += low <= 0 <= high
    assert held / 300 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 300)


def test_numbers_whose_squares_are_beyond_a_float_have_an_interval_too():
    """The same as of numbers that are smaller by a power of two."""
    values = np.arange(1.0, 101.0)
    small = block_interval(values, mean, at=mean(values))
    huge = values * 2.0**1000
    with np.errstate(over="raise"):
        found = block_interval(huge, mean, at=mean(huge))
    assert small is not None and found == tuple(end * 2.0**1000 for end in small)
