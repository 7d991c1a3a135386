"""Derived numbers, against numpy over the same window."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.dashboard.follow.derived import WINDOW_STEPS, StepWindow
from paceline.dashboard.follow.spans import MISSING, is_missing


@pytest.mark.parametrize("pieces", [[300], [1] * 120, [10, 60, 3, 200]])
def test_quantiles_are_those_of_the_last_fifty_steps_however_they_come(pieces):
    """numpy.quantile over the window, rtol 1e-12: the first steps have a shorter one."""
    random = np.random.default_rng(0)
    step_s = random.random(sum(pieces))
    window = StepWindow()
    found = []
    for piece in np.split(step_s, np.cumsum(pieces)[:-1]):
        found.append(window.derive({"speed/step_s": piece}))
    for key, share in (("speed/step_p50_s", 0.5), ("speed/step_p95_s", 0.95)):
        expected = [
            np.quantile(step_s[max(0, place + 1 - WINDOW_STEPS) : place + 1], share) for place in range(len(step_s))
        ]
        np.testing.assert_allclose(np.concatenate([part[key] for part in found]), expected, rtol=1e-12)


def test_rows_without_a_time_have_no_derived_number_and_do_not_count():
    """As the first step of a run, which has no step before it to time from."""
    found = StepWindow().derive(
        {"speed/step_s": np.array([MISSING, 2.0, np.nan, 4.0]), "input/wait_s": np.array([1.0, 1.0, 1.0, MISSING])}
    )
    assert is_missing(found["speed/step_p50_s"]).tolist() == [True, False, True, False]
    assert found["speed/step_p50_s"][[1, 3]].tolist() == [2.0, 3.0]
    assert is_missing(found["input/wait_share"]).tolist() == [True, False, True, True]
    assert found["input/wait_share"][1] == 0.5


def test_without_step_times_nothing_is_derived():
    """An old run, or a process that does not tell them."""
    assert StepWindow().derive({"train/loss": np.array([1.0])}) == {}


def steps_of_any_kind(random, num_steps):
    """Some are sent off ahead and seem to take nothing, some have no rows, no latency, no time."""
    step_s = np.where(random.random(num_steps) < 0.5, 1e-4, 0.2)
    values = {"speed/step_s": step_s, "train/rows": np.full(num_steps, 64.0), "speed/latency_s": step_s + 0.1}
    for column in values.values():
        column[random.random(num_steps) < 0.1] = MISSING
        column[random.random(num_steps) < 0.02] = np.inf
    return values | {"input/wait_s": random.random(num_steps)}


@pytest.mark.parametrize("pieces", [[300], [10, 60, 3, 227]])
def test_throughput_and_rows_in_flight_are_of_the_last_fifty_timed_steps(pieces):
    """Rows by seconds and mean latency by that rate, written out, rtol 1e-12; alike in pieces and row by row."""
    values = steps_of_any_kind(np.random.default_rng(1), sum(pieces))
    window, single = StepWindow(), StepWindow()
    splits = np.cumsum(pieces)[:-1]
    parts = [
        dict(zip(values, columns, strict=True))
        for columns in zip(*(np.split(v, splits) for v in values.values()), strict=True)
    ]
    joined = [window.derive(part) for part in parts]
    found = {key: np.concatenate([part[key] for part in joined]) for key in joined[0]}
    alone = [single.derive_one({key: column[row] for key, column in values.items()}) for row in range(sum(pieces))]
    for key, column in found.items():
        ones = np.array([one.get(key, MISSING) for one in alone])
        np.testing.assert_array_equal(is_missing(ones), is_missing(column), err_msg=key)
        np.testing.assert_allclose(ones, column, rtol=1e-12, err_msg=key)
    step_s, rows, latency_s = (values[key] for key in ("speed/step_s", "train/rows", "speed/latency_s"))
    timed = np.flatnonzero(np.isfinite(step_s))
    for place, row in enumerate(timed):
        window_rows = timed[max(0, place + 1 - WINDOW_STEPS) : place + 1]
        whole = window_rows[np.isfinite(rows[window_rows])]
        late = window_rows[np.isfinite(latency_s[window_rows])]
        rate = rows[whole].sum() / step_s[whole].sum() if np.isfinite(rows[row]) else np.nan
        little = latency_s[late].mean() * rate if np.isfinite(latency_s[row]) else np.nan
        np.testing.assert_allclose(found["speed/recent_samples_per_s"][row], rate, rtol=1e-12)
        np.testing.assert_allclose(found["speed/little_rows"][row], little, rtol=1e-12)
        np.testing.assert_allclose(found["speed/recent_step_s"][row], step_s[window_rows].mean(), rtol=1e-12)
        share = values["input/wait_s"][window_rows].sum() / step_s[window_rows].sum()
        np.testing.assert_allclose(found["input/wait_share"][row], share, rtol=1e-12)


def test_steps_sent_off_ahead_make_no_peaks_of_throughput():
    """9 of 10 steps seem to take 0.1 ms and the tenth waits for all: 64 rows in 25 ms, never 640,000 a second."""
    step_s = np.tile([1e-4] * 9 + [0.25 - 9e-4], 30)
    found = StepWindow().derive({"speed/step_s": step_s, "train/rows": np.full(300, 64.0)})
    rate = found["speed/recent_samples_per_s"][WINDOW_STEPS:]
    assert rate.min() == pytest.approx(64 / 0.025) == pytest.approx(rate.max())


def test_numbers_beyond_a_float_derive_nothing():
    """Their sums are infinite: there is no rate, and no mark that says that one is infinite."""
    values = {"speed/step_s": np.full(3, 1e-300), "train/rows": np.full(3, 1e308), "speed/latency_s": np.full(3, 1e308)}
    assert set(StepWindow().derive(values)) == {"speed/step_p50_s", "speed/step_p95_s", "speed/recent_step_s"}
