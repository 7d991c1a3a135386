"""Weights as safetensors: every dtype that the format has, names, refusals, and a file that is whole or not there."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from paceline.base.errors import CheckpointError
from paceline.checkpoint import files
from paceline.checkpoint.store import Store
from paceline.checkpoint.weights import export_checkpoint, export_weights, import_weights
from tests.checkpoint import states

DTYPES = (
    "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "float8_e4m3fn",
    "float8_e5m2", "complex64",
)  # fmt: skip


def test_every_dtype_of_the_format_comes_back(tmp_path):
    """Scalars and empty arrays too."""
    tree = {name: jnp.asarray(np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name, name))) for name in DTYPES}
    tree |= {"scalar": jnp.float32(0.1), "empty": jnp.zeros((0, 4))}
    export_weights(tree, tmp_path / "w.safetensors")
    states.assert_same(import_weights(tmp_path / "w.safetensors", tree), tree)


def test_other_programs_find_dotted_names(tmp_path):
    params = states.single(seed=2).params
    export_weights(params, tmp_path / "w.safetensors")
    found = load_file(tmp_path / "w.safetensors")
    assert sorted(found) == ["conv.bias", "conv.kernel", "head"]
    np.testing.assert_array_equal(found["conv.kernel"], params["conv"]["kernel"])


def test_split_parameters_are_written_whole_and_read_where_they_belong(tmp_path):
    state = states.placed(states.single(seed=2), devices=8, placement="fsdp")
    export_weights(state.params, tmp_path / "w.safetensors")
    like = states.placed(states.single(), devices=4, placement="fsdp").params
    found = import_weights(tmp_path / "w.safetensors", like)
    states.assert_same(found, state.params)
    states.assert_placed_like(found, like)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    with Store(folder, say=pytest.fail) as store:
        for step in (1, 2):
            store.save(states.placed(states.single(seed=step), devices=4, placement="fsdp"), step, meta={})
    return folder


@pytest.mark.parametrize(("options", "seed"), [({}, 2), ({"step": 1}, 1), ({"ema": True}, 2)])
def test_the_weights_of_a_checkpoint_are_written_without_a_model(folder, tmp_path, options, seed):
    export_checkpoint(folder.parent, tmp_path / "w.safetensors", **options)
    params = states.single(seed=seed).params
    states.assert_same(import_weights(tmp_path / "w.safetensors", params), params)


def test_a_damaged_checkpoint_gives_no_weights(folder, tmp_path):
    """The one before it does; if that one is asked for, or both are damaged, it is an error."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    packed = copy / "2" / files.ARRAYS / "packed" / "0"
    content = bytearray(packed.read_bytes())
    content[len(content) // 2] ^= 1
    packed.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="the checkpoint of step 2"):
        export_checkpoint(copy, tmp_path / "w.safetensors", step=2)
    assert not (tmp_path / "w.safetensors").exists()
    export_checkpoint(copy, tmp_path / "w.safetensors")
    params = states.single(seed=1).params
    states.assert_same(import_weights(tmp_path / "w.safetensors", params), params)


@pytest.mark.parametrize(
    ("like", "words"),
    [
        ({"a": jnp.ones(2)}, "1 leaf only there: b"),
        ({"a": jnp.ones(2), "b": jnp.ones(3), "c": jnp.ones(1)}, "1 leaf not there: c"),
        ({"a": jnp.ones(2), "b": jnp.ones(4)}, r"b is \(3,\) there and \(4,\) here"),
        ({"a": jnp.ones(2), "b": jnp.ones(3, jnp.bfloat16)}, "b is float32 there and bfloat16 here"),
    ],
)
def test_leaves_that_do_not_fit_are_named(tmp_path, like, words):
    export_weights({"a": jnp.ones(2), "b": jnp.ones(3)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=words) as caught:
        import_weights(tmp_path / "w.safetensors", like)
    assert "the task and the options" in caught.value.fix


@pytest.mark.parametrize("leaf", [jax.random.key(0), jnp.ones(2, jnp.int4)], ids=["key", "int4"])
def test_a_dtype_that_the_format_lacks_is_refused(tmp_path, leaf):
    with pytest.raises(CheckpointError, match=r"leaf 'odd' is .* which a safetensors file cannot hold") as caught:
        export_weights({"odd": leaf}, tmp_path / "w.safetensors")
    assert "float32" in caught.value.fix


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    """The disk fills up while it is written: the old file is as it was, and no other file is left."""
    export_weights({"a": jnp.ones(2)}, tmp_path / "w.safetensors")

    def full(source, target):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match="the disk is full"):
        export_weights({"a": jnp.zeros(2)}, tmp_path / "w.safetensors")
    assert [item.name for item in tmp_path.iterdir()] == ["w.safetensors"]
    states.assert_same(import_weights(tmp_path / "w.safetensors", {"a": jnp.zeros(2)}), {"a": jnp.ones(2)})


@pytest.mark.parametrize(
    ("make", "words", "fix"),
    [
        (lambda path: None, "it is not there", "export_weights"),
        (lambda path: path.mkdir(), "it is a folder", "paceline.restore"),
        (lambda path: path.write_bytes(b"not weights"), "cannot be read as safetensors", "write it again"),
    ],
)
def test_what_is_no_file_of_weights_is_refused(tmp_path, make, words, fix):
    make(tmp_path / "w")
    with pytest.raises(CheckpointError, match=words) as caught:
        import_weights(tmp_path / "w", {"a": jnp.ones(2)})
    assert fix in caught.value.fix


def test_a_checkpoint_without_a_moving_average_says_so(tmp_path):
    with Store(tmp_path / "c", say=pytest.fail) as store:
        store.save({"params": {"w": jnp.ones(2)}}, 1, meta={})
    with pytest.raises(CheckpointError, match="has no ema") as caught:
        export_checkpoint(tmp_path / "c", tmp_path / "w", ema=True)
    assert "leave out --ema" in caught.value.fix
