"""Sums, quantiles and rates of steps."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.telemetry.summary import KEPT_STEPS, RECENT_STEPS, StepClock, quantile


def clock_of(steps_s, wait_s=0.0, rows=10):
    clock = StepClock()
    for step_s in steps_s:
        clock.add(step_s, wait_s=wait_s, rows=rows)
    return clock


def test_three_steps_give_the_numbers_that_a_pencil_gives():
    """1 s, 2 s and 5 s with 10 rows and 0.4 s of waiting each."""
    summary = clock_of([1.0, 2.0, 5.0], wait_s=0.4).summary()
    assert (summary.steps, summary.rows, summary.total_s) == (3, 30, 8.0)
    assert summary.samples_per_s == 30 / 8
    assert summary.step_p50_s == 2.0
    assert summary.step_p95_s == pytest.approx(4.7)  # 0.95 * 2 = 1.9: 2 + 0.9 * (5 - 2)
    assert summary.step_max_s == 5.0
    assert summary.input_wait_share == pytest.approx(0.15)


def test_the_rate_is_rows_over_time_and_not_a_mean_of_rates():
    """One fast and one slow step: 20 rows in 10 s; the mean of the two rates would be 5.6."""
    assert clock_of([1.0, 9.0]).summary().samples_per_s == 2.0


def test_without_a_step_every_number_is_unknown():
    """NaN, not zero, which would read as infinitely fast or stopped."""
    clock = StepClock()
    summary = clock.summary()
    for number in (summary.samples_per_s, summary.step_p50_s, summary.step_max_s, summary.input_wait_share):
        assert math.isnan(number)
    assert math.isnan(clock.recent_samples_per_s())
    assert math.isnan(clock.remaining_s(10))


def test_the_recent_rate_forgets_what_is_long_past():
    """After RECENT_STEPS steps of 0.5 s, the 100 s before them no longer count."""
    clock = clock_of([100.0] + [0.5] * RECENT_STEPS)
    assert clock.recent_samples_per_s() == 20.0
    assert clock.remaining_s(7) == 3.5


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values, share):
    """Linear between neighbours, rtol 1e-9."""
    assert quantile(sorted(values), share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9, abs=1e-9)


def test_memory_stays_bounded_and_quantiles_stay_true():
    """Ten times more steps than are kept: p50 and p95 of a uniform distribution within 5 standard errors."""
    draw = random.Random(1)
    clock = clock_of([draw.random() for _ in range(10 * KEPT_STEPS)])
    summary = clock.summary()
    assert len(clock._kept_s) == KEPT_STEPS
    assert summary.step_p50_s == pytest.approx(0.50, abs=5 * (0.25 / KEPT_STEPS) ** 0.5)
    assert summary.step_p95_s == pytest.approx(0.95, abs=5 * (0.95 * 0.05 / KEPT_STEPS) ** 0.5)


@pytest.mark.parametrize("early, late, median_s", [(6, 4, 1.0), (4, 6, 3.0)])
def test_early_and_late_steps_count_alike_in_the_sample(early, late, median_s):
    """The speed of 60 % of the steps is the median, wherever in the run they lie (20 standard errors away)."""
    clock = clock_of([1.0] * early * KEPT_STEPS + [3.0] * late * KEPT_STEPS)
    assert clock.summary().step_p50_s == median_s


def test_sampling_leaves_the_programs_random_numbers_alone():
    """The same seed gives the same draw with and without steps in between."""
    random.seed(3)
    expected = random.random()
    random.seed(3)
    clock_of([1.0] * (KEPT_STEPS + 10))
    assert random.random() == expected
