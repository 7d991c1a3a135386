"""How far more devices help, with what the measurement leaves open."""

from __future__ import annotations

import pytest

from paceline.measure.scale.prediction import Planned
from paceline.measure.scale.result import make_scaling
from paceline.measure.scale.rounds import Setting
from paceline.measure.scale.subject import Noise, Sample
from paceline.measure.scale.useful import time_to_loss, verdict
from tests.measure.scale.samples import stages

ONE, TWO = Setting(1, 10), Setting(2, 20)
HUGE = 1e12  # rows of noise scale: every row counts alike


def found(times, *, settings=(ONE, TWO), noise_rows=HUGE, noise_error=0.0):
    """One device takes 1 s a step; two as in `times`, round by round."""
    fits = {settings[0]: [Sample(1.0)] * len(times), settings[1]: [Sample(time_s) for time_s in times]}
    share = {settings[0]: 1.0, settings[1]: 1 / sorted(times)[len(times) // 2]}
    return time_to_loss(share, fits, single=10.0, noise_rows=noise_rows, noise_error=noise_error)


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


def test_what_a_doubling_saves_is_as_uncertain_as_the_noise_scale():
    """Perfect hardware, B_noise = 20 rows, half of it unsure: at 10 rows (1 + 20/10) / (1 + 10/10) of the rows of one
    device are needed, at 30 (1 + 20/30) / (1 + 10/30): half of that is the time, 0.75 and 0.625. At 0.97 s a step and
    1.2 rows, 5 % is inside."""
    (gain,) = found([1.0] * 9, noise_rows=20.0, noise_error=0.5).saved
    assert gain[:3] == pytest.approx((1 / 3, 1 - 0.75, 1 - 0.625))
    sure, unsure = (found([1.0] * 9, noise_rows=1.2, noise_error=error) for error in (0.0, 0.5))
    assert sure.decided and not unsure.decided
    assert unsure.saved[0].low < 0.05 < unsure.saved[0].high and "not decided" in verdict(unsure)


def test_with_the_same_batch_the_noise_scale_is_no_matter():
    """Strong scaling: the interval is that of the times alone."""
    settings = (Setting(1, 20), Setting(2, 20))
    sure, unsure = (found([0.6, 0.7, 0.8] * 3, settings=settings, noise_rows=1.0, noise_error=e) for e in (0.0, 0.5))
    assert sure.saved[0] == pytest.approx(unsure.saved[0])


def test_the_error_of_the_noise_scale_reaches_the_verdict():
    """From what was measured: 30 % unsure widens what a doubling saves."""
    measured = {setting: stages(local=1.0, barrier=1.0, step=1.0, feed=1.0, fit=1.0) for setting in (ONE, TWO)}
    sure, unsure = (
        make_scaling("weak", [ONE, TWO], measured=measured, not_claimed={}.get, planned=None,
                     noise=Noise(20.0, relative_error=error)).useful.saved[0]
        for error in (None, 0.3)
    )  # fmt: skip
    assert sure.low == sure.high and unsure.low < sure.value < unsure.high


def test_hardware_efficiency_is_the_e_k_of_the_table():
    """E_2 by round: 1/1.5, 2/4, 3/2, of which the median is 66.7 %; the medians of throughput would give 100 %."""
    rounds = {ONE: (1.0, 2.0, 3.0), TWO: (1.5, 4.0, 2.0)}
    measured = {
        setting: stages(local=1.0, barrier=1.0, step=1.0, feed=1.0, fit=1.0, repeats=3)
        | {"fit": [Sample(time_s) for time_s in times]}
        for setting, times in rounds.items()
    }
    scaling = make_scaling(
        "weak", [ONE, TWO], measured=measured, not_claimed={}.get, planned=Planned("m", 10, {}), noise=Noise(HUGE)
    )
    assert scaling.points[1].efficiency.value == pytest.approx(2 / 3)
    assert scaling.useful.curve[1].hardware == pytest.approx(2 / 3)
