"""Medians with their intervals, the order of sides, the bare loop."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from paceline.measure import timing
from paceline.measure.timing import drive, in_turn, median_interval, ratio_interval, steps_for


@pytest.mark.parametrize(
    ("size", "low", "high", "coverage"),
    [(1, 0, 0, 0.0), (2, 0, 1, 0.5), (3, 0, 2, 0.75), (5, 0, 4, 0.9375), (6, 0, 5, 0.96875), (8, 0, 7, 0.9921875),
     (9, 1, 7, 0.9609375), (15, 3, 11, 0.96484375)],
)  # fmt: skip
def test_the_interval_of_a_median_lies_between_order_statistics(size, low, high, coverage):
    """The places and the coverage of the sign test's table; n = 9: 2nd to 8th, 1 - 2 (1 + 9) / 512."""
    values = [float(number) for number in range(size)]
    random.Random(0).shuffle(values)
    assert median_interval(values) == (float(np.median(values)), low, high, coverage)


def test_the_interval_covers_the_median_as_often_as_it_says():
    """2,000 samples of nine skewed values, whose median is log 2: 96.1 % within 1.5 points, three standard errors."""
    draws = np.random.default_rng(0).exponential(size=(2000, 9))
    found = [median_interval(row.tolist()) for row in draws]
    covered = np.mean([interval.low <= math.log(2) <= interval.high for interval in found])
    assert abs(covered - found[0].coverage) < 0.015


def test_nothing_measured_is_no_number():
    """No value, or one that is not finite: NaN and no coverage, not a number that looks measured."""
    for values in ([], [1.0, math.nan, 2.0], [math.inf]):
        found = median_interval(values)
        assert math.isnan(found.value) and found.coverage == 0


def test_a_ratio_and_its_reciprocal_tell_the_same():
    """An even number of pairs, whose middle is a geometric mean: 2 and 8 give 4, and 1/4 the other way round."""
    there, back = ratio_interval([2.0, 8.0], [1.0, 1.0]), ratio_interval([1.0, 1.0], [2.0, 8.0])
    assert there.value == pytest.approx(4) and back.value == pytest.approx(0.25)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))


def test_sides_turn_around_from_repeat_to_repeat():
    """A drift of the machine then favours no side."""
    assert [in_turn("abc", repeat=number) for number in range(3)] == [list("abc"), list("cba"), list("abc")]


def test_steps_fill_the_time():
    """A tenth of a second in steps of 2 ms; never fewer than asked for."""
    assert steps_for(2e-3, seconds=0.1) == 50
    assert steps_for(1.0, seconds=0.1, at_least=4) == 4


class _Clock:
    """A machine on which each step takes one second, unless it is the first, which compiles for a minute."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waited: list[int] = []

    def step(self, state, batch):
        done_s = max(self.now_s, state[1]) + (60.0 if state[0] == 0 else 1.0)
        return (state[0] + 1, done_s), _Result(self, state[0], done_s)


class _Result:
    def __init__(self, clock: _Clock, number: int, done_s: float) -> None:
        self._clock, self._number, self._done_s = clock, number, done_s

    def block_until_ready(self) -> None:
        self._clock.waited.append(self._number)
        self._clock.now_s = max(self._clock.now_s, self._done_s)


def test_a_loop_waits_for_its_results_and_leaves_out_the_warm_up(monkeypatch):
    """jax#1219: dispatch takes no time here, results do: one second a step, whatever the first took; the last result is
    waited for, and at most two more than the one waited for are in flight."""
    clock = _Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now_s)
    taken = drive(clock.step, (0, 0.0), batches=range(12))
    assert taken.step_s == pytest.approx(1.0)
    assert taken.state[0] == 12
    assert clock.waited[-1] == 11 and clock.now_s == pytest.approx(60 + 11)
    assert {2, 3, 4, 8} <= set(clock.waited)
