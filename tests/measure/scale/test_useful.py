"""How far more devices help, with what the measurement leaves open."""

from __future__ import annotations

import pytest

from paceline.measure.scale.prediction import Planned
from paceline.measure.scale.result import make_scaling
from paceline.measure.scale.rounds import Setting
from paceline.measure.scale.subject import Sample
from paceline.measure.scale.useful import time_to_loss, verdict
from tests.measure.scale.samples import stages

ONE, TWO = Setting(1, 10), Setting(2, 20)
HUGE = 1e12  # rows of noise scale: every row counts alike


def found(times, *, settings=(ONE, TWO), noise_rows=HUGE):
    """One device takes 1 s a step; two as in `times`, round by round."""
    fits = {settings[0]: [Sample(1.0)] * len(times), settings[1]: [Sample(time_s) for time_s in times]}
    share = {settings[0]: 1.0, settings[1]: 1 / sorted(times)[len(times) // 2]}
    return time_to_loss(share, fits, single=10.0, noise_rows=noise_rows)


@pytest.mark.parametrize(
    ("times", "devices", "decided", "is_end", "words"),
    [
        ([1.8, 1.81, 1.79] * 3, 2, True, True, "up to 2 devices, the most measured, each doubling pays"),
        ([1.96, 1.97, 1.95] * 3, 1, True, False, "beyond 1 device a doubling saves less than 5 %"),
        ([1.6, 1.92, 2.2] * 3, 1, False, False,
         "beyond 1 device: not decided, a doubling saves 4.0 % of the time (-10.0 to 20.0),"),
    ],
)  # fmt: skip
def test_a_doubling_pays_only_if_the_whole_interval_says_so(times, devices, decided, is_end, words):
    """Twice the rows in t s save 1 - t/2 of the time, and 5 % is the mark: 10 % pays, 2 % does not, -10 to 20 % says
    nothing."""
    told = found(times)
    assert (told.devices, told.decided, told.is_end) == (devices, decided, is_end)
    assert verdict(told).startswith(words)


def test_from_two_to_eight_devices_are_two_doublings():
    """Four times the rows at the cost of 3.24 steps: T falls to 0.81, which is 0.9 twice."""
    told = found([3.24] * 9, settings=(Setting(2, 20), Setting(8, 80)))
    assert told.saved[0].value == pytest.approx(0.1)


def test_rows_that_are_worth_less_lower_what_a_doubling_saves():
    """B_noise = 20 rows: 1 / (1 + 20/20) over 1 / (1 + 10/20) = 3/4, so perfect hardware saves 1 - 0.5 / 0.75."""
    assert found([1.0] * 9, noise_rows=20.0).saved[0].value == pytest.approx(1 / 3)


def test_hardware_efficiency_is_the_e_k_of_the_table():
    """E_2 by round: 1/1.5, 2/4, 3/2, of which the median is 66.7 %; the medians of throughput would give 100 %."""
    rounds = {ONE: (1.0, 2.0, 3.0), TWO: (1.5, 4.0, 2.0)}
    measured = {
        setting: stages(local=1.0, barrier=1.0, step=1.0, feed=1.0, fit=1.0, repeats=3)
        | {"fit": [Sample(time_s) for time_s in times]}
        for setting, times in rounds.items()
    }
    scaling = make_scaling(
        "weak", [ONE, TWO], measured=measured, not_claimed={}.get, planned=Planned("m", 10, {}), noise_rows=HUGE
    )
    assert scaling.points[1].efficiency.value == pytest.approx(2 / 3)
    assert scaling.useful.curve[1].hardware == pytest.approx(2 / 3)
