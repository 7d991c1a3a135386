"""The one-dimensional data mesh and the two layouts that live on it.

Owns: the mesh axis ``data``, the replicated and the row-split sharding.
Invariant: the axis is an Auto axis. `jax.make_mesh` defaults to Explicit ones, under which ordinary model code breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA_AXIS = "data"


def data_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """A mesh of one Auto axis ``data`` over `devices`, in their order."""
    return Mesh(np.asarray(devices), (DATA_AXIS,), axis_types=(AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def split_rows(mesh: Mesh) -> NamedSharding:
    """``[B@data, ...]``: device d holds rows d*B/K to (d+1)*B/K."""
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def split_microbatch_rows(mesh: Mesh) -> NamedSharding:
    """``[n, B/n@data, ...]``: every microbatch is split over all devices."""
    return NamedSharding(mesh, PartitionSpec(None, DATA_AXIS))


def local_positions(mesh: Mesh) -> tuple[int, ...]:
    """Ascending places in the mesh of the devices that this process addresses."""
    own = mesh.devices.flat[0].client.process_index()
    return tuple(place for place, device in enumerate(mesh.devices.flat) if device.process_index == own)


def put(tree: Any, shardings: Any) -> Any:
    """Arrays of the host as global arrays; every process holds all of the values and gives its devices their parts.

    In a run of one process this is `jax.device_put`. With several, `device_put` compares the values in a collective
    of its own, without a name for what differs; here the audit before the first step does that.
    """

    def put_leaf(leaf: Any, sharding: NamedSharding) -> jax.Array:
        if sharding.is_fully_addressable or (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable):
            return jax.device_put(leaf, sharding, may_alias=False)
        if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                put_leaf(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf)
            )
        value = np.asarray(leaf)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: np.array(value[index]))

    return jax.tree.map(put_leaf, tree, shardings)


def rows_by_device(tree: Any, *, num_devices: int) -> Any:
    """``[B, ...]`` to ``[K, B/K, ...]``: the leading device axis of `jax.pmap`, in the order of `split_rows`."""

    def split(leaf: Any) -> Any:
        return leaf.reshape(num_devices, leaf.shape[0] // num_devices, *leaf.shape[1:])

    return jax.tree.map(split, tree)
