"""Every kind of damage to every file of a checkpoint: found, named, skipped; a wrong number is never restored."""

from __future__ import annotations

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.base.errors import CheckpointError
from paceline.checkpoint import arrays, files, reading
from paceline.checkpoint.reading import read_meta, restore
from paceline.checkpoint.store import Store
from paceline.topology.mesh import data_mesh, replicated
from tests.checkpoint import states


def state(step):
    """Small leaves, which are packed, and a large one."""
    return {"small": jnp.arange(50.0) + step, "count": jnp.int32(step), "large": jnp.arange(100_000.0) + step}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with Store(folder, say=pytest.fail) as store:
        for step in (1, 2):
            store.save(state(step), step, meta={"step": step})
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


FILES = [
    files.DOCUMENT, "default/_METADATA", "default/packed/.zarray", "default/packed/0", "default/1.large/.zarray",
    "default/1.large/0",
]  # fmt: skip


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file, *, place):
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x10
    file.write_bytes(bytes(content))


DAMAGE = {
    "deleted": lambda file: file.unlink(),
    "emptied": lambda file: file.write_bytes(b""),
    "truncated": truncate,
    "first": lambda file: flip(file, place=0),
    "middle": lambda file: flip(file, place=0.5),
    "last": lambda file: flip(file, place=1),
}


def test_the_list_of_files_is_that_of_the_checkpoint(saved):
    """The tests below damage every file there is."""
    found = [str(path.relative_to(saved / "2")) for path in (saved / "2").rglob("*") if path.is_file()]
    assert sorted(found) == sorted(FILES)


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_skipped_with_a_sentence_and_refused_by_name(folder, name, kind):
    """Deleted, emptied, truncated, a bit flipped at the start, in the middle, at the end: step 1 is used instead.

    Asked for by its step, the error names the file or the leaf.
    """
    DAMAGE[kind](folder / "2" / name)
    said = []
    restored = restore(folder, like=state(0), say=said.append)
    assert restored.step == 1
    states.assert_same(restored.state, state(1))
    (sentence,) = said
    assert sentence.startswith("the checkpoint of step 2 is damaged and was skipped: ")
    with pytest.raises(CheckpointError, match="damaged in") as caught:
        restore(folder, like=state(0), step=2, say=pytest.fail)
    assert any(word in caught.value.what for word in (name, "leaf 'small'", "leaf 'large'")), caught.value.what
    assert "another step" in caught.value.fix


@pytest.mark.parametrize("kind", ["first", "middle", "last"])
def test_every_part_of_a_step_is_proven_even_where_no_bit_of_this_state_lies(folder, kind):
    """The packed file has gaps between leaves: a bit flipped in a leaf is found, one in a gap changes nothing."""
    DAMAGE[kind](folder / "2" / "default" / "packed" / "0")
    said = []
    states.assert_same(restore(folder, like=state(0), say=said.append).state, state(2 - len(said)))


def test_all_damaged_is_an_error_that_says_what_is_wrong_with_each(folder):
    (folder / "1" / "default" / "packed" / "0").unlink()
    truncate(folder / "2" / files.DOCUMENT)
    with pytest.raises(CheckpointError, match=r"(?s)is sound: the checkpoint of step 2: paceline\.json.*step 1: file"):
        restore(folder, like=state(0), say=lambda text: None)


def test_a_half_written_checkpoint_is_skipped_with_a_sentence(folder):
    """Left by a run that was killed, before another store takes it away."""
    (folder / "2").rename(folder / "3.saving")
    said = []
    assert restore(folder, like=state(0), say=said.append).step == 1
    assert said == ["the checkpoint of step 3 is half-written and was skipped: the run ended while it was written"]


def test_a_half_deleted_checkpoint_is_no_checkpoint(folder):
    (folder / "2").rename(folder / "2.deleting")
    assert files.steps(folder) == [1]
    assert restore(folder, like=state(0), say=pytest.fail).step == 1


def test_an_empty_folder_of_a_step_is_skipped(folder):
    (folder / "7").mkdir()
    assert files.steps(folder) == [1, 2]
    assert restore(folder, like=state(0), say=lambda text: None).step == 2


def test_the_meta_of_a_damaged_document_is_refused(folder):
    flip(folder / "2" / files.DOCUMENT, place=0.5)
    with pytest.raises(CheckpointError, match=r"paceline\.json"):
        read_meta(folder, 2)


def test_a_pipe_in_place_of_a_document_is_damage_and_no_waiting(folder):
    """Nobody writes to it."""
    (folder / "2" / files.DOCUMENT).unlink()
    os.mkfifo(folder / "2" / files.DOCUMENT)
    assert files.steps(folder) == [1]
    with pytest.raises(files.Damaged, match="cannot be read: a named pipe lies there"):
        files.read_document(folder / "2")


def test_one_device_that_holds_other_numbers_is_found(folder, monkeypatch):
    """Replica 3 of 4 differs in one word after it was placed; the other three are right."""
    put = reading.place

    def misplaced(data, target):
        leaf = put(data, target)
        parts = [np.array(shard.data) for shard in leaf.addressable_shards]
        parts[3].reshape(-1)[0] += 1
        devices = [shard.device for shard in leaf.addressable_shards]
        pieces = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, pieces)

    like = jax.device_put(state(0), replicated(data_mesh(jax.devices()[:4])))
    monkeypatch.setattr(reading, "place", misplaced)
    with pytest.raises(CheckpointError, match="is not the same on all devices"):
        restore(folder, like=like, step=2)


def test_a_large_file_that_was_cut_off_makes_no_complete_checkpoint(folder):
    truncate(folder / "2" / "default" / "1.large" / "0")
    assert files.steps(folder) == [1]


def test_numbers_that_change_between_the_disk_and_the_devices_are_found(folder, monkeypatch):
    """The files are sound, the memory is not: the checksum is that of the devices."""
    read = arrays.read

    def flipped(*args):
        found = read(*args)
        if "1.large" in found:
            data = found["1.large"].copy()
            data.view(np.uint32)[77] ^= 1
            found["1.large"] = data
        return found

    monkeypatch.setattr(arrays, "read", flipped)
    with pytest.raises(CheckpointError, match="leaf 'large' does not have the checksum"):
        restore(folder, like=state(0), step=2)
