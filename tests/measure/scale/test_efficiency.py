"""Throughput, efficiency, waterfall and Little's law, from numbers that a pencil can follow."""

from __future__ import annotations

import random

import pytest

from paceline.measure.scale.efficiency import TERMS, efficiency, littles_law, throughput, waterfall
from paceline.measure.scale.rounds import Setting
from paceline.measure.scale.subject import Flow, Sample
from tests.measure.scale.samples import stages

ONE, FOUR = Setting(1, 10), Setting(4, 40)
SINGLE = stages(local=0.60, step=0.62, feed=0.70, fit=0.80, wait=0.05)
SEVERAL = stages(local=0.64, barrier=0.66, step=0.76, feed=0.90, fit=1.00, wait=0.12)


def test_throughput_and_efficiency_are_those_of_the_training_loop():
    """40 rows in 1 s on 4 devices, 10 in 0.8 s on one: S_4 = 40, S_1 = 12.5, E_4 = 40 / 50."""
    assert throughput(SEVERAL["fit"], batch=40)[:3] == (40, 40, 40)
    assert efficiency(SINGLE, SEVERAL, one=ONE, many=FOUR).value == pytest.approx(0.8)


def test_each_term_of_the_waterfall_is_what_its_stage_adds_on_k_devices_beyond_one():
    """In percent of the 1 s that a step takes on four devices; the terms leave 80 %."""
    found = waterfall(SINGLE, SEVERAL, one=ONE, many=FOUR)
    assert {name: interval.value for name, interval in found.terms.items()} == pytest.approx(
        {
            "compute": 100 * (0.64 - 0.60),
            "stragglers": 100 * (0.66 - 0.64),
            "communication": 100 * ((0.76 - 0.66) - (0.62 - 0.60)),
            "input": 100 * (0.12 - 0.05),
            "host": 100 * ((1.00 - 0.90) - (0.80 - 0.70)),
            "rest": 100 * ((0.90 - 0.76 - 0.12) - (0.70 - 0.62 - 0.05)),
        }
    )
    assert tuple(found.terms) == tuple(TERMS)[:6]
    assert found.efficiency == pytest.approx(80)


def test_under_strong_scaling_a_perfect_device_takes_its_share_of_the_time_of_one():
    """The same 40 rows: 0.8 s on one device would be 0.2 s on each of four, so E_4 is 20 %, and compute lost 100 x
    (0.64 - 0.60 / 4)."""
    one = Setting(1, 40)
    found = waterfall(SINGLE, SEVERAL, one=one, many=FOUR)
    assert found.efficiency == pytest.approx(20)
    assert found.terms["compute"].value == pytest.approx(49)
    assert found.terms["stragglers"].value == pytest.approx(2)


def test_without_the_truncated_step_the_real_one_is_one_term():
    """100 x (0.76 - 0.62) for all that it does, and 20 in all still."""
    single, several = ({name: samples for name, samples in stages.items() if name not in ("local", "barrier")}
                       for stages in (SINGLE, SEVERAL))  # fmt: skip
    found = waterfall(single, several, one=ONE, many=FOUR)
    assert tuple(found.terms) == ("step", "input", "host", "rest")
    assert found.terms["step"].value == pytest.approx(14)
    assert sum(term.value for term in found.terms.values()) == pytest.approx(20)


def test_on_cores_that_the_feed_shares_input_and_rest_are_one_term():
    """Waiting 4, rest -10: what is left is the 6 points that the feed won."""
    one = stages(local=0.9, step=0.9, feed=1.0, fit=1.06)
    many = stages(local=0.9, barrier=0.9, step=0.9, feed=0.94, fit=1.0, wait=0.04)
    apart = waterfall(one, many, one=ONE, many=FOUR)
    assert (apart.terms["input"].value, apart.terms["rest"].value) == pytest.approx((4, -10))
    joined = waterfall(one, many, one=ONE, many=FOUR, shares_cores=True)
    assert tuple(joined.terms) == ("compute", "stragglers", "communication", "host", "feed")
    assert joined.terms["feed"].value == pytest.approx(-6)
    assert sum(term.value for term in joined.terms.values()) == pytest.approx(100 - joined.efficiency, abs=1e-9)
    assert apart.is_unexplained and not joined.is_unexplained


def test_devices_wait_for_batches_no_longer_than_the_feed_adds_to_their_step():
    """A step of 90 ms, with the feed 96: 91 ms of waiting can have been idle for 6 at most; a feed that costs nothing
    makes nobody wait."""
    one = stages(local=0.090, step=0.090, feed=0.090, fit=0.1, wait=0.080)
    many = stages(local=0.090, barrier=0.090, step=0.090, feed=0.096, fit=0.1, wait=0.091)
    terms = waterfall(one, many, one=ONE, many=FOUR).terms
    assert terms["input"].value == pytest.approx(100 * 0.006 / 0.1)
    assert terms["rest"].value == pytest.approx(0)


def test_a_rest_below_some_named_term_is_no_failure():
    """5 points at most of 10."""
    assert not waterfall(SINGLE, SEVERAL, one=ONE, many=FOUR).is_unexplained


def test_terms_sum_to_100_less_efficiency_whatever_was_measured():
    """Random times, other in every round, where medians of terms alone would not add up; gains count negative."""
    chance = random.Random(0)

    def noisy(**base):
        rounds = [stages(**{k: v * chance.uniform(0.5, 2) for k, v in base.items()}, repeats=1) for _ in range(7)]
        return {stage: [one[stage][0] for one in rounds] for stage in rounds[0]}

    base = {"local": 0.6, "step": 0.7, "feed": 0.8, "fit": 0.9, "wait": 0.1}
    found = waterfall(noisy(**base), noisy(**base, barrier=0.6), one=ONE, many=FOUR)
    assert sum(term.value for term in found.terms.values()) == pytest.approx(100 - found.efficiency, abs=1e-9)
    assert min(term.value for term in found.terms.values()) < 0
    assert all(term.low <= term.value <= term.high for term in found.terms.values())


def test_efficiency_compares_measurements_of_one_round():
    """A machine that gets ten times slower from round to round, both sides alike: E is 50 % in every round, so it is
    50 % without any doubt."""
    slow = [10.0**number for number in range(6)]
    single, several = ({"fit": [Sample(each * base) for each in slow]} for base in (1.0, 2.0))
    assert efficiency(single, several, one=Setting(1, 8), many=Setting(2, 16))[:3] == pytest.approx((0.5, 0.5, 0.5))


def test_rows_in_flight_are_latency_times_throughput():
    """A batch of 8 every 0.1 s that takes 0.4 s: 32 rows on the way; four batches were counted."""
    law = littles_law([Flow(0.4, 0.1, 4.0)] * 5, batch=8)
    assert (law.latency_s, law.samples_per_s) == pytest.approx((0.4, 80))
    assert (law.rows, law.counted_rows) == pytest.approx((32, 32))
    assert law.ratio.value == pytest.approx(1) and law.agrees


@pytest.mark.parametrize(("counted", "agrees"), [(4.3, True), (3.7, True), (4.5, False), (3.0, False)])
def test_a_count_that_differs_by_more_than_its_resolution_is_said(counted, agrees):
    """Four batches are on the way by L x T; one tenth off is its resolution."""
    assert littles_law([Flow(0.4, 0.1, counted)] * 5, batch=8).agrees is agrees


def test_a_count_that_scatters_around_the_truth_agrees():
    """3 and 5 batches in turn, where L x T says 4: the interval holds 1."""
    assert littles_law([Flow(0.4, 0.1, counted) for counted in (3.0, 5.0, 3.0, 5.0, 3.0, 5.0)], batch=8).agrees
