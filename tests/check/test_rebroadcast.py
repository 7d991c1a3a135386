"""The repair: every replica holds the bytes of a device that the majority agrees with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from paceline.base.errors import ReplicaError
from paceline.check.audit import replicas
from paceline.check.rebroadcast import repair
from tests.check.planted import bytes_by_device, corrupted, flipped, mesh_of, replicas_of, stacked_of

HOST = np.arange(6, dtype=np.float32)
BAD = flipped(HOST, place=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool", "complex64", "float8_e4m3fn"])
def test_every_dtype_is_repaired_bit_for_bit(dtype):
    """Device 0, the first, is the odd one: all hold what devices 1 to 3 hold."""
    host = np.asarray(jnp.asarray(np.arange(6) % 2, dtype))
    tree = {"w": replicas_of([flipped(host, place=5), host, host, host])}
    fixed = repair(tree, replicas(tree))
    assert fixed["w"].dtype == tree["w"].dtype
    assert bytes_by_device(fixed["w"]) == [host.tobytes()] * 4


def test_eight_bytes_nan_payloads_and_keys_survive(x64):
    """float64 NaNs with a payload, and a typed key, from device 1."""
    host = np.array([0x7FF8000000000123, 0], np.uint64).view(np.float64)
    tree = {
        "w": replicas_of([np.zeros(2), host, host]),
        "key": replicas_of([jax.random.key(seed) for seed in (1, 0, 0)]),
    }
    fixed = repair(tree, replicas(tree))
    assert bytes_by_device(fixed["w"]) == [host.tobytes()] * 3
    assert set(bytes_by_device(fixed["key"])) == {np.asarray(jax.random.key_data(jax.random.key(0))).tobytes()}
    assert fixed["key"].dtype == tree["key"].dtype


def test_all_leaves_are_copied_from_one_device_and_split_ones_stay():
    """The audit saw `w` differ on device 0; by now `b` differs there too. The split leaf keeps its parts."""
    rows = np.arange(8, dtype=np.float32)
    split = jax.device_put(rows, NamedSharding(mesh_of(4), PartitionSpec("data")))
    tree = {"w": replicas_of([BAD, HOST, HOST, HOST]), "b": replicas_of([HOST] * 4), "split": split}
    audit = replicas(tree)
    fixed = repair({**tree, "b": replicas_of([BAD, HOST, HOST, HOST])}, audit)
    assert replicas(fixed).ok
    assert bytes_by_device(fixed["b"]) == [HOST.tobytes()] * 4
    assert np.array_equal(fixed["split"], rows)


def test_copies_with_a_device_axis_are_repaired():
    """The pmap layout keeps its shape ``[K, ...]``."""
    tree = [stacked_of([HOST, HOST, BAD])]
    fixed = repair(tree, replicas(tree))
    assert fixed[0].shape == (3, 6) and np.array_equal(fixed[0], np.stack([HOST] * 3))


def test_a_tree_without_a_difference_is_returned_as_it_is():
    """The same object, nothing copied."""
    tree = {"w": replicas_of([HOST] * 3)}
    assert repair(tree, replicas(tree)) is tree


@pytest.mark.parametrize("donate", [True, False])
def test_memory_is_reused_if_asked(donate):
    """The given arrays are gone, or still there."""
    tree = {"w": replicas_of([HOST, BAD, HOST])}
    assert replicas(repair(tree, replicas(tree), donate=donate)).ok
    assert tree["w"].is_deleted() == donate


def test_without_a_majority_there_is_nothing_to_copy():
    """Two against two: the error names the leaf and its devices."""
    tree = {"w": replicas_of([HOST, HOST, BAD, BAD])}
    with pytest.raises(ReplicaError, match="cannot repair: w on devices 0, 1, 2, 3") as caught:
        repair(tree, replicas(tree))
    assert "before the difference" in caught.value.fix
    assert caught.value.exit_code == 1


def test_no_healthy_device_is_said_so():
    """Three leaves, each wrong on another of three devices."""
    whole = replicas_of([HOST] * 3)
    tree = {name: corrupted(whole, device=device) for device, name in enumerate("abc")}
    with pytest.raises(ReplicaError, match="each of the devices 0, 1, 2 is wrong in some leaf") as caught:
        repair(tree, replicas(tree))
    assert "before the difference" in caught.value.fix
