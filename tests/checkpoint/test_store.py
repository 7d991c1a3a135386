"""Saving: asynchronous, right under donation, once a step, and what is kept."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.base.errors import CheckpointError, OptionError, StateError
from paceline.checkpoint import files, snapshot, writing
from paceline.checkpoint.reading import read_meta, restore
from paceline.checkpoint.store import Store
from paceline.engine.placement import split_shardings
from paceline.topology.mesh import data_mesh, replicated
from tests.checkpoint import states


@pytest.fixture
def store(tmp_path):
    """A store that must not complain."""
    with Store(tmp_path / "checkpoints", say=pytest.fail, keep=100) as store:
        yield store


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("placement", ["replicated", "fsdp"])
def test_a_donated_state_is_saved_as_it_was(store, monkeypatch, placement, room):
    """Saved before each of 12 steps that reuse its memory, two in flight: step n holds n in every word.

    Both ways: copied on the devices, and transferred at once where they have no room for a copy.
    """
    monkeypatch.setattr(snapshot, "has_room", lambda leaves: room)
    mesh = data_mesh(jax.devices()[:4])
    state = {"big": jnp.zeros((256, 512)), "small": jnp.zeros(8), "count": jnp.int32(0)}
    split = split_shardings(state, mesh)
    state = jax.device_put(state, split if placement == "fsdp" else replicated(mesh))
    step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    for number in range(12):
        store.save(state, number, meta={})
        state = step(step(state))
        state = jax.tree.map(lambda leaf: leaf - 1, state)
    store.wait()
    for number in range(12):
        found = restore(store.folder, like=state, step=number).state
        for name, leaf in found.items():
            np.testing.assert_array_equal(np.asarray(leaf), np.full(leaf.shape, number), err_msg=name)


def test_save_waits_for_nothing_but_an_earlier_save(store, monkeypatch):
    """While the disk hangs, one save returns and a second one waits for it; `poll` tells what is done."""
    go = threading.Event()
    begin = writing._begin
    monkeypatch.setattr(writing, "_begin", lambda *args, **options: (go.wait(30), begin(*args, **options))[1])
    state = states.single()
    store.save(state, 1, meta={})
    assert store.poll() == []
    second = threading.Thread(target=lambda: store.save(state, 2, meta={}))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go.set()
    second.join(30)
    store.wait()
    assert store.poll() == [1, 2]
    assert store.poll() == []


def test_a_step_that_is_there_is_not_written_again(store):
    store.save(states.single(seed=1), 5, meta={"try": 1})
    store.wait()
    store.save(states.single(seed=2), 5, meta={"try": 2})
    store.wait()
    assert read_meta(store.folder, 5) == {"try": 1}
    assert store.poll() == [5]


def test_a_damaged_checkpoint_of_the_step_is_replaced(store):
    store.save(states.single(seed=1), 5, meta={"try": 1})
    store.wait()
    (store.folder / "5" / files.ARRAYS / "_METADATA").unlink()
    assert files.steps(store.folder) == []
    store.save(states.single(seed=2), 5, meta={"try": 2})
    store.wait()
    states.assert_same(restore(store.folder, like=states.single()).state, states.single(seed=2))


def test_the_document_lists_every_leaf_with_shape_dtype_and_checksum(store):
    """Names are dotted; a key says its generator; what the caller gave comes back."""
    store.save(states.single(), 1, meta={"task": "x", "deep": {"a": [1, 2.5, None]}})
    store.wait()
    document = files.read_document(store.folder / "1")
    assert document["format"] == 1
    assert document["step"] == 1
    assert document["meta"] == {"task": "x", "deep": {"a": [1, 2.5, None]}}
    leaves = document["leaves"]
    assert leaves["params.conv.kernel"]["shape"] == [3, 8, 4]
    assert leaves["rng"]["dtype"] == "key<threefry2x32>"
    assert leaves["opt_state.1.0.mu.head"]["dtype"] == "float32"
    assert all(len(leaf["sums"]) == 2 for leaf in leaves.values())


def test_small_leaves_lie_in_one_array_and_large_ones_by_themselves(store):
    """200 leaves of 4 kB make one file of numbers: Orbax costs a millisecond an array."""
    state = {f"leaf{index}": jnp.full(1000, index, jnp.float32) for index in range(200)}
    state["a/b, c" + "x" * 300] = jnp.ones(100_000)
    store.save(state, 1, meta={})
    store.wait()
    assert len(list((store.folder / "1" / files.ARRAYS).iterdir())) == 3  # _METADATA, packed, the large one
    states.assert_same(restore(store.folder, like=state).state, state)


@pytest.mark.parametrize(
    "state",
    [
        {"a": jnp.zeros((0, 3))},
        jnp.arange(3.0),
        {
            "key": jax.random.split(jax.random.key(1, impl="rbg"), 3),
            "none": None,
            "tuple": (optax.EmptyState(), jnp.int8(3)),
        },
        {"numpy": np.arange(5, dtype=np.int64), "wide": np.float64(0.1)},
        {
            "low": jnp.arange(8).astype(jnp.float8_e4m3fn),
            "int4": jnp.arange(-8, 8).astype(jnp.int4),
            "yes": jnp.array([True]),
        },
    ],
    ids=["empty", "array", "keys", "numpy", "narrow"],
)
def test_any_tree_comes_back(store, state):
    store.save(state, 3, meta={})
    store.wait()
    states.assert_same(restore(store.folder, like=state).state, state)


def test_wide_types_come_back_under_x64(store, x64):
    state = {"f": jnp.float64(0.1), "c": jnp.array([1 + 2j]), "i": jnp.array([2**60])}
    assert state["i"].dtype == jnp.int64
    store.save(state, 3, meta={})
    store.wait()
    states.assert_same(restore(store.folder, like=state).state, state)


def test_two_leaves_of_one_name_are_refused(store):
    with pytest.raises(CheckpointError, match=r"two leaves of the state are called 'a\.b'") as caught:
        store.save({"a": {"b": jnp.ones(1)}, "a.b": jnp.ones(1)}, 1, meta={})
    assert "rename a key" in caught.value.fix


def test_a_donated_state_is_refused(store):
    state = {"w": jnp.ones(3)}
    jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)(state)
    with pytest.raises(StateError, match="'w' was given to a step before") as caught:
        store.save(state, 1, meta={})
    assert "the step returned" in caught.value.fix


def test_prepare_leaves_nothing_to_compile_for_the_first_save(store):
    """No program is compiled by the save, nor by a second state of the same shapes."""
    state = states.placed(states.single(), devices=4, placement="fsdp")
    store.prepare(state)
    store.wait()
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    store.save(state, 1, meta={})
    store.wait()
    jax.monitoring.clear_event_listeners()
    assert compiled == []


def test_what_a_killed_run_left_is_taken_away(tmp_path):
    for name in ("7.saving", "9.deleting"):
        (tmp_path / name / "default").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    with Store(tmp_path, say=pytest.fail):
        pass
    assert [item.name for item in tmp_path.iterdir()] == ["notes"]


def test_a_folder_in_which_nothing_was_saved_goes(tmp_path):
    with Store(tmp_path / "a" / "b", say=pytest.fail):
        assert (tmp_path / "a" / "b").is_dir()
    assert not (tmp_path / "a" / "b").exists()


def test_orbax_says_nothing_and_others_still_log(store, caplog):
    """Records of absl's logger that Orbax makes are dropped; those of others are not."""
    logger = logging.getLogger("absl")
    with caplog.at_level(logging.DEBUG, logger="absl"):
        store.save(states.single(), 1, meta={})
        store.wait()
        restore(store.folder, like=states.single())
        logger.info("mine")
    assert [record.getMessage() for record in caplog.records if record.name == "absl"] == ["mine"]


def test_importing_the_store_does_not_import_orbax():
    """It takes most of a second."""
    code = "import paceline.checkpoint.store, paceline.checkpoint.restore, paceline.checkpoint.weights, sys\n"
    code += "print([name for name in ('orbax', 'tensorstore', 'safetensors') if name in sys.modules])"
    path = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    assert json.loads(done.stdout.replace("'", '"')) == []


def steps_after(folder, values, *, keep=2, best=None, first=1):
    """Saves steps 1, 2, ... with a metric each; the steps that are left."""
    with Store(folder, say=pytest.fail, keep=keep, best=best) as store:
        for step, value in enumerate(values, start=first):
            store.save({"w": jnp.float32(step)}, step, meta={})
            store.evaluated(step, {"evaluate/loss": value, "evaluate/other": value})
    return files.steps(folder)


def test_the_last_ones_are_kept(tmp_path):
    assert steps_after(tmp_path, [1.0] * 5, keep=3) == [3, 4, 5]


@pytest.mark.parametrize(
    ("best", "kept"),
    [("evaluate/loss", 2), ("max:evaluate/loss", 3), ("min:evaluate/other", 2), ("max:evaluate/other", 3)],
)
def test_the_best_is_kept_beyond_the_last_ones_and_nan_is_never_best(tmp_path, best, kept):
    """Values nan, 1, 9, nan, 5, 5, 5: the least is of step 2, the largest of step 3."""
    nan = float("nan")
    assert steps_after(tmp_path, [nan, 1.0, 9.0, nan, 5.0, 5.0, 5.0], best=best) == [kept, 6, 7]


def test_a_resumed_run_still_knows_the_best(tmp_path):
    """Best of the first run at step 1 stays through 4 worse ones of the second; a better one takes its place."""
    assert steps_after(tmp_path, [1.0, 3.0, 3.0], best="evaluate/loss") == [1, 2, 3]
    assert steps_after(tmp_path, [2.0, 2.0, 2.0], best="evaluate/loss", first=4) == [1, 5, 6]
    assert steps_after(tmp_path, [0.5, 2.0, 2.0], best="evaluate/loss", first=7) == [7, 8, 9]


def test_a_metric_whose_direction_is_not_known_is_refused(tmp_path):
    with pytest.raises(OptionError, match="not known whether less or more") as caught:
        Store(tmp_path, say=pytest.fail, best="evaluate/thing")
    assert "min:evaluate/thing" in caught.value.fix


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(OptionError, match="keep=0") as caught:
        Store(tmp_path, say=pytest.fail, keep=0)
    assert "keep 1 or more" in caught.value.fix


def test_later_steps_are_forgotten_when_a_run_goes_on_from_an_earlier_one(tmp_path):
    steps_after(tmp_path, [1.0] * 4, keep=9)
    with Store(tmp_path, say=pytest.fail, keep=9) as store:
        store.forget_after(2)
    assert files.steps(tmp_path) == [1, 2]
