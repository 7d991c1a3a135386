"""Coordinate descent on made-up speeds: what is kept, what is given up, what is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from paceline.engine.parallel import Parallel
from paceline.measure.tune.options import Room
from paceline.measure.tune.search import (
    MOST_PAIRS,
    DoesNotFit,
    Failed,
    Pairs,
    TimeUp,
    Trial,
    is_settled,
    judge,
    search,
)
from paceline.measure.tune.setting import Setting

ROOM = Room(
    devices=4, found_for=Parallel(), largest_rows=64, refuses=True, data_rows=1000, gradient_bytes=5_000_000,
    sees_rows_together=False, can_sync=False, keep_training=False,
)  # fmt: skip
START = Setting(64, Parallel())


def pairs(*gains: float) -> Pairs:
    """The current setting at 100 samples/s, the new one at so many times that."""
    return Pairs((100.0,) * len(gains), tuple(100.0 * gain for gain in gains))


def climb(
    rate: Callable[[Setting], float], *, start: Setting = START, room: Room = ROOM
) -> tuple[Setting, dict[str, list[str]], list[Trial]]:
    """The result of a search over settings of known speed, and the outcomes by change."""

    def compare(current: Setting, other: Setting) -> Pairs:
        return Pairs((float(rate(current)),) * 6, (float(rate(other)),) * 6)

    said: list[Trial] = []
    best, trials = search(start, room, compare=compare, say=said.append)
    assert said == trials
    found: dict[str, list[str]] = {}
    for trial in trials:
        found.setdefault(trial.change, []).append(trial.outcome)
    return best, found, trials


def test_six_wins_of_more_than_two_percent_are_kept():
    assert judge(pairs(1.03, 1.04, 1.03, 1.05, 1.03, 1.04)) == "kept"


def test_six_wins_too_small_for_a_flag_are_no_gain():
    """A median of 1.01, whatever the interval."""
    assert judge(pairs(1.01, 1.012, 1.011, 1.01, 1.01, 1.01)) == "no gain"


def test_one_loss_asks_for_nine_pairs_and_a_second_ends_it():
    """Five wins and a loss are not settled; eight wins and a loss are kept; the second loss settles."""
    assert not is_settled([1.0] * 6, [2.0, 2.0, 0.9, 2.0, 2.0, 2.0])
    assert judge(pairs(2, 2, 0.9, 2, 2, 2, 2, 2, 2)) == "kept"
    assert is_settled([1.0] * 4, [2.0, 0.9, 2.0, 0.9]) and judge(pairs(2, 0.9, 2, 0.9)) == "no gain"


def test_two_losses_alone_settle_nothing():
    """Two pairs are no measurement; three are."""
    assert not is_settled([1.0] * 2, [0.9, 0.9])
    assert judge(pairs(0.9, 0.8, 0.95)) == "slower"


@pytest.mark.parametrize("gains", [(), (1.5,), (1.5, 1.5, 1.5, 1.5, 1.5), (1.5, 0.9, 1.5, 1.5, 1.5, 1.5)])
def test_pairs_that_the_time_cut_short_decide_nothing(gains):
    """Too few of them: neither kept nor called slower."""
    assert judge(pairs(*gains)) == "not decided"


def test_equal_settings_pass_by_luck_less_than_three_times_in_a_hundred():
    """All 2^9 courses of wins and losses, each as likely: 1/64 + 6/64 x 1/8 = 2.7 %."""
    kept = 0
    for course in range(2**MOST_PAIRS):
        gains: list[float] = []
        while not is_settled([1.0] * len(gains), gains):
            gains.append(1.1 if course >> len(gains) & 1 else 0.9)
        kept += judge(pairs(*gains)) == "kept"
    assert kept / 2**MOST_PAIRS == pytest.approx(1 / 64 + 6 / 64 / 8)


def test_the_batch_grows_while_it_gains_and_fits():
    """64 rows a device fit, so 256 in all: doubled twice, and the third doubling is said not to fit."""
    best, found, _ = climb(lambda setting: setting.batch)
    assert best.batch == 256
    assert [found[f"batch {rows}"] for rows in (128, 256, 512)] == [["kept"], ["kept"], ["left out"]]


def test_each_setting_is_measured_once():
    """Nothing gains: every neighbour is tried once, and a second pass finds nothing new."""
    best, found, _ = climb(lambda setting: 100.0)
    assert best == START
    assert all(outcomes == ["no gain"] for outcomes in found.values())


def test_what_is_kept_is_the_start_of_what_follows():
    """per_device gains, and buckets only exist under it: both are in the result, with their flags."""

    def rate(setting: Setting) -> float:
        parallel = setting.parallel
        bucket = parallel.bucket_bytes == 4_000_000
        return 100 * (1.1 if parallel.scheme == "per_device" else 1) * (1.2 if bucket else 1)

    best, found, _ = climb(rate)
    assert (best.parallel.scheme, best.parallel.bucket_bytes) == ("per_device", 4_000_000)
    assert best.flags(default=START) == ["--scheme per_device", "--bucket-mb 4"]
    assert found["scheme per_device"] == ["kept"]


def test_a_second_pass_finds_what_the_first_made_possible():
    """More prefetch helps only with four microbatches' rest: n is tried before it, and found again behind it."""

    def rate(setting: Setting) -> float:
        return 100 * (1.1 if setting.prefetch == 4 else 1) * (
            1.1 if setting.prefetch == 4 and setting.parallel.accumulation == 2 else 1
        )  # fmt: skip

    best, _, _ = climb(rate)
    assert (best.prefetch, best.parallel.accumulation) == (4, 2)


@pytest.mark.parametrize(
    "error, outcome", [(DoesNotFit("9 GB of 8 GB"), "does not fit"), (Failed("bad"), "failed"), (TimeUp(), "not tried")]
)
def test_a_setting_that_cannot_be_measured_is_listed_and_the_search_goes_on(error, outcome):
    """Every setting of another scheme fails; all others are slower: each has its line."""

    def compare(current: Setting, other: Setting) -> Pairs:
        if other.parallel.scheme != current.parallel.scheme:
            raise error
        return Pairs((100.0,) * 3, (90.0,) * 3)

    best, trials = search(START, ROOM, compare=compare, say=lambda _: None)
    assert best == START
    (failed,) = [trial for trial in trials if trial.option == "scheme"]
    assert (failed.outcome, failed.why) == (outcome, str(error))
    assert {trial.outcome for trial in trials if trial.option != "scheme"} == {"slower"}


def test_with_the_training_kept_the_batch_stays():
    """The same speeds as above, where the batch would grow."""
    room = dataclasses.replace(ROOM, keep_training=True)
    best, found, _ = climb(lambda setting: setting.batch, room=room)
    assert best == START and not [change for change in found if change.startswith("batch")]
