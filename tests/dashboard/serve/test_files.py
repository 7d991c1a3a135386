"""What lies in the folder of runs may be anything: nothing is waited for, nothing outside is read, little at once."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading

import pytest

from paceline.base.errors import PacelineError
from paceline.dashboard.compare.subjects import load_subject
from paceline.dashboard.follow.inside import read_inside
from paceline.dashboard.follow.library import Library
from paceline.dashboard.serve import results as results_module
from paceline.dashboard.serve.results import Results
from paceline.dashboard.serve.stream import Stream
from tests.dashboard.made_runs import LiveRun, make_run

DEADLINE_S = 20.0
SECRET = "what lies outside"


def verify(subject, **more):
    return json.dumps({"ok": True, "results": [], "subject": subject, "setting": "x"} | more)


@pytest.fixture
def library(tmp_path):
    (tmp_path / "runs").mkdir()
    library = Library(tmp_path / "runs")
    yield library
    library.close()


def in_time(function):
    """What it returns, from a thread: a test of what must not wait must not wait either."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert found, f"not within {DEADLINE_S} s"
    return found[0]


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path):
    """A named pipe without a writer: to open it as a file would wait for ever."""
    os.mkfifo(tmp_path / "pipe")

    def read(**options):
        with pytest.raises(OSError, match="a named pipe lies there"):
            read_inside(tmp_path / "pipe", most_bytes=10, **options)
        return True

    assert in_time(lambda: read(root=tmp_path))
    assert in_time(lambda: read(root=None))


def test_a_file_is_read_up_to_a_bound(tmp_path):
    """At the bound and one above it."""
    (tmp_path / "file").write_bytes(b"12345")
    assert read_inside(tmp_path / "file", root=tmp_path, most_bytes=5) == b"12345"
    with pytest.raises(ValueError, match="more than"):
        read_inside(tmp_path / "file", root=tmp_path, most_bytes=4)


def test_a_pipe_that_takes_the_place_of_events_holds_no_stream(library):
    """The lock of the run is free, and other runs go on."""
    live, other = LiveRun(library.root / "live"), LiveRun(library.root / "other")
    live.step(), other.step()
    library.read_all()
    stream = Stream(library.run, runs=["live", "other"], positions={"other": {}})
    (live.path / "events-0.jsonl").unlink()
    os.mkfifo(live.path / "events-0.jsonl")
    assert in_time(lambda: Stream(library.run, runs=["live"], positions={}).cursor)
    in_time(lambda: stream.read("live") or True)
    assert in_time(lambda: stream.read("other"))
    assert library.run("live").lock.acquire(timeout=DEADLINE_S)


@pytest.mark.parametrize("swapped", ["before it is seen", "after it was found"])
def test_a_pipe_among_the_results_holds_no_list(library, swapped):
    """The results beside it are listed."""
    (library.root / "good.json").write_text(verify("good"))
    pipe = library.root / "verify.json"
    if swapped == "after it was found":
        pipe.write_text(verify("was"))
        library.poll()
        pipe.unlink()
    os.mkfifo(pipe)
    if swapped == "before it is seen":
        library.poll()
    assert [result.id for result in in_time(Results(library).all)] == ["good.json"]


def exchange(one, other):
    """Both names change places at once (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0, os.strerror(ctypes.get_errno())


def test_a_link_that_is_put_in_place_after_the_check_shows_nothing_outside(library, tmp_path, monkeypatch):
    """Exactly between the look at the links and the reading, for a result and for a run that is not read yet."""
    (tmp_path / "secret.json").write_text(verify(SECRET))
    inside, link = library.root / "v.json", library.root / ".link"
    inside.write_text(verify("inside"))
    link.symlink_to(tmp_path / "secret.json")
    outside = make_run(tmp_path / "outside", steps=5, task=SECRET)
    folder, folder_link = make_run(library.root / "a", steps=5), library.root / ".folder"
    folder_link.symlink_to(outside)
    library.poll(budget_s=-1.0)
    assert not library.run("a").caught_up
    results = Results(library)
    for id, paths in {"v.json": (inside, link), "a": (folder, folder_link)}.items():
        assert results.subject(id).name == id
        monkeypatch.setattr(results, "_refuse_links", lambda *_, paths=paths: exchange(*paths))
        with pytest.raises(PacelineError) as caught:
            results.subject(id)
        assert SECRET not in str(caught.value)
        monkeypatch.undo()


def test_a_subject_is_read_only_under_the_root(tmp_path):
    """Where one is given; the command takes any path."""
    (tmp_path / "in").mkdir()
    (tmp_path / "v.json").write_text(verify("x"))
    assert load_subject(tmp_path / "v.json").kind == "verify"
    with pytest.raises(PacelineError, match="leads out"):
        load_subject(tmp_path / "v.json", root=tmp_path / "in")


def test_large_files_that_are_no_results_are_not_read_whole(library, monkeypatch):
    """Their first part tells; of results there is a bound in one request, and the next goes on."""
    read = []
    decode = results_module.msgspec.json.decode
    monkeypatch.setattr(
        results_module.msgspec.json, "decode", lambda content, **k: read.append(len(content)) or decode(content, **k)
    )
    (library.root / "numbers.json").write_text(json.dumps({"a": [1.5] * 100_000}))
    library.poll()
    results = Results(library)
    assert results.all() == []
    assert max(read) == results_module._HEAD_BYTES
    for number in range(4):
        (library.root / f"v{number}.json").write_text(verify(f"s{number}", padding="x" * 1000))
    with contextlib.closing(Library(library.root)) as again:
        again.poll()
        results = Results(again)
        monkeypatch.setattr(results_module, "_BYTES_A_REQUEST", 1500)
        counts = [len(results.all()) for _ in range(5)]
    assert counts[-1] == 4 and counts == sorted(counts) and counts[1] < 4


def test_what_is_no_result_is_remembered(library, monkeypatch):
    """Damaged files are not read ten times a second; one that is mended is."""
    path = library.root / "v.json"
    path.write_text("{" * 1000)
    library.poll()
    opened = []
    inner = results_module.opened_inside
    monkeypatch.setattr(
        results_module, "opened_inside", lambda path, **options: opened.append(path) or inner(path, **options)
    )
    results = Results(library)
    assert [results.all() for _ in range(3)] == [[], [], []]
    assert len(opened) == 1
    path.write_text(verify("mended"))
    assert [result.title for result in results.all()] == ["verify mended"]


def test_a_list_is_not_held_up_by_another_one_that_reads(library, monkeypatch):
    """A disk may take its time; what is known already is listed."""
    (library.root / "v.json").write_text(verify("x"))
    library.poll()
    results = Results(library)
    assert len(results.all()) == 1
    (library.root / "w.json").write_text(verify("y"))
    library.results["w.json"] = library.root / "w.json"
    inner, reading, goes_on = results_module.opened_inside, threading.Event(), threading.Event()

    @contextlib.contextmanager
    def slow(path, **options):
        reading.set()
        assert goes_on.wait(DEADLINE_S)
        with inner(path, **options) as descriptor:
            yield descriptor

    monkeypatch.setattr(results_module, "opened_inside", slow)
    thread = threading.Thread(target=results.all, daemon=True)
    thread.start()
    assert reading.wait(DEADLINE_S)
    monkeypatch.setattr(results_module, "opened_inside", inner)
    assert len(in_time(results.all)) == 2
    goes_on.set()
    thread.join(DEADLINE_S)
