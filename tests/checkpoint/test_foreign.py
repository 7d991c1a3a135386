"""Checkpoints of other code: Orbax trees with and without the classic leading device axis."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from paceline.base.errors import CheckpointError
from paceline.checkpoint.reading import restore
from paceline.checkpoint.restore import restore as restore_state
from tests.checkpoint import states

PARAMS = {
    "conv": {"kernel": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "bias": np.ones(4, np.float32)},
    "head": np.arange(8, dtype=np.float16),
}


def replicate(tree, copies=8):
    return jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * copies), tree)


def plain(state):
    """A state with its key as data, as others store it."""
    return jax.tree.map(
        lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf, state
    )


def write(path, tree, *, how):
    if how == "standard":
        with ocp.StandardCheckpointer() as saver:
            saver.save(path, tree)
    elif how == "pytree":
        ocp.PyTreeCheckpointer().save(path, tree)
    else:
        with ocp.CheckpointManager(path) as manager:
            manager.save(5, args=ocp.args.StandardSave(tree))
    return path


@pytest.mark.parametrize("how", ["standard", "pytree", "manager"])
@pytest.mark.parametrize("copies", [None, 8])
def test_an_orbax_checkpoint_of_parameters_is_imported_with_or_without_a_device_axis(tmp_path, how, copies):
    """Saved with an axis of 8, read on 4 devices (brax PR#669): the first copy, where and how `like` is placed."""
    tree = PARAMS if copies is None else replicate(PARAMS, copies)
    path = write(tmp_path / "saved", jax.tree.map(jnp.asarray, tree), how=how)
    mesh = jax.sharding.Mesh(jax.devices()[:4], ("data",))
    like = jax.device_put(
        jax.tree.map(np.zeros_like, PARAMS), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    )
    restored = restore(path, like=like)
    states.assert_same(restored.state, PARAMS)
    states.assert_placed_like(restored.state, like)
    assert restored.step == (5 if how == "manager" else 0)


@pytest.mark.parametrize("copies", [None, 8])
def test_a_whole_state_is_imported_and_so_are_its_parameters_alone(tmp_path, copies):
    """Optimizer containers, key and counters included; the step is the state's own."""
    state = plain(states.single(seed=7))
    state = jax.tree.map(lambda leaf: leaf if leaf.size else jnp.zeros((1, 2)), state)
    like = jax.tree.map(lambda leaf: leaf if leaf.size else jnp.zeros((1, 2)), states.single())
    tree = state if copies is None else replicate(state, copies)
    write(tmp_path / "saved", tree, how="pytree")
    restored = restore(tmp_path / "saved", like=like)
    states.assert_same(plain(restored.state), state)
    states.assert_same(restore_state(tmp_path / "saved", like.params), state.params)


def test_replicas_that_differ_are_refused_with_leaf_and_device(tmp_path):
    """Replica 5 of 8 differs in one bit of `conv.kernel`."""
    tree = replicate(PARAMS)
    tree["conv"]["kernel"].view(np.uint32)[5, 0, 0, 0] ^= 1
    write(tmp_path / "saved", tree, how="pytree")
    with pytest.raises(
        CheckpointError, match=r"'conv\.kernel' differ: that of device 5 is unlike the other 7"
    ) as caught:
        restore(tmp_path / "saved", like=PARAMS)
    assert "earlier checkpoint" in caught.value.fix


def test_two_replicas_that_differ_have_no_majority(tmp_path):
    tree = replicate(PARAMS, 2)
    tree["head"][1] += 1
    write(tmp_path / "saved", tree, how="pytree")
    with pytest.raises(CheckpointError, match="'head' differ: no majority of the 2 replicas"):
        restore(tmp_path / "saved", like=PARAMS)


def test_a_checkpoint_of_another_model_is_refused_with_its_leaves(tmp_path):
    write(tmp_path / "saved", replicate(PARAMS), how="pytree")
    like = {**PARAMS, "head": np.zeros(9, np.float16)}
    with pytest.raises(CheckpointError, match=r"head is \(8, 8\) there and \(9,\) here"):
        restore(tmp_path / "saved", like=like)


def test_a_damaged_checkpoint_of_other_code_is_an_error_in_words(tmp_path):
    path = write(tmp_path / "saved", PARAMS, how="pytree")
    (path / "_METADATA").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read by Orbax") as caught:
        restore(path, like=PARAMS)
    assert "the code that wrote it" in caught.value.fix


def test_orbax_itself_reads_what_paceline_saved(tmp_path):
    """Large leaves by their names, small ones in one array of bytes."""
    from paceline.checkpoint.store import Store

    value = jnp.arange(100_000.0)
    with Store(tmp_path, say=pytest.fail) as store:
        store.save({"big": value}, 3, meta={})
    found = ocp.PyTreeCheckpointer().restore(tmp_path / "3" / "default")
    np.testing.assert_array_equal(found["0.big"], value)
