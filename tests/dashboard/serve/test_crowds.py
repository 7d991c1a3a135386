"""More runs than are kept: who looks at one sees it or is told why not, and nothing is read again and again."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from paceline.dashboard.follow import library as library_module
from paceline.dashboard.follow import run as run_module
from paceline.dashboard.follow.library import Library
from paceline.dashboard.serve import prometheus
from paceline.dashboard.serve.api import told_summary
from paceline.dashboard.serve.pulse import Pulse
from paceline.dashboard.views.detail import last_numbers
from tests.dashboard.clocks import Clock
from tests.dashboard.made_runs import START_S, LiveRun, make_run


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def library(tmp_path, clock, monkeypatch):
    """Four ended runs of which two are kept, "3" is the newest."""
    for module in (library_module, run_module):
        monkeypatch.setattr(module, "READ_RUNS", 2)
    for place in range(4):
        make_run(tmp_path / f"{place}", steps=5, start_s=START_S + 1000 * place)
    opened = Library(tmp_path, monotonic=clock, wall=clock)
    opened.read_all()
    yield opened
    opened.close()


def reading(library):
    return {run.id: told_summary(run, now_s=START_S)["read"]["state"] for run in library.runs()}


def test_runs_that_nobody_looks_at_rest_and_tell_their_newest_numbers(library):
    """In the list and in /metrics, and not as empty runs."""
    assert reading(library) == {"3": "whole", "2": "whole", "1": "resting", "0": "resting"}
    resting, kept = (next(run for run in library.runs() if run.id == id) for id in ("0", "3"))
    told, whole = told_summary(resting, now_s=START_S), told_summary(kept, now_s=START_S)
    assert (told["state"], told["step"]) == ("finished", 5)
    for key in ("loss", "samples_per_s"):
        assert told[key] == pytest.approx(whole[key], rel=0.1)
    numbers = {one["key"]: one["last"] for one in last_numbers(resting)}
    newest = json.loads((resting.folder / "events-0.jsonl").read_text().splitlines()[-2])
    assert newest["kind"] == "step"
    assert numbers == newest["values"]
    text = prometheus.render([(told_summary(resting, now_s=START_S), last_numbers(resting))], now_s=START_S)
    assert 'paceline_events_read_ratio{run="0"} 0.0' in text
    assert f'paceline_train_loss{{run="0"}} {newest["values"]["train/loss"]}' in text


def test_a_resting_run_that_grows_tells_its_newest_step(tmp_path, clock, monkeypatch):
    """It is not read, and yet its line in the list goes on."""
    for module in (library_module, run_module):
        monkeypatch.setattr(module, "READ_RUNS", 0)
    live = LiveRun(tmp_path / "a")
    live.step()
    library = Library(tmp_path, monotonic=clock, wall=clock)
    library.read_all()
    live.step()
    clock.now_s += 2
    library.poll()
    (run,) = library.runs()
    assert (run.waiting, told_summary(run, now_s=START_S)["step"]) == ("resting", 2)


def test_a_run_that_is_asked_for_while_others_are_looked_at_waits_and_says_so(library, clock):
    """As two pages do that show more runs than are kept: no run is forgotten and read in turns for ever."""
    reads = []

    def look(*ids):
        clock.now_s += 0.1
        for id in ids:
            library.run(id)
        reads.append({run.id for run in library.runs() if run.caught_up})
        return library.poll()

    for _ in range(50):
        look("3", "2", "1")
    assert reads[1:] == [{"3", "2"}] * 49
    assert reading(library)["1"] == "crowded"
    (problem,) = [words.text for words in library.run("1").problems]
    assert "as many runs as can be kept at once (2) are being looked at" in problem
    for _ in range(120):  # "2" is not looked at any more
        look("3", "1")
    assert reading(library) == {"3": "whole", "1": "whole", "2": "resting", "0": "resting"}
    assert library.run("1").problems == []
    assert len(library.run("1").columns()) == 5


def test_a_change_of_place_wakes_who_shows_it(library, clock):
    clock.now_s += 60
    library.run("0")
    assert {"0", "3"} <= library.poll().changed | library.poll().changed


def replaced(folder, *, by):
    """The folder of a run makes room for that of another."""
    os.rename(folder, folder.with_name(".before"))
    os.rename(by, folder)
    shutil.rmtree(folder.with_name(".before"))


@pytest.mark.parametrize("move", ["rename", "copy"])
def test_another_run_in_the_place_of_one_keeps_nothing_of_it(tmp_path, clock, move):
    """Neither its processes nor its steps nor its marks; by a new folder, or by new files in the same one."""
    make_run(tmp_path / "runs" / "a", steps=50, processes=3, restart_at=30)
    other = make_run(tmp_path / "other", steps=20, start_s=START_S + 5000)
    library = Library(tmp_path / "runs", monotonic=clock, wall=clock)
    library.read_all()
    run = library.run("a")
    assert run.processes == [0, 1, 2]
    if move == "rename":
        replaced(tmp_path / "runs" / "a", by=other)
    else:
        for path in run.folder.iterdir():
            path.unlink() if path.is_file() else shutil.rmtree(path)
        shutil.copytree(other, run.folder, dirs_exist_ok=True)
    clock.now_s += 60
    library.read_all()
    run = library.run("a")
    assert (run.processes, len(run.columns()), run.problems) == ([0], 20, [])
    assert [mark.kind for mark in run.marks] == ["start", "end"]


def test_the_first_answer_of_a_server_knows_the_runs(library):
    """A page that comes back to a server that was started again would call its runs removed."""
    pulse = Pulse(Library(library.root), summarise=lambda run: {"state": "finished"})
    pulse.start()
    try:
        assert len(pulse._library.runs()) == 4
    finally:
        pulse.stop()
