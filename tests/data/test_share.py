"""Shares of processes partition every batch, and what each reads is what its devices hold."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from paceline.data.batch import batches, eval_batches, plan_batches
from paceline.data.order import EpochOrder
from paceline.data.share import Share, whole_share
from paceline.data.source import rows


def test_a_process_reads_the_rows_of_its_devices():
    """8 rows on 4 devices, 2 each; devices 1 and 3 hold rows 2, 3 and 6, 7."""
    share = Share(4, (1, 3))
    assert share.rows(8).tolist() == [2, 3, 6, 7]
    assert not share.whole and whole_share(4).whole
    assert whole_share(4).rows(8).tolist() == list(range(8))


def test_a_block_is_the_place_of_a_device_among_the_rows_read():
    """Of the rows 2, 3, 6, 7 that were read, those of device 3, whose part begins at row 6, are the last two."""
    share = Share(4, (1, 3))
    assert (share.block(2, size=8), share.block(6, size=8)) == (slice(0, 2), slice(2, 4))


@st.composite
def divisions(draw):
    """Devices of 1 to 4 processes, interleaved in any way."""
    owner = draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
    shares = [Share(len(owner), tuple(np.flatnonzero(np.equal(owner, one)).tolist())) for one in sorted(set(owner))]
    return shares


@given(divisions(), st.integers(1, 5))
def test_shares_partition_the_rows_whatever_process_has_which_device(shares, each):
    """Every row of a batch is read by one process, and each block leads back to the rows of its device."""
    size = each * shares[0].num_devices
    read = np.concatenate([share.rows(size) for share in shares])
    assert sorted(read.tolist()) == list(range(size))
    for share in shares:
        for place in share.positions:
            block = share.rows(size)[share.block(place * each, size=size)]
            assert block.tolist() == list(range(place * each, (place + 1) * each))


def shared(shares, count, batch, **options):
    """What each process reads of 2 epochs: a list of batches each."""
    source, plan = rows(np.arange(count)), plan_batches(count, batch, devices=shares[0].num_devices, **options)
    order = EpochOrder(count, 3, True)
    return plan, [
        list(batches(source, plan, order=order, stop_step=2 * plan.steps_per_epoch, share=share)) for share in shares
    ]


@settings(max_examples=50)
@given(divisions(), st.integers(1, 40), st.integers(1, 12))
def test_each_row_of_an_epoch_is_read_by_one_process_only(shares, count, batch):
    """Padded epochs of any length: the valid rows of all processes together are every row, once."""
    plan, by_process = shared(shares, count, batch, remainder="pad")
    for epoch in range(2):
        seen = []
        for share, own in zip(shares, by_process, strict=True):
            for item in (item for item in own if item.epoch == epoch):
                places = share.rows(plan.padded)
                assert item.size == plan.padded and len(item.data) == len(places)
                assert [item.place_of(row) for row in range(len(places))] == (
                    places.tolist() if not share.whole else list(range(len(places)))
                )
                seen += np.asarray(item.data)[item.mask()[places]].tolist()
        assert sorted(seen) == list(range(count))


@given(divisions(), st.integers(1, 30), st.integers(1, 10))
@settings(max_examples=50)
def test_the_order_does_not_depend_on_the_share(shares, count, batch):
    """`indices` of every batch are the global ones, equal in all processes and to those of a run of one."""
    _, by_process = shared(shares, count, batch, remainder="pad")
    _, (alone,) = shared([whole_share(shares[0].num_devices)], count, batch, remainder="pad")
    for own in by_process:
        assert [item.indices.tolist() for item in own] == [item.indices.tolist() for item in alone]
        assert [(item.rows, item.epoch, item.position) for item in own] == [
            (item.rows, item.epoch, item.position) for item in alone
        ]


def test_a_process_whose_devices_have_only_padding_reads_one_row_for_it():
    """5 rows padded to 8 on 4 devices: device 3 holds nothing but padding, repeated from the last valid row."""
    source, share = rows(np.arange(5)), Share(4, (3,))
    (item,) = eval_batches(source, 8, devices=4, pad=True, share=share)
    assert item.data.tolist() == [4, 4] and item.mask().tolist() == [True] * 5 + [False] * 3
