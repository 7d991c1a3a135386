"""The replica audit: finds the leaf and the device, says who can be told wrong, and what it did not compare."""

from __future__ import annotations

import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from paceline.base.errors import OptionError, StateError
from paceline.check.audit import Divergence, replicas, start
from paceline.check.rebroadcast import repair
from tests.check.planted import WHOLE, flipped, mesh_of, replicas_of, stacked_of
from tests.train.compilations import counted

HOST = np.arange(6, dtype=np.float32)
BAD = flipped(HOST, place=2)
MAKERS = {"replicated": replicas_of, "pmap": stacked_of}


def found(audit):
    return [(d.leaf, d.devices, d.odd) for d in audit.divergences]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("devices", [3, 4, 8])
def test_the_odd_one_out_is_named(make, devices):
    """One flipped bit on the last device of K: the leaf by path, that device, its process; the other leaf is equal."""
    tree = {"params": {"w": make([HOST] * (devices - 1) + [BAD])}, "b": make([HOST] * devices)}
    audit = replicas(tree)
    assert audit.divergences == (Divergence("params.w", (devices - 1,), (0,), devices, True),)
    assert not audit.ok and audit.leaves_compared == 2 and audit.num_devices == devices
    assert audit.lines()[1] == (
        f"params.w on device {devices - 1} (process 0) is unlike the other {devices - 1} replicas, which are equal"
    )


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_of_two_that_differ_neither_can_be_told_right(make):
    """K = 2: both devices, no odd one."""
    audit = replicas({"w": make([HOST, BAD])})
    assert found(audit) == [("w", (0, 1), False)]
    assert "none can be told right" in audit.lines()[1]


def test_two_against_two_is_no_majority():
    """All four are named."""
    assert found(replicas(replicas_of([HOST, BAD, HOST, BAD]))) == [("(whole)", (0, 1, 2, 3), False)]


def test_two_odd_ones_that_differ_from_each_other_are_both_named():
    """K = 5: three equal ones are a majority."""
    other = flipped(HOST, place=4)
    assert found(replicas(replicas_of([HOST, BAD, HOST, other, HOST]))) == [("(whole)", (1, 3), True)]


def test_half_of_the_devices_is_no_majority():
    """K = 4, two equal, two others: 2 of 4 is not more than half."""
    other = flipped(HOST, place=4)
    assert found(replicas(replicas_of([HOST, BAD, HOST, other]))) == [("(whole)", (0, 1, 2, 3), False)]


def test_each_leaf_has_its_own_odd_one():
    """In tree order."""
    tree = [replicas_of([HOST, HOST, BAD, HOST]), replicas_of([HOST] * 4), replicas_of([BAD, HOST, HOST, HOST])]
    assert found(replicas(tree)) == [("0", (2,), True), ("2", (0,), True)]


def test_a_label_that_says_replicated_is_not_believed():
    """Fact 5: shard_map without its check returns "fully replicated" arrays whose shards differ."""
    mesh = mesh_of(4)
    add_device = jax.shard_map(
        lambda x: x + (lax.axis_index("data") == 1), mesh=mesh, in_specs=WHOLE, out_specs=WHOLE, check_vma=False
    )
    leaf = jax.jit(add_device)(HOST)
    assert leaf.is_fully_replicated
    assert found(replicas({"w": leaf})) == [("w", (1,), True)]


def test_what_has_no_replica_is_excluded_with_the_reason():
    """Split, of the host, on one device, empty: none counts as compared, and nothing compared is not ok."""
    mesh = mesh_of(4)
    tree = {
        "split": jax.device_put(np.ones((8, 2)), NamedSharding(mesh, PartitionSpec("data"))),
        "host": HOST,
        "count": 3,
        "single": jnp.ones(3),
        "empty": jax.device_put(np.ones((0, 2)), NamedSharding(mesh, WHOLE)),
    }
    audit = replicas(tree)
    assert set(audit.excluded) == set(tree)
    reasons = {"split": "split over 4 devices", "host": "of the host", "single": "one device", "empty": "no elements"}
    assert all(words in audit.excluded[name] for name, words in reasons.items())
    assert audit.leaves_compared == 0 and not audit.ok
    assert audit.lines()[0] == "nothing was compared: no leaf has replicas"


def test_split_leaves_beside_replicated_ones_are_left_out():
    """As under zero1: a moment split over its second dim is no replica, the parameters are compared."""
    mesh = mesh_of(4)
    moment = jax.device_put(np.ones((3, 8), np.float32), NamedSharding(mesh, PartitionSpec(None, "data")))
    audit = replicas({"params": replicas_of([HOST, HOST, HOST, BAD]), "moment": moment})
    assert found(audit) == [("params", (3,), True)]
    assert list(audit.excluded) == ["moment"]


def test_rows_split_like_copies_are_told_apart_on_request():
    """``[K, ...]`` with one row a device: copies by default, parts of one array with device_axis=False."""
    rows = stacked_of([HOST, BAD, HOST, HOST])
    assert found(replicas(rows)) == found(replicas(rows, device_axis=True)) == [("(whole)", (1,), True)]
    assert list(replicas(rows, device_axis=False).excluded) == ["(whole)"]


def test_one_leaf_without_a_device_axis_means_that_there_is_none():
    """By default every leaf must have it; when it was said to be there, the leaf that lacks it is excluded."""
    tree = {"rows": stacked_of([HOST, BAD, HOST, HOST]), "whole": replicas_of([HOST] * 4)}
    by_default, said = replicas(tree), replicas(tree, device_axis=True)
    assert found(by_default) == [] and list(by_default.excluded) == ["rows"]
    assert not by_default.ok and "device_axis=True compares it" in by_default.excluded["rows"]
    assert replicas(tree, device_axis=False).ok
    assert found(said) == [("rows", (1,), True)] and "no leading device axis" in said.excluded["whole"]


def test_copies_along_one_axis_of_a_mesh_of_two_are_compared_within_their_group():
    """Mesh 2 x 3, split over `model` (3): devices 0 and 3, 1 and 4, 2 and 5 are pairs; 4 differs from 1."""
    mesh = Mesh(np.asarray(jax.devices()[:6]).reshape(2, 3), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    parts = np.arange(6, dtype=np.float32).reshape(3, 2)
    shards = [
        jax.device_put(flipped(parts[place % 3], place=0) if place == 4 else parts[place % 3], device)
        for place, device in enumerate(mesh.devices.flat)
    ]
    leaf = jax.make_array_from_single_device_arrays((6,), NamedSharding(mesh, PartitionSpec("model")), shards)
    audit = replicas(leaf)
    assert audit.divergences == (Divergence("(whole)", (1, 4), (0, 0), 2, False),)


def test_leaves_on_different_meshes_are_compared_each_on_its_own():
    """Four devices and two of them in another order."""
    other = Mesh(np.asarray(jax.devices()[:2])[::-1], ("x",), axis_types=(AxisType.Auto,))
    tree = {"four": replicas_of([HOST, HOST, BAD, HOST]), "two": replicas_of([HOST, HOST], mesh=other)}
    audit = replicas(tree)
    assert found(audit) == [("four", (2,), True)] and audit.leaves_compared == 2


def test_the_result_is_json_with_its_verdict():
    """as_dict goes through json and back."""
    audit = replicas({"w": replicas_of([HOST, BAD, HOST]), "h": HOST})
    read = json.loads(json.dumps(audit.as_dict()))
    assert read["ok"] is False and read["leaves_compared"] == 1 and list(read["excluded"]) == ["h"]
    assert read["divergences"][0]["leaf"] == "w" and read["divergences"][0]["devices"] == [1]


def test_the_arrays_may_be_donated_once_the_audit_is_started():
    """The result of an audit that was started before."""
    leaf = replicas_of([HOST, BAD, HOST])
    pending = start({"w": leaf})
    jax.jit(lambda x: x + 1, donate_argnums=0)(leaf)
    assert found(pending.result()) == [("w", (1,), True)]
    assert pending.is_ready()


def test_a_second_audit_of_the_same_shapes_compiles_nothing():
    """Other values, and spelled PartitionSpec() again."""
    replicas({"w": replicas_of([HOST] * 4)})
    with counted() as compiled:
        replicas({"w": replicas_of([BAD] * 4)})
    assert compiled == []


def test_an_audit_inside_jit_is_refused():
    """The fix says where to call it."""
    with pytest.raises(StateError, match="inside jit") as caught:
        jax.jit(lambda x: replicas({"w": x}).ok)(HOST)
    assert "returns" in caught.value.fix


def test_a_donated_leaf_is_named():
    """Before XLA complains."""
    leaf = replicas_of([HOST] * 3)
    leaf.delete()
    with pytest.raises(StateError, match="leaf 'w' was given to a step before") as caught:
        replicas({"w": leaf})
    assert "donate=False" in caught.value.fix


def test_a_device_axis_that_is_no_bool_is_refused():
    """A word would be taken for True."""
    with pytest.raises(OptionError, match="device_axis='yes'"):
        inspect.unwrap(replicas)(replicas_of([HOST] * 4), device_axis="yes")


def test_another_mesh_may_be_set_around_the_call():
    """Explicit axes of the same name, as `jax.make_mesh` makes them: the odd one is found all the same."""
    explicit = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])
    tree = replicas_of([HOST, BAD, HOST, HOST])
    with jax.set_mesh(explicit):
        assert found(replicas(tree)) == [("(whole)", (1,), True)]
        mended = repair(tree, replicas(tree))
    assert replicas(mended).ok


def test_a_leaf_in_host_memory_is_excluded_with_the_reason():
    """Offloaded leaves lie where a program on the devices cannot read them; the others are compared."""
    sharding = NamedSharding(mesh_of(4), WHOLE)
    offloaded = jax.device_put(HOST, sharding.with_memory_kind("pinned_host"))
    audit = replicas({"offloaded": offloaded, "here": jax.device_put(HOST, sharding)})
    assert audit.leaves_compared == 1 and audit.ok
    assert "pinned_host memory" in audit.excluded["offloaded"]
