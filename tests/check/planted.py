"""Arrays whose replicas differ although their sharding says that they are equal.

Owns: planting other bytes on chosen devices, whole or as a flipped bit; the two layouts of copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from paceline.topology.mesh import data_mesh

WHOLE = PartitionSpec()


def mesh_of(devices: int) -> Mesh:
    """The first so many devices."""
    return data_mesh(jax.devices()[:devices])


def replicas_of(values: Mapping[int, Any] | list[Any], *, mesh: Mesh | None = None) -> jax.Array:
    """A "replicated" array that holds ``values[place]`` on each device; keys (typed) are taken too."""
    mesh = mesh or mesh_of(len(values))
    shards = [jax.device_put(values[place], device) for place, device in enumerate(mesh.devices.flat)]
    return jax.make_array_from_single_device_arrays(shards[0].shape, NamedSharding(mesh, WHOLE), shards)


def stacked_of(values: list[np.ndarray]) -> jax.Array:
    """``[K, ...]`` with one row a device, as `jax.pmap` returns it."""
    return jax.pmap(lambda row: row, devices=jax.devices()[: len(values)])(np.stack(values))


def flipped(array: np.ndarray, *, place: int, bit: int = 0) -> np.ndarray:
    """A copy with one bit of element `place` flipped."""
    copied = np.array(array)
    width = copied.dtype.itemsize
    copied.reshape(-1).view(np.uint8)[(place % copied.size) * width + bit // 8] ^= 1 << bit % 8
    return copied


def corrupted(leaf: jax.Array, *, device: int, bit: int = 0) -> jax.Array:
    """The leaf with one bit of the first element flipped in what `device` (an id) holds; its label stays."""
    shards = []
    for shard in leaf.addressable_shards:
        data = np.asarray(shard.data)
        shards.append(
            jax.device_put(flipped(data, place=0, bit=bit) if shard.device.id == device else data, shard.device)
        )
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, shards)


def bytes_by_device(leaf: jax.Array) -> list[bytes]:
    """What each device holds; of keys their words."""
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(s.data) if is_key else s.data).tobytes() for s in leaf.addressable_shards]
