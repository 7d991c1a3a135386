"""Blocks come back bit for bit, from the disk or from memory."""

from __future__ import annotations

import os

import numpy as np
import pytest

from paceline.dashboard.follow.blocks import BLOCK_ROWS, BlockStore
from paceline.dashboard.follow.spans import MISSING


@pytest.fixture(params=["disk", "no such folder"])
def store(request, tmp_path):
    kept = BlockStore(tmp_path if request.param == "disk" else tmp_path / "none" / "there")
    yield kept
    kept.close()


def block(seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).random(BLOCK_ROWS)
    values[:4] = [np.nan, np.inf, -np.inf, MISSING]
    return values


def test_blocks_read_back_bit_for_bit(store):
    """NaN, infinities and what is missing keep their bits."""
    slots = [store.put(block(seed)) for seed in range(5)]
    assert len(set(slots)) == 5
    for seed, slot in enumerate(slots):
        assert store.get(slot).tobytes() == block(seed).tobytes()


def test_the_place_of_a_dropped_block_is_used_again(store):
    """A run that is resumed often does not fill the disk."""
    first = store.put(block(0))
    store.put(block(1))
    store.drop(first)
    assert store.put(block(2)) == first
    assert store.get(first).tobytes() == block(2).tobytes()


def test_nothing_is_left_in_the_folder(tmp_path):
    """The file has no name from the beginning, so no end of the process leaves it behind."""
    store = BlockStore(tmp_path)
    store.put(block(0))
    assert os.listdir(tmp_path) == []
    store.close()


def test_a_disk_that_is_full_keeps_blocks_in_memory(tmp_path, monkeypatch):
    """Writing fails half way: the block is still there."""
    store = BlockStore(tmp_path)
    monkeypatch.setattr(os, "pwrite", lambda *_: 100)
    slot = store.put(block(3))
    monkeypatch.undo()
    assert store.get(slot).tobytes() == block(3).tobytes()
