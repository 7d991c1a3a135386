"""Host batches to where the scheme wants them.

Owns: the transfer of rows, the mask of valid rows, the device axis of the `pmap` scheme.
Invariant: every placed batch of a run has one layout, so a step compiles once; and none shares memory that its maker
may write to again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from paceline.base.errors import BatchSizeError
from paceline.data.batch import HostBatch, check_batch
from paceline.data.share import Share
from paceline.data.tree import check_integers, map_leaves
from paceline.engine.parallel import Parallel
from paceline.topology.mesh import local_positions, replicated, rows_by_device, split_rows


@dataclass(frozen=True, eq=False)
class PlacedBatch:
    """A global batch on the devices.

    Args:
      data: leaves ``[B@data, ...]``; under `pmap` ``[K, B/K, ...]``.
      valid: bool, same leading dims; False marks padding.
      host: the batch it was made from.
    """

    data: Any
    valid: Array
    host: HostBatch

    @property
    def rows(self) -> int:
        """Valid rows."""
        return self.host.rows


class Placer:
    """Puts host batches on the devices of a mesh. Safe to call from the feed's thread."""

    def __init__(self, parallel: Parallel, mesh: jax.sharding.Mesh) -> None:
        self._parallel = parallel
        self._num_devices = mesh.size
        self.share = Share(mesh.size, local_positions(mesh))
        """The rows of a global batch that this process reads."""
        self._rows, self._whole = split_rows(mesh), replicated(mesh)
        self._all_valid: dict[tuple[int, int | None], Array] = {}
        # A feed runs `place` in its own thread, where JAX forgets what a `with jax.enable_x64()` block had set.
        self._x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]: set at run time by JAX

    def train_batch(self, host: HostBatch) -> PlacedBatch:
        """Split over the devices; under `pmap` with a leading device axis.

        Raises: DataError: integers that would wrap on the devices.
        """
        host = _owned(host)
        axis = self._num_devices if self._parallel.scheme == "pmap" else None
        with jax.enable_x64(self._x64):
            check_integers(host.data, noun="batch")
            return PlacedBatch(self._put(host, axis), self._valid(host, axis), host)

    def evaluation_batch(self, host: HostBatch) -> PlacedBatch:
        """Split over the devices if the rows divide, else whole on each of them, which then all compute the same.

        Raises: DataError: integers that would wrap on the devices.
        """
        host = _owned(host)
        with jax.enable_x64(self._x64):
            check_integers(host.data, noun="batch")
            if host.size % self._num_devices == 0:
                return PlacedBatch(self._put(host, None), self._valid(host, None), host)
            data, mask = _put_rows((host.data, host.mask()), self._whole)
            return PlacedBatch(data, mask, host)

    def user_batch(self, batch: Any) -> PlacedBatch:
        """A batch that the user made: checked, then split over the devices.

        Raises:
          DataError, BatchSizeError: no rows, or rows that do not split over devices and microbatches.
        """
        rows = self.check(batch)
        if not self.share.whole:
            return self._user_share(batch, rows)
        # Lists and host tensors become arrays; arrays on a device stay there.
        data = map_leaves(lambda leaf: leaf if isinstance(leaf, Array) else np.asarray(leaf), batch)
        host = HostBatch(data, None, rows=rows, epoch=0, position=0, indices=None)
        return self.train_batch(host)

    def _user_share(self, batch: Any, rows: int) -> PlacedBatch:
        """In a run of several processes the batch holds the rows of this process only."""
        total = rows * self._num_devices // len(self.share.positions)
        host = HostBatch(
            map_leaves(np.asarray, batch), None, total, epoch=0, position=0, indices=None, share=self.share
        )
        return self.train_batch(host)

    def check(self, batch: Any) -> int:
        """The rows of a batch, after the check that they split evenly over the devices of this process."""
        try:
            return check_batch(batch, devices=len(self.share.positions), microbatches=self._parallel.accumulation)
        except BatchSizeError as error:
            error.fix = error.fix.replace("--batch ", "a batch of ").replace("--remainder pad", "fit(remainder='pad')")
            raise

    def _put(self, host: HostBatch, axis: int | None) -> Any:
        if host.share is None:
            return _put_rows(_with_axis(host.data, axis), self._rows)
        return jax.tree.map(lambda leaf: self._put_share(np.asarray(leaf), host, axis=axis), host.data)

    def _put_share(self, leaf: np.ndarray, host: HostBatch, *, axis: int | None) -> Array:
        """The global array ``[B, ...]``, or ``[K, B/K, ...]``, of which this process holds the rows of its share."""
        share, size, num_devices = host.share, host.size, self._num_devices
        assert share is not None, "asked for a share only"
        each = size // num_devices

        def part(index: Any) -> np.ndarray:
            start = index[0].start or 0
            own = leaf[share.block(start if axis is None else start * each, size=size)]
            return own if axis is None else own[None]

        shape = (size, *leaf.shape[1:]) if axis is None else (num_devices, each, *leaf.shape[1:])
        return jax.make_array_from_callback(shape, self._rows, part)

    def _valid(self, host: HostBatch, axis: int | None) -> Array:
        if host.valid is not None:
            return _put_rows(_with_axis(host.valid, axis), self._rows)
        key = (host.size, axis)
        if key not in self._all_valid:
            self._all_valid[key] = _put_rows(_with_axis(host.mask(), axis), self._rows)
        return self._all_valid[key]


def shares_by_process(mesh: jax.sharding.Mesh) -> list[Share]:
    """The share of every process, by index."""
    count = max(device.process_index for device in mesh.devices.flat) + 1
    places: list[list[int]] = [[] for _ in range(count)]
    for place, device in enumerate(mesh.devices.flat):
        places[device.process_index].append(place)
    return [Share(mesh.size, tuple(own)) for own in places]


def _owned(host: HostBatch) -> HostBatch:
    """The batch in memory of its own, unless it was read by row from a source.

    A loader may fill its buffer anew for the next batch. JAX reads a numpy array after `device_put` has returned, or
    uses its memory for good: the step would train on other rows, without a word.
    """
    if host.indices is not None:
        return host
    copied = jax.tree.map(lambda leaf: leaf if isinstance(leaf, Array) else np.array(leaf), host.data)
    return dataclasses.replace(host, data=copied)


def _put_rows(tree: Any, rows: NamedSharding) -> Any:
    """`jax.device_put` to a row-split sharding, at half its price for numpy arrays, which it slices by JAX's machinery.

    Both types of leaf end the same: canonical dtype, committed, perhaps sharing the memory of an aligned numpy array.
    """

    def put(leaf: Any) -> Array:
        if isinstance(leaf, np.ndarray):
            return jax.make_array_from_callback(leaf.shape, rows, leaf.__getitem__)
        return jax.device_put(leaf, rows)

    return jax.tree.map(put, tree)


def _with_axis(tree: Any, num_devices: int | None) -> Any:
    """``[B, ...]`` to ``[K, B/K, ...]``, or as it is."""
    return tree if num_devices is None else rows_by_device(tree, num_devices=num_devices)
