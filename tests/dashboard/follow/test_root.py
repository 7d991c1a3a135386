"""Runs are found, and nothing outside of the root is."""

from __future__ import annotations

import os

import pytest

from paceline.dashboard.follow import root as search
from paceline.dashboard.follow.root import find
from tests.dashboard.made_runs import make_run


def keys(found) -> list[str]:
    return [words.key for words in found.problems]


def test_runs_are_found_in_folders_of_folders(tmp_path):
    """By run.json or by events; a folder with neither is none, an empty folder is one that has not begun."""
    make_run(tmp_path / "a", steps=1)
    make_run(tmp_path / "sweep" / "b", steps=1)
    make_run(tmp_path / "events only", steps=1)
    (tmp_path / "events only" / "run.json").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "text.txt").write_text("no run")
    (tmp_path / "begun").mkdir()
    found = find(tmp_path)
    assert set(found.runs) == {"a", "sweep/b", "events only", "begun"}
    assert found.runs["sweep/b"] == tmp_path / "sweep" / "b"
    assert found.problems == []


def test_a_root_that_is_a_run_is_the_only_one(tmp_path):
    """Its id is its own name; its checkpoints are not searched."""
    make_run(tmp_path / "image-1", steps=1)
    make_run(tmp_path / "image-1" / "checkpoints" / "100", steps=1)
    assert list(find(tmp_path / "image-1").runs) == ["image-1"]


def test_a_root_that_is_not_there_is_told_and_no_error(tmp_path):
    """A server may be started before the first run."""
    found = find(tmp_path / "runs")
    assert (found.runs, keys(found)) == ({}, ["problem.root_missing"])


def test_links_that_lead_out_are_not_followed(tmp_path):
    """Folders, and result files; a link inside stays one run."""
    outside = make_run(tmp_path / "outside", steps=1)
    (tmp_path / "outside.json").write_text("{}")
    root = tmp_path / "root"
    make_run(root / "a", steps=1)
    (root / "out").symlink_to(outside)
    (root / "up").symlink_to(tmp_path)
    (root / "out.json").symlink_to(tmp_path / "outside.json")
    (root / "b").symlink_to(root / "a")
    (root / "loop").symlink_to(root)
    found = find(root)
    assert list(found.runs) == ["a"]
    assert found.results == {}
    assert [words.values["file"] for words in found.problems] == ["out.json", "out", "up"]
    assert not any("outside/" in words.text or str(tmp_path) in words.text for words in found.problems)


def test_many_links_that_lead_out_are_named_in_part_and_counted(tmp_path):
    """Five by name."""
    outside = make_run(tmp_path / "outside", steps=1)
    root = tmp_path / "root"
    root.mkdir()
    for number in range(8):
        (root / f"{number}").symlink_to(outside)
    assert keys(find(root)) == ["problem.outside"] * 5 + ["problem.outside_more"]
    assert find(root).problems[-1].values == {"count": 3}


def test_a_named_pipe_is_no_result(tmp_path):
    """To open it would wait for its writer."""
    os.mkfifo(tmp_path / "scale.json")
    assert find(tmp_path).results == {}


def test_a_root_that_is_itself_a_link_is_followed(tmp_path):
    """`runs` often is a link to a larger disk."""
    make_run(tmp_path / "disk" / "a", steps=1)
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    assert list(find(tmp_path / "runs").runs) == ["a"]


def test_results_of_other_commands_are_listed_beside_runs(tmp_path):
    """All JSON files but those of a run."""
    make_run(tmp_path / "a", steps=1)
    (tmp_path / "scale.json").write_text("{}")
    (tmp_path / "a" / "verify.json").write_text("{}")
    (tmp_path / ".hidden.json").write_text("{}")
    assert set(find(tmp_path).results) == {"scale.json", "a/verify.json"}


def test_the_search_ends_in_deep_and_in_many_folders(tmp_path, monkeypatch):
    """And says so."""
    monkeypatch.setattr(search, "DEEPEST", 2)
    monkeypatch.setattr(search, "MOST_FOLDERS", 6)
    make_run(tmp_path / "1" / "2" / "3" / "deep", steps=1)
    make_run(tmp_path / "1" / "2-run", steps=1)
    assert (set(find(tmp_path).runs), keys(find(tmp_path))) == ({"1/2-run"}, ["problem.too_deep"])
    for number in range(10):
        make_run(tmp_path / "many" / f"{number}", steps=1)
    assert "problem.too_many" in keys(find(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    make_run(tmp_path / "a", steps=1)
    found = find(tmp_path)
    assert (list(found.runs), keys(found)) == (["a"], ["problem.unreadable_folder"])


def test_a_name_that_is_no_unicode_is_written_out(tmp_path):
    """File names are bytes; ids are text that JSON and addresses take."""
    make_run(tmp_path / "a", steps=1)
    os.rename(tmp_path / "a", os.fsencode(tmp_path) + b"/\xff-run")
    found = find(tmp_path)
    assert list(found.runs) == ["\\udcff-run"]
    assert found.runs["\\udcff-run"].is_dir()


def test_folders_whose_names_would_be_shown_alike_stay_two_runs(tmp_path):
    """A byte that is no UTF-8, and names that spell how it is written out, with one backslash and with two."""
    names = [b"a\xe9", rb"a\udce9", rb"a\\udce9", b"a\\\xe9", rb"b\c", "a\u00e9".encode()]
    for name in names:
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
    found = find(tmp_path)
    assert sorted(os.fsencode(path.name) for path in found.runs.values()) == sorted(names)
    assert {r"b\c", r"a\udce9", "a\u00e9"} <= set(found.runs)
    assert found.runs[r"a\udce9"].name == "a\udce9"
    for id in found.runs:
        id.encode()
