"""Which settings are worth a try beside the current one, one option at a time.

Owns: the order of the options, their values, which of them change the training, why one is left out.
Not here: trying them (`search`, `rig`).
Invariant: with `keep_training`, every setting computes the same updates as the user's own, up to rounding.

Values climb: an option offers the neighbours of its current value, and is asked again after one of them was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from paceline.base.units import format_bytes
from paceline.engine.parallel import Parallel, Placement
from paceline.measure.tune.setting import Setting

_MB = 1_000_000
BUCKETS_BYTES = (1 * _MB, 4 * _MB, 16 * _MB, 64 * _MB)
"""Sizes of buckets: from about where a network's bandwidth is reached to where too little can overlap with backward.
PyTorch's default is 25 MiB (documentation of DistributedDataParallel)."""

MOST_PREFETCH = 16


@dataclass(frozen=True)
class Option:
    """A setting to try.

    Args:
      name: of the option: ``batch``, ``scheme``, ...
      change: what changes, in words: ``scheme per_device``.
      setting: None if it is left out.
      note: how it changes the training; empty if it does not.
      why_not: why it is left out.
    """

    name: str
    change: str
    setting: Setting | None
    note: str = ""
    why_not: str = ""


@dataclass(frozen=True)
class Room:
    """What the choice depends on beside the current setting.

    Args:
      devices: K.
      found_for: the step that `largest_rows` was found for; with another placement or other microbatches others fit.
      largest_rows: most rows a device that fit its memory; None if no end was found.
      refuses: whether a setting that does not fit is seen before it runs: limit and needs are known.
      data_rows: rows a device that the data has.
      gradient_bytes: of one device, as they cross the wire.
      sees_rows_together: the model has state, as BatchNorm has: its result depends on which rows it sees at once.
      can_sync: it can be told to reduce its statistics over devices.
      keep_training: leave out what would change the updates.
    """

    devices: int
    found_for: Parallel
    largest_rows: int | None
    refuses: bool
    data_rows: int
    gradient_bytes: int
    sees_rows_together: bool
    can_sync: bool
    keep_training: bool


Axis = Callable[[Setting, Room], Iterator[Option]]


def batch(current: Setting, room: Room) -> Iterator[Option]:
    """Twice the batch, as long as it fits."""
    if room.keep_training:
        return
    rows = 2 * current.batch
    change = f"batch {rows:,}"
    why_not = _too_many(rows // room.devices, current, room)
    if why_not:
        yield Option("batch", change, None, why_not=why_not)
    else:
        yield Option("batch", change, replace(current, batch=rows), note="a larger batch is another training")


def _too_many(rows: int, current: Setting, room: Room) -> str:
    """Why so many rows a device are not tried; empty if they are: then the trial tells whether they fit."""
    if rows > room.data_rows:
        return f"{rows:,} rows a device are more than the data has ({room.data_rows:,})"
    if not room.refuses:
        return "how many rows fit is unknown; --memory-gb tells"
    if room.largest_rows is not None and rows > room.largest_rows and current.parallel == room.found_for:
        return f"{rows:,} rows a device are more than fit ({room.largest_rows:,})"
    return ""


def scheme(current: Setting, room: Room) -> Iterator[Option]:
    """The other of the two schemes; `pmap` is a yardstick and is not offered."""
    if room.devices == 1:
        return
    if current.parallel.scheme != "global_view":
        yield from _to_global_view(current, room)
        return
    local = current.with_parallel(scheme="per_device")
    if not room.sees_rows_together:
        yield Option("scheme", "scheme per_device", local)
        return
    if room.can_sync:
        yield Option("scheme", "scheme per_device, synced BatchNorm", local.with_parallel(batch_norm="synced"))
    change, note = "scheme per_device, local BatchNorm", "BatchNorm sees the rows of a device, not of the batch"
    if room.keep_training:
        yield Option("scheme", change, None, why_not=note)
    else:
        yield Option("scheme", change, local, note=note)


def _to_global_view(current: Setting, room: Room) -> Iterator[Option]:
    parallel, change = current.parallel, "scheme global_view"
    if parallel.reduce_dtype is not None or parallel.dropout != "global":
        why = f"it has no reduce_dtype={parallel.reduce_dtype!r} with dropout={parallel.dropout!r}"
        yield Option("scheme", change, None, why_not=why)
        return
    local = room.sees_rows_together and parallel.batch_norm != "synced"
    note = "BatchNorm sees the rows of the batch, not of a device" if local else ""
    if local and room.keep_training:
        yield Option("scheme", change, None, why_not=note)
        return
    whole = current.with_parallel(scheme="global_view", batch_norm=None, bucket_bytes=None, noise_scale=False)
    yield Option("scheme", change, whole, note=note)


def placement(current: Setting, room: Room) -> Iterator[Option]:
    """The other placements."""
    if room.devices == 1 or current.parallel.scheme == "pmap":
        return
    places: tuple[Placement, ...] = ("replicated", "zero1", "fsdp")
    for name in places:
        if name != current.parallel.placement:
            yield Option("placement", f"placement {name}", current.with_parallel(placement=name, bucket_bytes=None))


def accumulation(current: Setting, room: Room) -> Iterator[Option]:
    """Half and twice the microbatches."""
    count, rows = current.parallel.accumulation, current.batch // room.devices
    for other in (count // 2, 2 * count):
        if other < 1 or rows % other or other == count:
            continue
        change = f"accumulation {other}"
        note = "BatchNorm sees the rows of a microbatch" if room.sees_rows_together else ""
        if note and room.keep_training:
            yield Option("accumulation", change, None, why_not=note)
        else:
            yield Option("accumulation", change, current.with_parallel(accumulation=other), note=note)


def bucket(current: Setting, room: Room) -> Iterator[Option]:
    """A message a leaf, and buckets of several sizes: those below the gradients' own, and one that holds them all."""
    if not _has_buckets(current.parallel) or room.devices == 1:
        return
    below = [size for size in BUCKETS_BYTES if size < room.gradient_bytes]
    whole = next((size for size in BUCKETS_BYTES if size >= room.gradient_bytes), None)
    sizes: list[int | None] = [None, *below, *([] if whole is None else [whole])]
    for size in sizes:
        if size != current.parallel.bucket_bytes:
            change = "bucket of every leaf" if size is None else f"bucket {format_bytes(size)}"
            yield Option("bucket", change, current.with_parallel(bucket_bytes=size))


def prefetch(current: Setting, room: Room) -> Iterator[Option]:
    """Twice the batches made ahead."""
    del room
    if 2 * current.prefetch <= MOST_PREFETCH:
        yield Option(
            "prefetch", f"prefetch {2 * current.prefetch}", replace(current, prefetch=2 * current.prefetch)
        )  # fmt: skip


AXES: tuple[Axis, ...] = (batch, scheme, placement, accumulation, bucket, prefetch)
"""In this order: the batch decides what the rest costs, and buckets exist only under some schemes and placements."""


def _has_buckets(parallel: Parallel) -> bool:
    return parallel.scheme != "global_view" and parallel.placement == "replicated"
