"""A table of steps: against a dictionary that does the same slowly, and its samples against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.dashboard.follow.blocks import BLOCK_ROWS, BlockStore
from paceline.dashboard.follow.columns import Columns
from paceline.dashboard.follow.spans import MISSING, is_missing


@pytest.fixture
def columns():
    return Columns(BlockStore())


def add(columns: Columns, steps: range | list[int], **values: object) -> None:
    """Rows at 10 seconds a step; values by key, arrays or one number for all."""
    step = np.array(list(steps))
    table = {key: np.broadcast_to(np.asarray(value, float), len(step)).copy() for key, value in values.items()}
    columns.append(step, step * 10.0, values=table)


def test_a_missing_number_is_told_from_a_recorded_nan():
    """By its bits, also after a way through Python floats and lists."""
    values = np.array([float(MISSING), float("nan"), 1.0, np.inf])
    assert is_missing(values).tolist() == [True, False, False, False]


def test_random_rows_read_as_a_dictionary_keeps_them(columns):
    """Appends of all sizes, keys that come late or rarely, steps that go back: 40 operations, four blocks."""
    random = np.random.default_rng(0)
    kept: dict[int, dict[str, float]] = {}
    step = 0
    for operation in range(40):
        if operation % 7 == 6:
            step = max(0, step - int(random.integers(1, 6000)))
            columns.drop_from(step + 1)
            kept = {number: values for number, values in kept.items() if number <= step}
        rows = int(random.integers(1, 1500))
        keys = ["a", "b"] if operation < 10 else ["a", "b", "late"]
        table = {key: random.random(rows) for key in keys}
        table["b"][random.random(rows) < 0.9] = MISSING
        steps = np.arange(step + 1, step + rows + 1)
        columns.append(steps, steps * 0.5, values=table)
        for place, number in enumerate(steps.tolist()):
            row = {key: table[key][place] for key in keys}
            kept[number] = {key: value for key, value in row.items() if not is_missing(np.array([value]))[0]}
        step += rows
    assert len(columns) == len(kept) > 3 * BLOCK_ROWS
    for key in ("a", "b", "late"):
        expected = {number: values[key] for number, values in kept.items() if key in values}
        found = columns.whole(key)
        assert dict(zip(found.step.tolist(), found.value.tolist(), strict=True)) == expected
        assert found.time_s.tolist() == [number * 0.5 for number in expected]
        assert columns.count(key) == len(expected)
        assert columns.last(key) == list(expected.values())[-1]


def test_a_step_that_comes_again_replaces_itself_and_what_came_after(columns):
    """Also within one append, as a slice of a resumed run holds both."""
    add(columns, [1, 2, 3, 4, 5, 3, 4], a=[1, 2, 3, 4, 5, 30, 40])
    found = columns.whole("a")
    assert (found.step.tolist(), found.value.tolist()) == ([1, 2, 3, 4], [1, 2, 30, 40])


def test_a_step_may_come_again_in_a_later_append(columns):
    """As an evaluation that a resumed run makes anew."""
    add(columns, [1, 2], a=[1, 2])
    add(columns, [2], a=[20])
    assert columns.whole("a").value.tolist() == [1, 20]


@pytest.mark.parametrize("kept", [1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, BLOCK_ROWS + 10, 3 * BLOCK_ROWS + 5])
def test_going_back_over_several_blocks_brings_the_older_rows_back(columns, kept):
    """All full blocks behind the step go; the rest of the one that holds it can be added to."""
    add(columns, range(1, 4 * BLOCK_ROWS), a=np.arange(1.0, 4 * BLOCK_ROWS))
    columns.drop_from(kept + 1)
    add(columns, [kept + 1, kept + 2], a=[-1, -2])
    np.testing.assert_array_equal(columns.whole("a").value, [*np.arange(1.0, kept + 1), -1, -2])
    assert columns.last_step == kept + 2


def test_going_back_gives_blocks_back():
    """Their places are the next to be used."""
    store = BlockStore()
    columns = Columns(store)
    add(columns, range(3 * BLOCK_ROWS), a=np.random.default_rng(0).random(3 * BLOCK_ROWS))
    columns.drop_from(5)
    free = {store.put(np.zeros(BLOCK_ROWS)) for _ in range(9)}  # step, time and a of three blocks
    assert free == set(range(9))


@pytest.mark.parametrize("rows", [1, 90, 5000, 60_000])
@pytest.mark.parametrize("window", [None, (0.2, 0.9), (0.5, 0.52)])
def test_a_sample_keeps_extremes_first_last_and_what_is_not_finite(columns, rows, window):
    """Whatever the length and the part that is shown, and with no more than a few points more than asked."""
    values = np.random.default_rng(rows).standard_normal(rows)
    odd = {rows // 3: np.nan, rows // 2: np.inf, rows - 2: -np.inf}
    for place, value in odd.items():
        if 0 < place < rows - 1:
            values[place] = value
    add(columns, range(1, rows + 1), a=values)
    first, last = (1, rows) if window is None else (int(rows * window[0]) + 1, int(rows * window[1]) + 1)
    first, last = min(first, rows), min(last, rows)
    found = columns.samples(["a"], points=400, from_step=first, to_step=last)["a"]
    part = values[first - 1 : last]
    assert len(found.step) <= 420
    assert (np.diff(found.step) > 0).all()
    assert (found.step[0], found.step[-1]) == (first, last)
    np.testing.assert_array_equal(found.value, values[found.step - 1])
    finite = part[np.isfinite(part)]
    kept = found.value[np.isfinite(found.value)]
    assert (kept.min(), kept.max()) == (finite.min(), finite.max())
    assert set(np.flatnonzero(~np.isfinite(part)) + first) <= set(found.step.tolist())
    np.testing.assert_array_equal(found.time_s, found.step * 10.0)


def test_each_part_of_a_sample_keeps_its_own_extremes(columns):
    """Of 50,000 rows in some 200 buckets: no stretch of four buckets' length loses its least and greatest number."""
    rows = 50_000
    values = np.random.default_rng(1).standard_normal(rows)
    add(columns, range(rows), a=values)
    found = columns.samples(["a"], points=400)["a"]
    for begin in range(0, rows, 4096):  # whole buckets: 4 spans of 64 rows
        part = values[begin : begin + 4096]
        there = (found.step >= begin) & (found.step < begin + 4096)
        assert (found.value[there].min(), found.value[there].max()) == (part.min(), part.max())


@pytest.mark.parametrize("rows", [500, 5000, 60_000])
@pytest.mark.parametrize("window", [None, (0.13, 0.87)])
def test_the_means_of_a_sample_count_every_finite_number_once(columns, rows, window):
    """By numpy over the rows of each stretch, which lie end to end (rtol 1e-12); the rest is counted apart."""
    random = np.random.default_rng(rows)
    values = random.standard_normal(rows) + 3
    values[random.integers(0, rows, rows // 50)] = np.nan
    values[rows // 2 : rows // 2 + 700] = -np.inf
    values[random.integers(0, rows, rows // 20)] = MISSING
    add(columns, range(rows), a=values)
    first, last = (0, rows - 1) if window is None else (int(rows * window[0]), int(rows * window[1]))
    found = columns.samples(["a"], points=300, from_step=first, to_step=last)["a"]
    means, recorded = found.means, ~is_missing(values)
    assert 50 < len(means.value) <= 151
    assert (means.from_step[0], means.to_step[-1]) == (found.step[0], found.step[-1])
    assert (means.from_step[1:] > means.to_step[:-1]).all()
    middle = (means.from_step + means.to_step) // 2
    np.testing.assert_array_equal(means.time_s, middle * 10.0)
    columns_of = (means.from_step, means.to_step, means.value, means.finite, means.not_finite)
    for low, high, mean, count, odd in zip(*columns_of, strict=True):
        part = values[low : high + 1]
        finite = part[np.isfinite(part)]
        assert (count, odd) == (len(finite), recorded[low : high + 1].sum() - len(finite))
        np.testing.assert_allclose(mean, finite.mean() if len(finite) else np.nan, rtol=1e-12)
    assert means.finite.sum() + means.not_finite.sum() == recorded[first : last + 1].sum()


def test_the_means_of_numbers_near_the_largest_do_not_overflow(columns):
    """60,000 of 1e308 add up to more than a double holds."""
    add(columns, range(60_000), a=1e308)
    np.testing.assert_allclose(columns.samples(["a"], points=100)["a"].means.value, 1e308, rtol=1e-12)


def test_a_sample_that_leaves_nothing_out_has_no_means(columns):
    add(columns, range(90), a=np.arange(90.0))
    assert columns.samples(["a"], points=90)["a"].means is None
    assert columns.samples(["a"], points=89)["a"].means is not None


def test_few_numbers_among_many_rows_are_all_kept(columns):
    """Memory comes once a second, steps a hundred times: a sample must not thin what is thin already."""
    values = np.full(30_000, MISSING)
    values[::100] = np.arange(300)
    add(columns, range(30_000), loss=1.0, memory=values)
    found = columns.samples(["loss", "memory"], points=400)
    assert found["memory"].value.tolist() == list(range(300))
    assert found["memory"].step.tolist() == list(range(0, 30_000, 100))


def test_a_key_that_begins_late_and_ends_early_shows_its_own_first_and_last(columns):
    """Not those of the rows around it."""
    values = np.full(40_000, MISSING)
    values[12_345:30_001] = np.arange(12_345, 30_001)
    add(columns, range(40_000), a=0.0, b=values)
    found = columns.samples(["b"], points=100)["b"]
    assert (found.step[0], found.step[-1]) == (12_345, 30_000)


def test_a_long_stretch_of_nan_is_bounded_and_its_ends_are_kept(columns):
    """A run whose loss is NaN for good sends some points, not one a step."""
    values = np.ones(60_000)
    values[20_000:] = np.nan
    add(columns, range(60_000), a=values)
    found = columns.samples(["a"], points=200)["a"]
    odd = found.step[np.isnan(found.value)]
    assert (odd[0], odd[-1]) == (20_000, 59_999)
    assert len(found.step) < 600


def test_the_newest_rows_and_the_rows_up_to_a_step(columns):
    """Rows without a number are left out of what is found, not filled from earlier ones."""
    values = np.arange(10.0)
    values[8] = MISSING
    add(columns, range(10), a=values)
    assert columns.recent("a", 3).value.tolist() == [7, 9]
    assert columns.recent("a", 3, before=5).value.tolist() == [3, 4, 5]
    assert columns.recent("none", 3).value.tolist() == []


def test_an_empty_table_answers_everything(columns):
    """No rows, no keys."""
    assert (len(columns), columns.keys, columns.last_step, columns.last_time_s) == (0, (), None, None)
    assert columns.samples(["a"], points=10) == {}
    assert (columns.count("a"), columns.last("a"), len(columns.whole("a").step)) == (0, None, 0)
    columns.drop_from(0)


def test_full_blocks_do_not_stay_in_memory():
    """What is kept of 200 full blocks of random numbers is less than a twentieth of them."""
    import tracemalloc

    columns = Columns(BlockStore())
    random = np.random.default_rng(0)
    add(columns, range(BLOCK_ROWS), a=random.random(BLOCK_ROWS))
    tracemalloc.start()
    for block in range(1, 101):
        add(columns, range(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS), a=random.random(BLOCK_ROWS))
    kept_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept_bytes < 100 * 3 * 8 * BLOCK_ROWS * 0.1


def test_a_sample_that_is_kept_is_forgotten_when_rows_come(columns):
    """Asked for twice it is the same; after a row, or a step back, it is another."""
    add(columns, range(5000), a=np.arange(5000.0))
    first = columns.samples(["a"], points=100)["a"]
    assert columns.samples(["a"], points=100)["a"] is first
    add(columns, [5000], a=-1.0)
    assert columns.samples(["a"], points=100)["a"].value[-1] == -1
    columns.drop_from(5000)
    assert columns.samples(["a"], points=100)["a"].step[-1] == 4999


def test_a_key_whose_rows_were_all_dropped_is_gone_until_it_comes_again(columns):
    """As the evaluation of a run that was resumed from before it; step by step and by arrays."""
    add(columns, range(1, 41), loss=1.0)
    add(columns, [41], loss=1.0, accuracy=0.5)
    columns.drop_from(41)
    assert (columns.keys, "accuracy" in columns, "loss" in columns) == (("loss",), False, True)
    columns.append_one(41, 410.0, values={"accuracy": 0.5})
    assert columns.keys == ("loss", "accuracy")
    add(columns, range(10, 12), loss=1.0)
    assert "accuracy" not in columns
    add(columns, [12], accuracy=0.5)
    assert "accuracy" in columns
