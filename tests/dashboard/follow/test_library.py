"""All runs under a root, as they come, grow and go."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

from paceline.base.errors import RunFolderError
from paceline.dashboard.follow import library as library_module
from paceline.dashboard.follow.library import Library
from paceline.dashboard.follow.run import Run
from tests.dashboard.made_runs import START_S, LiveRun, make_run


class Clock:
    """Time that only a test moves; each look at it takes a microsecond, as budgets need."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def library(tmp_path, clock):
    opened = Library(tmp_path, monotonic=clock, wall=clock)
    yield opened
    opened.close()


def ids(library: Library) -> list[str]:
    return sorted(run.id for run in library.runs())


def test_new_runs_are_found_within_a_second(tmp_path, library, clock):
    make_run(tmp_path / "a", steps=3)
    assert library.poll().changed == {"a"}
    make_run(tmp_path / "b", steps=3)
    assert library.poll().changed == set()
    clock.now_s += 1
    assert library.poll().changed == {"b"}
    assert ids(library) == ["a", "b"]


def test_a_run_that_is_deleted_is_gone(tmp_path, library, clock):
    """And asking for it says so in words."""
    make_run(tmp_path / "a", steps=3)
    make_run(tmp_path / "b", steps=3)
    library.poll()
    before = library.run("a")
    shutil.rmtree(tmp_path / "a")
    clock.now_s += 1
    changes = library.poll()
    assert (changes.gone, ids(library)) == (["a"], ["b"])
    assert len(before.columns()) == 0  # its blocks are given back
    with pytest.raises(RunFolderError, match="no run 'a'") as raised:
        library.run("a")
    assert "choose one" in raised.value.fix


def test_a_run_that_is_deleted_while_it_is_read_is_no_error(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(library_module, "SLICE_BYTES", 1000)
    make_run(tmp_path / "a", steps=100)
    library = Library(tmp_path, monotonic=clock, wall=clock)
    assert library.poll(budget_s=0).busy
    shutil.rmtree(tmp_path / "a")
    clock.now_s += 1
    assert library.poll().gone == ["a"]


@pytest.mark.parametrize("id", ["..", "../outside", "/etc", "a/../../outside", "a/events-0.jsonl", ""])
def test_no_id_leads_out_of_the_root(tmp_path, id):
    """Only what the search found can be named."""
    make_run(tmp_path / "outside", steps=1)
    make_run(tmp_path / "root" / "a", steps=1)
    library = Library(tmp_path / "root")
    library.read_all()
    with pytest.raises(RunFolderError):
        library.run(id)


def test_events_of_a_followed_run_come_fresh_and_once(tmp_path, library):
    live = LiveRun(tmp_path / "a")
    library.read_all()
    live.step()
    changes = library.poll()
    assert [(id, [event.step for event in part.events]) for id, part in changes.fresh] == [("a", [1])]
    assert changes.changed == {"a"}
    assert library.poll().fresh == []


def test_a_torn_line_of_a_followed_run_keeps_nobody_busy(tmp_path, library):
    """It waits for its end; the server sleeps meanwhile."""
    live = LiveRun(tmp_path / "a")
    live.step()
    library.read_all()
    live.append('{"kind": "step", "st')
    library.run("a")
    assert not library.poll().busy
    live.append('ep": 2, "time_s": 1.0, "values": {}}\n')
    assert [fresh.events[0].step for _, fresh in library.poll().fresh] == [2]


def test_a_silent_run_that_wakes_is_seen_within_a_second_and_then_at_once(tmp_path, library, clock):
    """Runs that do not write cost one stat a second."""
    live = LiveRun(tmp_path / "a")
    library.read_all()
    clock.now_s += 600
    library.poll()
    live.step()
    assert library.poll().fresh == []
    clock.now_s += 1
    assert len(library.poll().fresh) == 1
    live.step()
    assert len(library.poll().fresh) == 1


def test_a_replaced_file_is_a_reset(tmp_path, library, clock):
    """A shorter one under the same name."""
    live = LiveRun(tmp_path / "a", steps=50)
    library.read_all()
    (tmp_path / "a" / "events-0.jsonl").write_text("")
    live.append({"kind": "start", "step": 0, "time_s": START_S, "values": {}})
    clock.now_s += 1
    changes = library.poll()
    assert changes.reset == {"a"}
    assert len(library.run("a").columns()) == 0


def test_long_files_are_read_in_slices_the_newest_run_first(tmp_path, clock, monkeypatch):
    """The list is whole after the first poll; then one run is read after the other, the one asked for first."""
    monkeypatch.setattr(library_module, "SLICE_BYTES", 3000)
    for place, name in enumerate(("oldest", "middle", "newest")):
        make_run(tmp_path / name, steps=60, start_s=START_S + 1000 * place)
    library = Library(tmp_path, monotonic=clock, wall=clock)
    assert library.poll(budget_s=0).busy
    assert [run.id for run in library.runs()] == ["newest", "middle", "oldest"]
    assert [run.id for run in library.runs() if run.read_bytes] == ["newest"]
    library.run("oldest")
    library.poll(budget_s=0)
    assert {run.id for run in library.runs() if run.read_bytes} == {"newest", "oldest"}
    while library.poll(budget_s=0).busy:
        pass
    assert all(run.caught_up for run in library.runs())


def test_of_very_many_runs_the_newest_are_kept_and_others_come_when_asked_for(tmp_path, clock, monkeypatch):
    """The run that was asked for longest ago makes room."""
    monkeypatch.setattr(library_module, "READ_RUNS", 2)
    for place in range(4):
        make_run(tmp_path / f"{place}", steps=5, start_s=START_S + 1000 * place)
    library = Library(tmp_path, monotonic=clock, wall=clock)
    library.read_all()
    assert {run.id for run in library.runs() if run.caught_up} == {"3", "2"}
    library.run("2")
    clock.now_s += 1
    library.run("0")
    library.read_all()
    assert {run.id for run in library.runs() if run.caught_up} == {"2", "0"}
    assert len(library.run("0").columns()) == 5


def test_of_very_many_folders_the_newest_are_listed_first_and_the_rest_in_later_polls(tmp_path, clock, monkeypatch):
    """Polls go on at once until all are there."""
    monkeypatch.setattr(library_module, "OPEN_S", 0)
    for place, name in enumerate(("oldest", "middle", "newest")):
        folder = make_run(tmp_path / name, steps=2)
        os.utime(folder, (START_S + place, START_S + place))
    library = Library(tmp_path, monotonic=clock, wall=clock)
    found = [(library.poll().busy, ids(library)) for _ in range(3)]
    assert [busy for busy, _ in found[:2]] == [True, True]
    assert [set(names) for _, names in found] == [{"newest"}, {"newest", "middle"}, {"newest", "middle", "oldest"}]
    assert not library.poll().busy


def test_folders_are_not_searched_again_while_none_changes(tmp_path, library, clock, monkeypatch):
    """Once in `SEARCH_TURNS` seconds for all that; at once when a run comes, also deeper down."""
    searched: list[float] = []
    find = library_module.find
    monkeypatch.setattr(library_module, "find", lambda root: searched.append(clock.now_s) or find(root))
    make_run(tmp_path / "group" / "a", steps=2)
    library.read_all()
    searched.clear()
    for _ in range(library_module.SEARCH_TURNS):
        clock.now_s += 1
        library.poll()
    assert len(searched) == 1
    make_run(tmp_path / "group" / "b", steps=2)
    clock.now_s += 1
    assert library.poll().changed == {"group/b"}


def test_an_empty_folder_that_becomes_a_group_is_searched_within_a_second(tmp_path, library, clock):
    (tmp_path / "group").mkdir()
    library.poll()
    assert ids(library) == ["group"]
    make_run(tmp_path / "group" / "a", steps=2)
    clock.now_s += 1
    library.poll()
    assert ids(library) == ["group/a"]


def test_runs_that_ended_are_looked_at_in_turns(tmp_path, library, clock, monkeypatch):
    """Each once in `IDLE_TURNS` seconds; a run without a report each second."""
    names = [f"r{place}" for place in range(library_module.IDLE_TURNS)]
    for name in names:
        make_run(tmp_path / name, steps=2)
    make_run(tmp_path / "goes_on", steps=2, ended=False)
    library.read_all()
    clock.now_s += 600
    looked: list[str] = []
    look = Run.look
    monkeypatch.setattr(Run, "look", lambda run: looked.append(run.id) or look(run))
    for _ in range(library_module.IDLE_TURNS):
        clock.now_s += 1
        library.poll()
    assert sorted(looked) == sorted(names + ["goes_on"] * library_module.IDLE_TURNS)


def test_a_run_that_ended_and_is_resumed_is_seen_within_a_second(tmp_path, library, clock):
    """Its run.json is written anew, which changes the folder."""
    for place in range(3):
        make_run(tmp_path / f"{place}", steps=2)
    library.read_all()
    clock.now_s += 600
    library.poll()
    for place in range(3):
        folder = tmp_path / f"{place}"
        with open(folder / "events-0.jsonl", "a") as file:
            file.write('{"kind":"start","step":2,"time_s":1.0,"values":{}}\n')
        (folder / "new").write_text("{}")
        os.replace(folder / "new", folder / "run.json")
    clock.now_s += 1
    assert [id for id, _ in sorted(library.poll().fresh)] == ["0", "1", "2"]


def test_a_root_that_comes_later_is_followed(tmp_path, clock):
    """The server may start before the first run."""
    library = Library(tmp_path / "runs", monotonic=clock, wall=clock)
    library.poll()
    assert [words.key for words in library.problems] == ["problem.root_missing"]
    make_run(tmp_path / "runs" / "a", steps=1)
    clock.now_s += 1
    library.poll()
    assert (ids(library), library.problems) == (["a"], [])


def test_nothing_is_written_under_the_root(tmp_path):
    """Names, sizes and times of all files are as before."""
    make_run(tmp_path / "a", steps=50, processes=2)

    def files():
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")}

    before = files()
    Library(tmp_path).read_all()
    assert files() == before


def test_readers_in_other_threads_see_whole_tables_while_a_run_grows(tmp_path):
    """Steps are 1 to n without a hole, and each loss is that of its step, at any moment."""
    live = LiveRun(tmp_path / "a")
    library = Library(tmp_path)
    library.read_all()
    ended = threading.Event()
    errors: list[str] = []

    def look() -> None:
        while not ended.is_set():
            run = library.run("a")
            with run.lock:
                found = run.columns().whole("train/loss")
            if found.step.tolist() != list(range(1, len(found.step) + 1)) or (found.value != found.step).any():
                errors.append(f"{len(found.step)} rows")

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for step in range(1, 200):
        live.step(train__loss=float(step))
        library.poll()
    ended.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(library.run("a").columns()) == 199


def test_a_file_that_is_replaced_by_a_long_one_is_read_by_slices(tmp_path, library, clock, monkeypatch):
    """One slice in a poll whose time is over; the library says that there is more."""
    monkeypatch.setattr(library_module, "SLICE_BYTES", 4096)
    make_run(tmp_path / "a", steps=3, ended=False)
    make_run(tmp_path / "long", steps=400)
    library.read_all()
    os.replace(tmp_path / "long" / "events-0.jsonl", tmp_path / "a" / "events-0.jsonl")
    clock.now_s += 1.5
    first = library.poll(budget_s=0)
    assert first.busy
    run = library.run("a")
    assert 0 < run.read_bytes <= 2 * 4096 < run.size_bytes
    library.read_all()
    assert run.read_bytes == run.size_bytes
