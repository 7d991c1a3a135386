"""What is measured, in which order, and how long."""

from __future__ import annotations

import math

import pytest

from paceline.base.errors import BatchSizeError, OptionError
from paceline.measure.scale.rounds import Rounds, Setting, check_numbers, settings_of
from paceline.measure.scale.subject import Prepared, Sample


class Machine:
    """A station that takes down its orders; a step takes `step_s` of a clock that only it moves."""

    def __init__(self, devices, log, clock, *, step_s=0.01, no_local=""):
        self._no_local = no_local
        self._devices, self._log, self._clock, self._step_s = devices, log, clock, step_s

    def prepare(self, batch):
        self._log.append(("prepare", self._devices, batch))
        return Prepared(2.0, self._no_local)

    def measure(self, batch, stage, *, steps):
        self._log.append((stage, self._devices, batch))
        self._clock[0] += (steps + 3) * self._step_s
        return Sample(self._step_s)

    def noise(self, batch):
        raise AssertionError("not asked for")

    def trace(self, batch, folder, *, steps):
        raise AssertionError("not asked for")

    def network(self):
        raise AssertionError("not asked for")

    def close(self):
        self._log.append(("close", self._devices))


def measured(settings, *, repeats, seconds, unclaimed=(), step_s=0.01, no_local=None):
    """The rounds of some settings, and the orders."""
    log, clock = [], [0.0]
    stations = {
        setting.devices: Machine(
            setting.devices, log, clock, step_s=step_s, no_local=(no_local or {}).get(setting.devices, "")
        )
        for setting in settings
    }
    rounds = Rounds(stations, settings, frozenset(unclaimed), clock=lambda: clock[0])
    rounds.prepare()
    rounds.measure(repeats=repeats, seconds=seconds)
    return rounds, log, clock[0]


def test_weak_scaling_fixes_the_rows_of_a_device_and_strong_the_rows_of_all():
    """128 rows on four devices: 32 a device, or 128 for any number of them; on four the two are one."""
    assert settings_of("weak", [4, 1, 2], batch=128, microbatches=1) == [
        Setting(1, 32),
        Setting(2, 64),
        Setting(4, 128),
    ]
    assert settings_of("strong", [1, 2, 4], batch=128, microbatches=2) == [Setting(k, 128) for k in (1, 2, 4)]


@pytest.mark.parametrize(
    ("mode", "devices", "batch", "fix"),
    [("weak", [1, 4], 10, "use --batch 12 or 8"), ("strong", [1, 3, 4], 16, "use --batch 18 or 15"),
     ("weak", [1, 2], 1, "use --batch 2")],
)  # fmt: skip
def test_rows_that_do_not_split_are_refused_with_the_nearest_that_do(mode, devices, batch, fix):
    """Weak scaling only needs the most devices to divide the batch, strong all of them."""
    with pytest.raises(BatchSizeError) as error:
        settings_of(mode, devices, batch=batch, microbatches=1)
    assert error.value.fix == fix
    if mode == "weak":
        settings_of(mode, devices, batch=12, microbatches=1)


def test_microbatches_count_when_rows_are_split():
    """12 rows on two devices in four microbatches: 8 or 16."""
    with pytest.raises(BatchSizeError, match="over 2 devices in 4 microbatches") as error:
        settings_of("weak", [1, 2], batch=12, microbatches=4)
    assert error.value.fix == "use --batch 16 or 8"


def test_everything_is_compiled_before_anything_is_measured():
    """And the seconds of it are added up."""
    rounds, log, _ = measured([Setting(1, 4), Setting(2, 8)], repeats=3, seconds=1)
    assert [order[0] for order in log[:2]] == ["prepare", "prepare"]
    assert "prepare" not in [order[0] for order in log[2:]]
    assert rounds.compile_s == 4


def test_the_sides_of_a_ratio_are_measured_one_behind_the_other_in_turn():
    """The whole loop on one device and on two: 2 1, then 1 2; four pilots come first, the first round is left out."""
    rounds, log, _ = measured([Setting(1, 4), Setting(2, 8)], repeats=3, seconds=1)
    fits = [order[1] for order in log if order[0] == "fit"][4:]
    assert fits == [2, 1, 1, 2, 2, 1, 1, 2]
    assert rounds.rounds == 3
    assert all(len(samples) == 3 for stages in rounds.samples.values() for samples in stages.values())


def test_one_device_has_no_barrier_and_devices_that_share_cores_are_measured_for_throughput_only():
    """The stages of each."""
    rounds, _, _ = measured([Setting(1, 4), Setting(2, 8), Setting(4, 16)], repeats=3, seconds=1, unclaimed=[4])
    assert set(rounds.samples[Setting(1, 4)]) == {"local", "step", "feed", "fit"}
    assert set(rounds.samples[Setting(2, 8)]) == {"local", "barrier", "step", "feed", "fit"}
    assert set(rounds.samples[Setting(4, 16)]) == {"feed", "fit"}


def test_a_truncated_step_that_one_setting_lacks_is_left_out_of_all_with_why():
    """It does not fit two devices: nothing could be compared with that of one. One whose devices share cores is not
    measured in it anyway."""
    settings = [Setting(1, 4), Setting(2, 8)]
    rounds, _, _ = measured(settings, repeats=3, seconds=1, no_local={2: "too large"})
    assert rounds.no_local == "2 devices: too large"
    assert {tuple(rounds.samples[setting]) for setting in settings} == {("step", "feed", "fit")}
    assert measured(settings, repeats=3, seconds=1, unclaimed=[2], no_local={2: "too large"})[0].no_local == ""


def test_the_time_is_filled_and_not_exceeded():
    """Steps of 1 ms: the steps of a measurement are chosen so that all repeats fit into the second."""
    rounds, _, took_s = measured([Setting(1, 4), Setting(2, 8)], repeats=9, seconds=1, step_s=1e-3)
    assert rounds.rounds == 9
    assert 0.9 < took_s < 1.1


def test_slow_steps_still_get_three_rounds():
    """A step of one second in a budget of one: three rounds, no fewer, no more."""
    assert measured([Setting(1, 4), Setting(2, 8)], repeats=9, seconds=1, step_s=1.0)[0].rounds == 3


@pytest.mark.parametrize(
    ("numbers", "fix"),
    [
        ({"repeats": 2, "seconds": 60}, "use --repeats 3 or more"),
        ({"repeats": 9, "seconds": 0}, "use --seconds 60"),
        ({"repeats": 9, "seconds": math.inf}, "use --seconds 60"),
        ({"repeats": 9, "seconds": math.nan}, "use --seconds 60"),
        ({"repeats": 10**400, "seconds": 60}, "use --repeats 500 or fewer"),
    ],
)
def test_numbers_that_measure_nothing_are_refused(numbers, fix):
    """Two repeats, no time, time without end, no number, repeats without end."""
    with pytest.raises(OptionError) as error:
        check_numbers(**numbers)
    assert fix in error.value.fix
