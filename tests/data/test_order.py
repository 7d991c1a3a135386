"""The order of rows: a permutation each epoch, a pure function of (seed, epoch, position)."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.base.errors import DataError, OptionError
from paceline.data.order import EpochOrder


def whole(order: EpochOrder, epoch: int) -> np.ndarray:
    return order.indices(epoch, start=0, stop=order.rows)


def excess(counts: list[int]) -> float:
    """Chi-square of equal expected counts, in standard deviations above its mean; beyond 5 is no chance."""
    expected, freedom = sum(counts) / len(counts), len(counts) - 1
    chi_square = sum((count - expected) ** 2 for count in counts) / expected
    return (chi_square - freedom) / np.sqrt(2 * freedom)


def test_every_epoch_visits_each_row_once_for_any_small_number_of_rows():
    """Rows 1 to 300, two epochs each: sorted, the order is 0..rows-1."""
    for rows in range(1, 301):
        order = EpochOrder(rows, 7)
        for epoch in (0, 1):
            np.testing.assert_array_equal(np.sort(whole(order, epoch)), np.arange(rows))


@settings(max_examples=50)
@given(rows=st.integers(1, 5_000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10_000))
def test_every_epoch_is_a_permutation_whatever_the_seed(rows, seed, epoch):
    """Any rows, seed and epoch: each row exactly once."""
    np.testing.assert_array_equal(np.sort(whole(EpochOrder(rows, seed), epoch)), np.arange(rows))


@settings(max_examples=50)
@given(data=st.data(), rows=st.integers(1, 2_000))
def test_a_part_of_an_epoch_equals_the_same_part_of_the_whole(data, rows):
    """Seek: positions start..stop alone give what the whole epoch has there, bit for bit."""
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    order = EpochOrder(rows, 3)
    np.testing.assert_array_equal(order.indices(5, start=start, stop=stop), whole(order, 5)[start:stop])


@pytest.mark.parametrize("rows", [10**9, 2**62])
def test_a_huge_epoch_gives_distinct_rows_in_range_without_memory_for_all(rows):
    """100,000 positions of 10**9 and of 2**62 rows: distinct, in range, under 40 MB at the peak."""
    tracemalloc.start()
    part = EpochOrder(rows, 1).indices(0, start=rows - 100_000, stop=rows)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert part.dtype == np.int64
    assert len(np.unique(part)) == 100_000
    assert part.min() >= 0 and part.max() < rows
    assert peak_bytes < 40e6


def test_a_huge_epoch_is_spread_over_all_rows():
    """160,000 of 10**9 rows fall evenly into 16 ranges: chi-square within 5 standard deviations."""
    part = EpochOrder(10**9, 1).indices(0, start=0, stop=160_000)
    assert excess(np.bincount(part // (10**9 // 16), minlength=16)[:16].tolist()) < 5


def test_epochs_and_seeds_give_different_orders():
    """1,000 rows: two orders agree at about 1 position by chance; 20 would be no chance."""
    orders = [whole(EpochOrder(1_000, seed), epoch) for seed in (0, 1, 2**32) for epoch in (0, 1, 2)]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).sum() < 20


@pytest.mark.parametrize("rows", [2, 3, 10, 64])
def test_the_first_row_of_an_epoch_is_any_row_equally_often(rows):
    """1,000 epochs: chi-square of the first row within 5 standard deviations."""
    order = EpochOrder(rows, 11)
    firsts = [int(order.indices(epoch, start=0, stop=1)[0]) for epoch in range(1_000)]
    assert excess(np.bincount(firsts, minlength=rows).tolist()) < 5


def test_all_orders_of_five_rows_come_equally_often():
    """2,000 epochs over 120 orders: within 5 standard deviations. A network of 6 rounds instead of 16 fails."""
    order = EpochOrder(5, 7)
    seen = [tuple(whole(order, epoch).tolist()) for epoch in range(2_000)]
    assert excess([seen.count(each) for each in itertools.permutations(range(5))]) < 5


def test_neighbouring_positions_do_not_give_neighbouring_rows():
    """10,000 rows: the correlation of position and row, and of a row and the next, is below 0.05."""
    order = whole(EpochOrder(10_000, 0), 0)
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05


def test_the_order_never_changes_between_releases():
    """A resumed run must see the order that it began with: these rows were written down once."""
    assert EpochOrder(10, 42).indices(0, start=0, stop=10).tolist() == [4, 1, 7, 5, 9, 6, 8, 2, 0, 3]
    assert EpochOrder(10**9, 42).indices(3, start=5, stop=8).tolist() == [210317296, 606540716, 800371010]


def test_without_shuffling_rows_come_as_stored():
    """`shuffle=False`: position p gives row p in every epoch."""
    assert EpochOrder(9, 1, shuffle=False).indices(4, start=2, stop=6).tolist() == [2, 3, 4, 5]


def test_no_rows_and_a_negative_seed_are_refused():
    """Both errors name the number and a way out."""
    with pytest.raises(DataError, match="0 rows"):
        EpochOrder(0, 1)
    with pytest.raises(OptionError) as caught:
        EpochOrder(4, -3)
    assert "-3" in caught.value.what and "--seed 3" in caught.value.fix
