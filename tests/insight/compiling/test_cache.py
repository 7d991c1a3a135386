"""Entries on disk: whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.insight.compiling.cache import Entry, ProgramCache, default_folder
from paceline.insight.memory.stats import MemoryStats

ENTRY = Entry("HloModule step\nENTRY µ", MemoryStats(10, 8, 8, 400), 1.5, "cuda")


def test_an_entry_comes_back_as_it_was(tmp_path):
    """Text with a letter beyond ASCII, memory, seconds and platform, from another object on the same folder."""
    ProgramCache(tmp_path / "new").write("a1", ENTRY)
    assert ProgramCache(tmp_path / "new").read("a1") == ENTRY
    assert ProgramCache(tmp_path / "new").read("a2") is None
    assert ProgramCache(tmp_path / "never").read("a1") is None


@pytest.mark.parametrize("damage", [b"", b"\x1f\x8b torn", b"no gzip at all", "half", "other"])
def test_what_cannot_be_read_counts_as_missing_and_is_written_anew(tmp_path, damage):
    """Empty, torn, foreign, cut in half, or another document: None, and the next write is read again."""
    cache = ProgramCache(tmp_path)
    cache.write("a1", ENTRY)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    if damage == "other":
        import gzip

        damage = gzip.compress(b'{"text": 3}')
    path.write_bytes(whole[: len(whole) // 2] if damage == "half" else damage)
    assert cache.read("a1") is None
    cache.write("a1", ENTRY)
    assert cache.read("a1") == ENTRY
    assert len(list(tmp_path.iterdir())) == 1  # no temporary file stays


def test_the_entries_unused_for_longest_go_first(tmp_path):
    """Room for two of three: the one that was neither written nor read lately is gone."""
    cache = ProgramCache(tmp_path)
    for number, key in enumerate(("a", "b")):
        cache.write(key, ENTRY)
        os.utime(tmp_path / f"{key}.json.gz", (number, number))
    assert cache.read("a") is not None  # used now, so b is the oldest
    size = (tmp_path / "a.json.gz").stat().st_size
    ProgramCache(tmp_path, max_bytes=2 * size).write("c", ENTRY)
    assert [cache.read(key) is not None for key in "abc"] == [True, False, True]


def test_a_folder_that_cannot_be_written_keeps_nothing_and_raises_nothing(tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("x")
    cache = ProgramCache(tmp_path / "file" / "programs")
    cache.write("a", ENTRY)
    assert cache.read("a") is None


def test_the_folder_follows_the_environment(monkeypatch):
    """PACELINE_CACHE before XDG_CACHE_HOME before ~/.cache."""
    monkeypatch.setenv("PACELINE_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_folder() == Path("/own/programs")
    monkeypatch.delenv("PACELINE_CACHE")
    assert default_folder() == Path("/xdg/paceline/programs")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_folder() == Path("/home/someone/.cache/paceline/programs")
