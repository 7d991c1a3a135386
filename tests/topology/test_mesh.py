"""The data mesh and the layouts on it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from paceline.topology.mesh import data_mesh, replicated, rows_by_device, split_microbatch_rows, split_rows


def test_the_mesh_has_one_auto_axis_named_data():
    """Explicit axes, JAX's default, would refuse the reshape and the gather of ordinary model code."""
    mesh = data_mesh(jax.devices()[:4])
    assert mesh.axis_names == ("data",) and mesh.size == 4
    assert mesh.axis_types == (AxisType.Auto,)
    rows = jax.device_put(np.arange(8.0), split_rows(mesh))
    np.testing.assert_array_equal(jax.jit(lambda x: x.reshape(2, 4)[jnp.array([1, 0])].ravel())(rows)[:4], [4, 5, 6, 7])


def test_the_mesh_keeps_the_order_of_the_devices():
    devices = jax.devices()[3::-1]
    assert list(data_mesh(devices).devices.flat) == devices


@pytest.mark.parametrize(
    "layout, shape, part",
    [(replicated, (8, 2), (8, 2)), (split_rows, (8, 2), (2, 2)), (split_microbatch_rows, (3, 8, 2), (3, 2, 2))],
)
def test_a_layout_gives_each_device_its_part(layout, shape, part):
    """On four devices: the whole, a quarter of the rows, or a quarter of the rows of each microbatch, in order."""
    whole = np.arange(np.prod(shape)).reshape(shape)
    array = jax.device_put(whole, layout(data_mesh(jax.devices()[:4])))
    assert [shard.data.shape for shard in array.addressable_shards] == [part] * 4
    for device, shard in enumerate(array.addressable_shards):
        assert shard.device == jax.devices()[device]
        np.testing.assert_array_equal(shard.data, whole[shard.index])
    if layout is split_rows:
        np.testing.assert_array_equal(array.addressable_shards[1].data, whole[2:4])


def test_rows_are_stacked_in_order():
    """6 rows on 3 devices: 0 1, 2 3, 4 5."""
    assert rows_by_device({"x": np.arange(6)}, num_devices=3)["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
