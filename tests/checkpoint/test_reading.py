"""Restoring: any number of devices, any placement, any form; and what does not fit."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.base.errors import CheckpointError
from paceline.checkpoint import files
from paceline.checkpoint.reading import read_meta, restore
from paceline.checkpoint.restore import restore as restore_state
from paceline.checkpoint.store import Store
from paceline.engine.state import place_state
from paceline.topology.mesh import data_mesh
from tests.checkpoint import states
from tests.ends import grid


def saved(folder, state, step=10):
    with Store(folder, say=pytest.fail, keep=9) as store:
        store.save(state, step, meta={"step": step})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Steps 10 and 20, saved on 8 devices with everything split."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    for step in (10, 20):
        saved(folder, states.placed(states.single(seed=step), devices=8, placement="fsdp"), step)
    return folder


@pytest.mark.parametrize("devices", grid([8, 4, 2, 1], both=lambda devices: devices in (4, 1)))
@pytest.mark.parametrize("placement", ["replicated", "zero1", "fsdp"])
def test_saved_on_eight_devices_it_is_restored_on_fewer_in_any_placement_and_back(folder, tmp_path, devices, placement):
    """K = 8 to 4, 2, 1 and back to 8: every bit, placed as asked (orbax#648)."""
    like = states.placed(states.single(), devices=devices, placement=placement)
    restored = restore(folder, like=like)
    states.assert_same(restored.state, states.single(seed=20))
    states.assert_placed_like(restored.state, like)
    assert (restored.step, restored.meta) == (20, {"step": 20})
    if devices < 8:
        saved(tmp_path, restored.state)
        back = states.placed(states.single(), devices=8, placement="fsdp")
        states.assert_same(restore(tmp_path, like=back).state, states.single(seed=20))


@pytest.mark.parametrize("path", [".", "checkpoints", "checkpoints/20"])
def test_the_folder_of_the_run_of_the_checkpoints_or_of_the_step_will_do(folder, path):
    states.assert_same(restore(folder.parent / path, like=states.single()).state, states.single(seed=20))


def test_a_given_step_is_restored(folder):
    states.assert_same(restore(folder, like=states.single(), step=10).state, states.single(seed=10))
    assert read_meta(folder, 10) == {"step": 10}
    assert files.steps(folder.parent) == [10, 20]


def test_the_public_restore_gives_the_form_of_its_like(folder):
    """Under pmap every leaf has one equal copy a device; parameters alone come back alone; `like` is left as it is."""
    mesh = data_mesh(jax.devices()[:4])
    like = place_state(states.single(), parallel=states.parallel(scheme="pmap"), mesh=mesh)
    state = restore_state(folder, like, step=10)
    states.assert_placed_like(state, like)
    for copy in range(4):
        states.assert_same(jax.tree.map(lambda leaf, copy=copy: leaf[copy], state), states.single(seed=10))
    states.assert_same(restore_state(folder, states.single().params), states.single(seed=20).params)
    states.assert_same(jax.tree.map(lambda leaf: leaf[0], like), states.single())


def test_a_restored_state_may_be_donated_and_the_devices_do_not_share_memory(tmp_path):
    """After a step that reuses its memory, all 8 replicas hold the new numbers, and what was read first is unharmed."""
    value = {"w": jnp.arange(300_000.0), "b": jnp.arange(64.0)}
    saved(tmp_path, value)
    like = jax.device_put(value, jax.sharding.NamedSharding(data_mesh(jax.devices()), jax.sharding.PartitionSpec()))
    first, second = restore(tmp_path, like=like).state, restore(tmp_path, like=like).state
    step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2 + 1, tree), donate_argnums=0)
    second = step(step(second))
    for name, leaf in value.items():
        expected = np.asarray(leaf) * 4 + 3
        for shard in second[name].addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), expected)
        for shard in first[name].addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), np.asarray(leaf))


def test_shapes_are_enough_and_numpy_stays_numpy(folder):
    shapes = jax.eval_shape(lambda: states.single())
    states.assert_same(restore(folder, like=shapes).state, states.single(seed=20))
    host = jax.tree.map(np.asarray, states.single().params)
    found = restore(folder, like=host).state
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(found))
    states.assert_same(found, jax.tree.map(np.asarray, states.single(seed=20).params))


def test_containers_do_not_matter_only_names_do(tmp_path):
    saved(tmp_path, {"a": [jnp.ones(2), jnp.zeros(3)]})
    found = restore(tmp_path, like={"a": (jnp.zeros(2), jnp.ones(3))}).state
    states.assert_same(found, {"a": (jnp.ones(2), jnp.zeros(3))})


def change(state, **fields):
    return dataclasses.replace(state, **fields)


def other_params(**leaves):
    state = states.single()
    return change(state, params={**state.params, **leaves})


@pytest.mark.parametrize(
    ("like", "words", "fix"),
    [
        (lambda: other_params(extra=jnp.ones(2)), r"1 leaf not there: params\.extra", "the task and the options"),
        (lambda: other_params(head=jnp.ones((5, 8))), r"params\.head is \(24, 8\) there and \(5, 8\) here", "the task"),
        (
            lambda: other_params(head=jnp.ones((24, 8), jnp.bfloat16)),
            r"params\.head is float32 there and bfloat16",
            "task",
        ),
        (lambda: change(states.single(), ema=None), r"3 leaves only there: ema\.conv\.bias", "ema_decay"),
        (
            lambda: change(states.single(), opt_state=optax.sgd(1).init(states.single().params)),
            "opt_state",
            "optimizer",
        ),
        (
            lambda: change(states.single(), rng=jax.random.key(0, impl="rbg")),
            "rng is key<threefry2x32> there",
            "the task",
        ),
        (lambda: {"other": jnp.ones(2)}, "1 leaf not there: other; 21 leaves only there: step, skipped", "the task"),
        (lambda: {**states.single().params, "extra": jnp.ones(2)}, "1 leaf not there: extra", "the task"),
    ],
    ids=["missing", "shape", "dtype", "ema", "optimizer", "key", "task", "params"],
)
def test_what_does_not_fit_is_refused_with_its_leaves_and_never_skipped(folder, like, words, fix):
    with pytest.raises(CheckpointError, match=words) as caught:
        restore(folder, like=like(), say=pytest.fail)
    assert fix in caught.value.fix


def test_many_odd_leaves_are_counted_not_listed(tmp_path):
    saved(tmp_path, {f"leaf{index}": jnp.ones(1) for index in range(20)})
    with pytest.raises(CheckpointError, match=r"leaf0, leaf1, leaf10, leaf11 and 16 more"):
        restore(tmp_path, like={"w": jnp.ones(1)})


def test_a_checkpoint_of_a_newer_format_is_refused(tmp_path):
    saved(tmp_path, {"a": jnp.ones(1)})
    document = files.read_document(tmp_path / "10")
    (tmp_path / "10" / files.DOCUMENT).unlink()
    files.write_document(tmp_path / "10", {**document, "format": 99})
    with pytest.raises(CheckpointError, match="format 99") as caught:
        restore(tmp_path, like={"a": jnp.ones(1)}, say=pytest.fail)
    assert "update paceline" in caught.value.fix


@pytest.mark.parametrize(
    ("path", "words", "fix"),
    [
        ("missing/x", "there is no such folder", "name the folder"),
        ("empty", "no checkpoint in", "the folder that the run printed"),
        ("file.txt", "is a file", "the folder of the run"),
        ("weights.safetensors", "is a file", "paceline.import_weights"),
        ("runs", "holds runs, not checkpoints", "run-1"),
        ("runs/run-2", "the run saved none", "--checkpoint-every"),
    ],
)
def test_a_wrong_folder_is_named_with_the_right_one(tmp_path, path, words, fix):
    saved(tmp_path / "runs" / "run-1" / "checkpoints", {"a": jnp.ones(1)})
    (tmp_path / "runs" / "run-2" / "checkpoints").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name in ("file.txt", "weights.safetensors"):
        (tmp_path / name).write_text("x")
    with pytest.raises(CheckpointError, match=words) as caught:
        restore(tmp_path / path, like={"a": jnp.ones(1)})
    assert fix in caught.value.fix


def test_a_step_that_is_not_there_is_named_with_those_that_are(folder):
    with pytest.raises(CheckpointError, match="no checkpoint of step 15") as caught:
        restore(folder, like=states.single(), step=15)
    assert "10, 20" in caught.value.fix


def test_what_other_processes_find_damaged_is_skipped_here_too(folder):
    """`agree` says no to step 20 once: step 10 is used, with a sentence."""
    verdicts, said = [], []

    def agree(own):
        verdicts.append(own)
        return len(verdicts) > 1

    restored = restore(folder, like=states.single(), say=said.append, agree=agree)
    assert restored.step == 10
    assert verdicts == [True, True, True]
    assert said == ["the checkpoint of step 20 is damaged and was skipped: another process finds it damaged"]
