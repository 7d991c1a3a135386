"""Which settings are offered beside the current one."""

from __future__ import annotations

import dataclasses

import pytest

from paceline.engine.parallel import Parallel
from paceline.measure.tune import options
from paceline.measure.tune.options import Room
from paceline.measure.tune.setting import Setting

ROOM = Room(
    devices=4, found_for=Parallel(), largest_rows=64, refuses=True, data_rows=1000, gradient_bytes=5_000_000,
    sees_rows_together=False, can_sync=False, keep_training=False,
)  # fmt: skip
BATCH_NORM = dataclasses.replace(ROOM, sees_rows_together=True, can_sync=True)
STRICT = dataclasses.replace(BATCH_NORM, keep_training=True)


def offered(axis, setting, room=ROOM) -> dict[str, str]:
    """What is offered, and what is said of it: how it changes the training, or why it is left out."""
    return {option.change: option.note or option.why_not for option in axis(setting, room)}


def per_device(**fields) -> Setting:
    return Setting(64, Parallel("per_device", **fields))


@pytest.mark.parametrize(
    ("change", "parallel", "why"),
    [
        ({}, Parallel(), "128 rows a device are more than fit (64)"),
        ({}, Parallel(placement="zero1"), ""),
        ({}, Parallel(accumulation=2), ""),
        ({"largest_rows": None}, Parallel(), ""),
        ({"largest_rows": None, "data_rows": 100}, Parallel(), "128 rows a device are more than the data has (100)"),
        ({"data_rows": 100}, Parallel(placement="zero1"), "128 rows a device are more than the data has (100)"),
        ({"largest_rows": None, "refuses": False}, Parallel(placement="zero1"), "how many rows fit is unknown"),
    ],
)
def test_a_batch_is_left_out_for_its_own_reason(change, parallel, why):
    """From 256 rows on 4 devices to 128 each. What was found for one step says nothing of another: the trial tells."""
    (option,) = options.batch(Setting(256, parallel), dataclasses.replace(ROOM, **change))
    assert option.why_not.startswith(why) and bool(option.why_not) == bool(why)
    assert (option.setting is None) == bool(why)


def test_microbatches_divide_the_rows_of_a_device():
    """64 rows on 4 devices in 2 microbatches: 1 and 4; in 16: 8, and not 32. From 1: 2 alone."""
    at = [offered(options.accumulation, per_device(accumulation=count)) for count in (1, 2, 16)]
    assert [list(found) for found in at] == [
        ["accumulation 2"],
        ["accumulation 1", "accumulation 4"],
        ["accumulation 8"],
    ]


def test_buckets_are_those_below_the_gradients_and_one_that_holds_all():
    """5 MB of gradients: 1, 4 and 16 MB; without buckets now. 64 MB would be the same as 16."""
    assert list(offered(options.bucket, per_device())) == ["bucket 1.0 MB", "bucket 4.0 MB", "bucket 16.0 MB"]
    assert list(offered(options.bucket, per_device(bucket_bytes=4_000_000))) == [
        "bucket of every leaf",
        "bucket 1.0 MB",
        "bucket 16.0 MB",
    ]


@pytest.mark.parametrize("parallel", [Parallel(), Parallel("per_device", placement="zero1")])
def test_buckets_are_not_offered_where_the_engine_refuses_them(parallel):
    assert offered(options.bucket, Setting(64, parallel)) == {}


@pytest.mark.parametrize("axis", [options.scheme, options.placement, options.bucket])
def test_one_device_has_nothing_to_share(axis):
    alone = dataclasses.replace(ROOM, devices=1)
    assert offered(axis, per_device(), alone) == {} and offered(axis, Setting(64, Parallel()), alone) == {}


def test_a_model_with_batch_norm_is_offered_both_kinds_and_told_which_changes_it():
    """Synced statistics are those of global_view; local ones are another training, which --fix-batch leaves out."""
    found = offered(options.scheme, Setting(64, Parallel()), BATCH_NORM)
    assert found == {
        "scheme per_device, synced BatchNorm": "",
        "scheme per_device, local BatchNorm": "BatchNorm sees the rows of a device, not of the batch",
    }
    kept = [option.setting for option in options.scheme(Setting(64, Parallel()), STRICT) if option.setting]
    assert [setting.parallel.batch_norm for setting in kept] == ["synced"]


def test_microbatches_of_a_model_with_batch_norm_are_another_training():
    (tried,) = options.accumulation(Setting(64, Parallel()), BATCH_NORM)
    (left,) = options.accumulation(Setting(64, Parallel()), STRICT)
    assert tried.note and tried.setting and not left.setting and left.why_not == tried.note


def test_options_that_global_view_does_not_have_keep_the_scheme():
    """A type on the wire, or dropout of each device, would be lost: left out, with the reason."""
    for setting in (per_device(reduce_dtype="bfloat16"), per_device(dropout="per_device")):
        (option,) = options.scheme(setting, ROOM)
        assert option.setting is None and "reduce_dtype" in option.why_not
    (plain,) = options.scheme(per_device(bucket_bytes=1000, noise_scale=True), ROOM)
    assert plain.setting == Setting(64, Parallel())


def test_a_placement_drops_the_buckets_that_it_cannot_have():
    found = [option.setting for option in options.placement(per_device(bucket_bytes=1000), ROOM)]
    assert [setting.parallel.placement for setting in found if setting] == ["zero1", "fsdp"]
    assert all(setting.parallel.bucket_bytes is None for setting in found if setting)


def test_flags_name_what_a_run_would_not_do_untold():
    """And only that: the default batch and scheme are left out."""
    default = Setting(128, Parallel())
    tuned = Setting(256, Parallel("per_device", accumulation=2, batch_norm="synced", bucket_bytes=2_500_000), 4)
    assert default.flags(default=default) == []
    assert tuned.flags(default=default) == [
        "--batch 256",
        "--scheme per_device",
        "--accumulation 2",
        "--batch-norm synced",
        "--bucket-mb 2.5",
        "--prefetch 4",
    ]
