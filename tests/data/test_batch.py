"""Cutting an epoch into batches: divisibility, the uneven last batch, seek, evaluation."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.base.errors import BatchSizeError, DataError, OptionError
from paceline.data.batch import (
    batches,
    check_batch,
    check_remainder,
    eval_batches,
    pad_rows,
    plan_batches,
)
from paceline.data.order import EpochOrder
from paceline.data.source import MapSource, rows


def source_of(num_rows: int):
    return rows({"id": np.arange(num_rows), "x": np.arange(2.0 * num_rows).reshape(num_rows, 2)})


def refusal(*args, **options) -> BatchSizeError:
    with pytest.raises(BatchSizeError) as caught:
        plan_batches(*args, **options)
    return caught.value


def test_an_uneven_batch_names_leaf_sizes_devices_and_the_nearest_sizes():
    """openpi#607: (19, 10, 32) on 4 devices names the leaf, 19, 4, and 16 or 20."""
    with pytest.raises(BatchSizeError) as caught:
        check_batch({"image": np.ones((19, 10, 32))}, devices=4)
    assert all(word in caught.value.what for word in ("'image'", "19 rows", "4 devices"))
    assert caught.value.fix == "use --batch 16 or 20, or --remainder pad"


def test_fewer_rows_than_devices_is_said():
    """diffusers#1088: 4 rows on 8 devices; the size 0 is not offered."""
    with pytest.raises(BatchSizeError) as caught:
        check_batch({"image": jnp.ones((4, 3))}, devices=8)
    assert "4 rows for 8 devices" in caught.value.what
    assert caught.value.fix == "use --batch 8, or --remainder pad"


def test_microbatches_count_towards_the_multiple():
    """20 rows split over 4 devices, not over 4 x 2; 16 and 24 do."""
    assert check_batch(np.ones(20), devices=4) == 20
    with pytest.raises(BatchSizeError) as caught:
        check_batch(np.ones(20), devices=4, microbatches=2)
    assert "the batch has 20 rows" in caught.value.what and "4 devices x 2 microbatches" in caught.value.what
    assert "16 or 24" in caught.value.fix


def test_a_further_multiple_is_respected():
    """12 rows on 4 devices, in multiples of 8: lcm 8, so 8 or 16."""
    with pytest.raises(BatchSizeError, match="multiples of 8") as caught:
        check_batch(np.ones(12), devices=4, multiple=8)
    assert "8 or 16" in caught.value.fix


@given(size=st.integers(1, 500), devices=st.integers(1, 16), microbatches=st.integers(1, 4))
def test_every_size_that_a_fix_offers_is_accepted(size, devices, microbatches):
    """The numbers in the fix, tried: each passes the check that the original failed."""
    try:
        check_batch(np.ones(size), devices=devices, microbatches=microbatches)
        assert size % (devices * microbatches) == 0
    except BatchSizeError as error:
        offered = [int(word.strip(",")) for word in error.fix.split() if word.strip(",").isdigit()]
        assert offered and all(abs(each - size) < devices * microbatches for each in offered)
        for each in offered:
            assert check_batch(np.ones(each), devices=devices, microbatches=microbatches) == each


@pytest.mark.parametrize("tree", [{"x": np.ones(4), "y": np.ones(3)}, {"x": np.float32(1)}, {}, {"x": np.ones((0, 2))}])
def test_a_batch_that_is_no_rows_is_a_data_error(tree):
    """Different counts, scalar, empty, no rows: not a matter of divisibility."""
    with pytest.raises(DataError):
        check_batch(tree, devices=1)


def test_103_rows_in_batches_of_16_drop_7_or_pad_9():
    """FabricPC#46: 6 steps and 7 dropped, or 7 steps with all 103 rows and 7 x 16 - 103 = 9 of padding."""
    drop = plan_batches(103, 16, devices=8)
    assert (drop.steps_per_epoch, drop.dropped_per_epoch, drop.padding_per_epoch) == (6, 7, 0)
    pad = plan_batches(103, 16, devices=8, remainder="pad")
    assert (pad.steps_per_epoch, pad.dropped_per_epoch, pad.padding_per_epoch) == (7, 0, 9)


def test_60000_rows_at_64_a_device_on_8_are_117_updates():
    """accelerate#662: 60000 = 117 x 512 + 96."""
    plan = plan_batches(60_000, 8 * 64, devices=8)
    assert (plan.steps_per_epoch, plan.dropped_per_epoch) == (117, 96)


def test_padding_rounds_an_uneven_batch_up():
    """19 rows on 4 devices x 2 microbatches become 24, of which 19 are valid in a full batch."""
    plan = plan_batches(38, 19, devices=4, microbatches=2, remainder="pad")
    assert (plan.batch, plan.padded, plan.steps_per_epoch, plan.padding_per_epoch) == (19, 24, 2, 10)


def test_rows_left_over_are_refused_when_asked():
    """103 in 16 leave 7. 100 in 16 on 2 devices: 10 divides; 103 is prime, so only padding or dropping helps."""
    prime = refusal(103, 16, devices=8, remainder="refuse")
    assert "leave 7" in prime.what and prime.fix.startswith("use --remainder pad")
    assert "--batch 10," in refusal(100, 16, devices=2, remainder="refuse").fix
    assert plan_batches(96, 16, devices=8, remainder="refuse").steps_per_epoch == 6


def test_a_batch_larger_than_the_source_is_refused_unless_padded():
    """10 rows, batch 16 on 4 devices: 8 fits. 3 rows on 4 devices: only padding helps."""
    assert "--batch 8 or less" in refusal(10, 16, devices=4).fix
    assert refusal(3, 4, devices=4).fix == "use --remainder pad"
    assert plan_batches(3, 4, devices=4, remainder="pad").steps_per_epoch == 1


@pytest.mark.parametrize("batch", [0, -8])
def test_a_batch_without_rows_is_refused(batch):
    """Names the number and the smallest batch that works."""
    error = refusal(100, batch, devices=4, microbatches=2)
    assert str(batch) in error.what and "--batch 8" in error.fix


def test_an_uneven_planned_batch_is_refused():
    """Batch 19 on 4 devices: before anything was read."""
    error = refusal(100, 19, devices=4)
    assert "a batch of 19 rows" in error.what and "16 or 20" in error.fix


def test_other_senseless_plans_are_refused():
    """No rows; no devices; no microbatches; a misspelled remainder."""
    with pytest.raises(DataError, match="0 rows"):
        plan_batches(0, 4, devices=1)
    for parts in ({"devices": 0}, {"devices": 1, "microbatches": 0}):
        refusal(8, 4, **parts)
    with pytest.raises(OptionError, match="perhaps 'drop'"):
        check_remainder("dropp")


@settings(max_examples=40)
@given(num_rows=st.integers(1, 300), batch=st.integers(1, 64), devices=st.integers(1, 8), seed=st.integers(0, 99))
def test_each_row_of_an_epoch_is_seen_exactly_once_with_padding(num_rows, batch, devices, seed):
    """The valid rows of an epoch are 0..N-1; every batch has one size, a multiple of the devices."""
    plan = plan_batches(num_rows, batch, devices=devices, remainder="pad")
    order = EpochOrder(num_rows, seed)
    epoch = list(batches(source_of(num_rows), plan, order=order, stop_step=plan.steps_per_epoch))
    assert {len(each.data["id"]) for each in epoch} == {plan.padded}
    assert plan.padded % devices == 0
    seen = np.concatenate([each.data["id"][each.mask()] for each in epoch])
    np.testing.assert_array_equal(np.sort(seen), np.arange(num_rows))
    assert sum(each.rows for each in epoch) == num_rows
    assert sum((~each.mask()).sum() for each in epoch) == plan.padding_per_epoch


@settings(max_examples=40)
@given(num_rows=st.integers(8, 300), per_device=st.integers(1, 4), devices=st.integers(1, 2))
def test_dropping_leaves_out_exactly_the_rows_it_counts(num_rows, per_device, devices):
    """Rows seen + dropped = N, none twice, no mask."""
    plan = plan_batches(num_rows, per_device * devices, devices=devices)
    epoch = list(batches(source_of(num_rows), plan, order=EpochOrder(num_rows, 0), stop_step=plan.steps_per_epoch))
    seen = np.concatenate([each.data["id"] for each in epoch])
    assert len(np.unique(seen)) == len(seen) == num_rows - plan.dropped_per_epoch
    assert all(each.valid is None for each in epoch)


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_starting_at_any_step_gives_what_the_whole_run_had_there(remainder):
    """Kill and resume at each of 20 steps over 3 epochs: same rows, same mask, bit for bit."""
    source, order = source_of(103), EpochOrder(103, 5)
    plan = plan_batches(103, 16, devices=8, remainder=remainder)
    whole = list(batches(source, plan, order=order, stop_step=20))
    for start in range(20):
        resumed = list(batches(source, plan, order=order, start_step=start, stop_step=20))
        for one, other in zip(whole[start:], resumed, strict=True):
            np.testing.assert_array_equal(one.data["x"], other.data["x"])
            np.testing.assert_array_equal(one.mask(), other.mask())
            assert (one.epoch, one.position) == (other.epoch, other.position)


def test_a_late_step_reads_its_own_rows_only():
    """Step 10**6 of a billion rows: one read of 4 rows, the ones the order names."""

    class Recorder:
        def __init__(self) -> None:
            self.reads: list[list[int]] = []

        def __len__(self) -> int:
            return 10**9

        def read(self, indices):
            self.reads.append(indices.tolist())
            return {"id": indices}

    source, order = Recorder(), EpochOrder(10**9, 0)
    plan = plan_batches(10**9, 4, devices=4)
    (batch,) = batches(source, plan, order=order, start_step=10**6, stop_step=10**6 + 1)
    assert source.reads == [order.indices(0, start=4 * 10**6, stop=4 * 10**6 + 4).tolist()]
    assert (batch.epoch, batch.position, batch.rows) == (0, 4 * 10**6, 4)


def test_a_batch_tells_its_epoch_position_and_rows():
    """10 rows in 4 with padding: step 5 is the last of epoch 1, position 8, rows 8 and 9."""
    plan = plan_batches(10, 4, devices=2, remainder="pad")
    order = EpochOrder(10, 0, shuffle=False)
    (batch,) = batches(source_of(10), plan, order=order, start_step=5, stop_step=6)
    assert (batch.epoch, batch.position, batch.rows) == (1, 8, 2)
    assert batch.indices is not None and batch.indices.tolist() == [8, 9]
    assert batch.mask().tolist() == [True, True, False, False]
    assert batch.data["id"].tolist() == [8, 9, 9, 9]


def test_a_source_that_gives_too_few_rows_is_named():
    """A source of the user's own that skips a broken row would shift the others."""

    class Skips:
        def __len__(self) -> int:
            return 8

        def read(self, indices):
            return indices[1:]

    plan, order = plan_batches(8, 4, devices=1), EpochOrder(8, 0)
    with pytest.raises(DataError, match="3 rows where 4 were asked for"):
        next(batches(Skips(), plan, order=order, stop_step=1))


def test_padding_repeats_the_last_row_and_keeps_types():
    """Labels stay in range, uint8 stays uint8, the structure stays."""
    padded = pad_rows({"label": np.array([3, 7]), "image": np.full((2, 1), 9, np.uint8)}, 5)
    assert padded["label"].tolist() == [3, 7, 7, 7, 7]
    assert padded["image"].dtype == np.uint8 and padded["image"].shape == (5, 1)


@pytest.mark.parametrize("num_rows", [1, 7, 8, 11, 16, 103])
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_evaluation_sees_every_row_once_in_order(num_rows, devices):
    """flax#264: with padding one size and a mask; without, the tail at its own size."""
    source = MapSource(list(range(num_rows)))
    padded = list(eval_batches(source, 8, devices=devices, pad=True))
    assert {len(each.data) for each in padded} == {8}
    assert np.concatenate([each.data[each.mask()] for each in padded]).tolist() == list(range(num_rows))
    plain = list(eval_batches(source, 8, devices=devices, pad=False))
    assert [len(each.data) for each in plain] == [8] * (num_rows // 8) + [num_rows % 8] * (num_rows % 8 > 0)
    assert all(each.valid is None and each.rows == len(each.data) for each in plain)
    assert np.concatenate([each.data for each in plain]).tolist() == list(range(num_rows))


def test_evaluation_pads_an_uneven_batch_and_refuses_it_without_padding():
    """11 rows, batch 4 on 8 devices: 8 rows a batch with padding; without, the sizes are named."""
    sizes = [(len(each.data["id"]), each.rows) for each in eval_batches(source_of(11), 4, devices=8, pad=True)]
    assert sizes == [(8, 4), (8, 4), (8, 3)]
    with pytest.raises(BatchSizeError, match="4 rows for 8 devices"):
        next(eval_batches(source_of(11), 4, devices=8, pad=False))


@pytest.mark.parametrize("block_rows", [1, 10, 12, 64])
def test_the_order_is_the_same_however_many_rows_it_is_asked_for(block_rows, monkeypatch):
    """The order of several batches is computed at once: block borders inside an epoch change no row, from any step."""
    monkeypatch.setattr("paceline.data.batch._ORDER_BLOCK_ROWS", block_rows)
    plan = plan_batches(50, 4, devices=2)
    order = EpochOrder(50, 3)
    for start in (0, 5, 17):
        made = batches(rows(np.arange(50)), plan, order=order, start_step=start, stop_step=30)
        for step, host in enumerate(made, start):
            epoch, position = step // 12, step % 12 * 4
            np.testing.assert_array_equal(host.indices, order.indices(epoch, start=position, stop=position + 4))
            np.testing.assert_array_equal(host.data, host.indices)
