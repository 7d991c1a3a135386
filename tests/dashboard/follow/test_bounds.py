"""What a run folder that is odd, damaged or made to be so can cost: it is bounded, and told."""

from __future__ import annotations

import os

import pytest

from paceline.dashboard.follow import kept
from paceline.dashboard.follow import run as run_module
from paceline.dashboard.follow.blocks import BlockStore
from paceline.dashboard.follow.columns import Columns
from paceline.dashboard.follow.run import Run
from tests.dashboard.made_runs import LiveRun, make_run


def read(run: Run, *, slice_bytes: int = 4096) -> None:
    """Everything that is there."""
    run.refresh()
    run.look()
    while run.read(slice_bytes) is not None:
        pass


def opened(folder) -> Run:
    run = Run(folder, id=folder.name, root=folder.parent, store=BlockStore())
    read(run)
    return run


def losses(run: Run) -> dict[int, float]:
    found = run.columns().whole("train/loss")
    return dict(zip(found.step.tolist(), found.value.tolist(), strict=True))


def test_a_folder_that_could_not_be_listed_is_tried_again(tmp_path, monkeypatch):
    """Though its time of modification is the same."""
    folder = make_run(tmp_path / "a", steps=3)
    run = Run(folder, id="a", root=tmp_path, store=BlockStore())

    def refuse(path):
        raise OSError(24, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(run_module.os, "scandir", refuse)
        run.refresh()
        assert run.processes == []
    read(run)
    assert len(losses(run)) == 3


def test_a_torn_line_that_nobody_goes_on_with_is_read_once(tmp_path, monkeypatch):
    """Until the file changes."""
    live = LiveRun(tmp_path / "a")
    live.append('{"kind":"notice","step":1,"time_s":1.0,"values":{},"text":"' + "x" * 500_000)
    run = opened(tmp_path / "a")
    reads: list[int] = []
    pread = os.pread

    def counted(descriptor, size, offset):
        reads.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    for _ in range(10):
        read(run)
    assert reads == []
    live.append('"}\n')
    read(run)
    assert [item.event.kind for item in run.events()][-1] == "notice"


def test_a_line_that_is_too_long_is_one_damaged_line_and_what_follows_is_read(tmp_path):
    live = LiveRun(tmp_path / "a")
    live.append('{"kind":"notice","text":"' + "x" * 3_500_000 + '"}\n')
    live.step()
    run = opened(tmp_path / "a")
    assert (run.skipped, list(losses(run)), run.unread_bytes) == (1, [1], 0)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_keys_beyond_the_limit_are_left_out_and_told(tmp_path, monkeypatch, one_by_one):
    """Whether a new key comes with each step, or the reader takes step after step."""
    monkeypatch.setattr(kept, "MOST_KEYS", 20)
    live = LiveRun(tmp_path / "a")
    run = opened(tmp_path / "a")
    for place in range(30):
        live.append({"kind": "step", "step": place + 1, "time_s": 1.0, "values": {f"train/k{place}": place}})
        if one_by_one:
            read(run)
    read(run, slice_bytes=1 << 20)
    assert run.columns().keys == tuple(f"train/k{place}" for place in range(20))
    assert len(run.columns()) == 30
    told = {problem.key: problem.values for problem in run.problems}
    assert told["problem.keys_left_out"] == {"count": 10, "most": kept.MOST_KEYS, "process": 0}


def test_of_very_many_unknown_kinds_some_are_named(tmp_path):
    live = LiveRun(tmp_path / "a")
    for place in range(50):
        live.append({"kind": f"kind{place:02}", "step": 1, "time_s": 1.0, "values": {}})
    run = opened(tmp_path / "a")
    assert list(run.unknown) == [f"kind{place:02}" for place in range(20)]
    assert [(words.key, words.values["count"]) for words in run.problems][19:] == [
        ("problem.kinds_unknown", 1), ("problem.kinds_more", 30)
    ]  # fmt: skip


def test_problems_are_no_more_than_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "MOST_PROBLEMS", 3)
    live = LiveRun(tmp_path / "a")
    for place in range(10):
        live.append({"kind": f"kind{place}", "step": 1, "time_s": 1.0, "values": {}})
    found = opened(tmp_path / "a").problems
    assert (len(found), found[-1].text) == (4, "further problems: 7")


def test_words_of_an_event_are_cut_in_the_list_and_on_the_mark(tmp_path):
    live = LiveRun(tmp_path / "a")
    live.append({"kind": "notice", "step": 1, "time_s": 1.0, "values": {}, "text": "x" * 10_000})
    run = opened(tmp_path / "a")
    last = run.last_event(0)
    assert last is not None
    expected = "x" * 3999 + "…"
    assert [run.events()[-1].event.text, run.marks[-1].text, last.text] == [expected] * 3


def test_a_table_grows_for_keys_that_come_one_by_one_without_copying_all_each_time(tmp_path):
    """500 keys, and its numbers move some 20 times."""
    columns = Columns(BlockStore())
    tables = []
    for step in range(500):
        columns.append_one(step, 1.0, values={f"k{step}": float(step)})
        if not tables or columns._tail is not tables[-1]:
            tables.append(columns._tail)
    assert len(tables) < 30
    assert [columns.last(f"k{step}") for step in (0, 250, 499)] == [0.0, 250.0, 499.0]


def test_of_very_many_processes_some_are_looked_at_each_time_and_all_within_some_looks(tmp_path, monkeypatch):
    """The main one always, so that the run's own steps come at once."""
    monkeypatch.setattr(run_module, "_LOOKED_AT", 3)
    folder = make_run(tmp_path / "a", steps=2, processes=8)
    run = opened(folder)
    looks = []
    for _ in range(4):
        for process in range(8):
            with open(folder / f"events-{process}.jsonl", "a") as file:
                file.write('{"kind": "notice", "step": 2, "time_s": 1.0, "values": {}, "text": "more"}\n')
        run.look()
        looks.append({fresh.process for fresh in iter(lambda: run.read(4096), None)})
    assert all(0 in look and len(look) <= 4 for look in looks)
    assert set().union(*looks[:3]) == set(range(8))
