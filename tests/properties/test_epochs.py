"""Shards partition an epoch: every row once, or counted as dropped, on any number of devices."""

from __future__ import annotations

import functools
from collections import Counter

import hypothesis.strategies as st
import numpy as np
from hypothesis import assume, example, given, settings

from tests.train.linear import trainer_of

EPOCHS = 2


@functools.cache
def trainer(devices, scheme="global_view"):
    return trainer_of(devices=devices, scheme=scheme)


def shards(batch):
    """[(row numbers, valid)] of each device, as the device holds them."""
    by_device = {shard.device: np.asarray(shard.data).ravel() for shard in batch.data.addressable_shards}
    valid = {shard.device: np.asarray(shard.data).ravel() for shard in batch.valid.addressable_shards}
    return [(by_device[device], valid[device]) for device in by_device]


def seen(rows, batch, devices, *, scheme="global_view", **options):
    """Rows that the devices hold as valid in each epoch, and the shares of the devices."""
    epochs = [Counter() for _ in range(EPOCHS)]
    shares = set()
    feed = trainer(devices, scheme).feed(np.arange(rows), batch=batch, epochs=EPOCHS, **options)
    with feed:
        for item in feed:
            parts = shards(item)
            assert len(parts) == devices
            shares.update(len(numbers) for numbers, _ in parts)
            for numbers, valid in parts:
                epochs[item.host.epoch].update(numbers[valid].tolist())
    return epochs, shares


rows_of = st.integers(1, 50)
batch_of = st.integers(1, 40)
devices_of = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=40)
@given(rows=rows_of, batch=batch_of, devices=devices_of, seed=st.integers(0, 99), shuffle=st.booleans())
@example(rows=103, batch=16, devices=8, seed=0, shuffle=True)
@example(rows=1, batch=1, devices=8, seed=0, shuffle=True)
@example(rows=19, batch=19, devices=4, seed=0, shuffle=False)
def test_padding_gives_every_row_once_an_epoch(rows, batch, devices, seed, shuffle):
    """Whatever N, B and K: each row is valid on exactly one device, exactly once an epoch, and the shares are equal."""
    epochs, shares = seen(rows, batch, devices, remainder="pad", seed=seed, shuffle=shuffle)
    assert epochs == [Counter(range(rows))] * EPOCHS
    assert len(shares) == 1


@settings(max_examples=40)
@given(rows=rows_of, parts=st.integers(1, 8), devices=devices_of, seed=st.integers(0, 99))
@example(rows=103, parts=2, devices=8, seed=0)
def test_dropping_gives_no_row_twice_and_leaves_out_the_remainder(rows, parts, devices, seed):
    """B = K * parts: N - N mod B different rows an epoch."""
    batch = parts * devices
    assume(batch <= rows)
    epochs, shares = seen(rows, batch, devices, seed=seed)
    for epoch in epochs:
        assert set(epoch.values()) == {1}
        assert len(epoch) == rows - rows % batch
    assert shares == {parts}


@settings(max_examples=12)
@given(rows=st.integers(8, 60), devices=devices_of, seed=st.integers(0, 9))
def test_the_device_axis_of_pmap_holds_the_same_shards(rows, devices, seed):
    """Device d holds the rows d*B/K to (d+1)*B/K of the batch in both layouts."""

    def held(scheme):
        with trainer(devices, scheme).feed(np.arange(rows), batch=8, epochs=1, seed=seed) as feed:
            return [[numbers.tolist() for numbers, _ in shards(item)] for item in feed]

    assert held("pmap") == held("global_view")


@settings(max_examples=12)
@given(rows=st.integers(8, 60), first_step=st.integers(0, 20), seed=st.integers(0, 9))
def test_a_feed_begun_at_any_step_gives_the_rows_of_that_step(rows, first_step, seed):
    """Seek replays nothing: the rows of steps s and s + 1 are those of a feed from 0."""

    def numbers(first_step, steps):
        feed = trainer(2).feed(np.arange(rows), batch=8, steps=steps, first_step=first_step, seed=seed)
        with feed:
            return [np.asarray(item.data).tolist() for item in feed]

    assert numbers(first_step, 2) == numbers(0, first_step + 2)[first_step:]
