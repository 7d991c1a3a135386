"""What a stream sends, over files that a writer appends to: each event once, whatever happens between two reads."""

from __future__ import annotations

import json
import os
import random
import shutil
from contextlib import closing

import pytest

from paceline.base.errors import RunFolderError
from paceline.dashboard.follow import cursor as cursor_module
from paceline.dashboard.follow import run as run_module
from paceline.dashboard.follow.cursor import ANEW, Position, decode_cursor, encode_cursor
from paceline.dashboard.follow.library import Library
from paceline.dashboard.serve.stream import Stream, anew
from tests.dashboard.clocks import Clock
from tests.dashboard.made_runs import LiveRun


@pytest.fixture
def clock():
    """The library searches for new runs and files once a second."""
    return Clock()


@pytest.fixture
def library(tmp_path, clock):
    library = Library(tmp_path / "runs", monotonic=clock)
    yield library
    library.close()


@pytest.fixture
def opened(library, clock):
    """`opened("a", cursor=...)`: a connection whose runs are looked at before each read, as the server does."""

    def look():
        clock.now_s += 2
        library.read_all()

    class Connection(Stream):
        def read(self, run_id):
            look()
            return super().read(run_id)

    def connect(*names, cursor=None, positions=None):
        look()
        at = decode_cursor(cursor) if cursor is not None else positions or {}
        return Connection(library.run, runs=names, positions=at)

    return connect


@pytest.fixture
def live(library):
    return LiveRun(library.root / "a")


def parsed(block: bytes):
    """(event, id, data) of a message, as the standard has it."""
    fields = dict(line.split(": ", 1) for line in block.decode().strip("\n").split("\n"))
    return fields["event"], fields.get("id"), json.loads(fields["data"])


def steps_of(blocks):
    return [event["step"] for block in blocks for event in parsed(block)[2]["events"] if event["kind"] == "step"]


def test_a_stream_begins_where_the_series_end(opened, live):
    """What was there before is in the series; what comes is sent once."""
    live.step()
    stream = opened("a")
    assert stream.read("a") == []
    live.step()
    live.step()
    assert steps_of(stream.read("a")) == [2, 3]
    assert stream.read("a") == []


def test_an_event_is_sent_as_it_stands_in_the_file(opened, live):
    """NaN and infinities stay strings; what is absent stays absent; names with markup are only text in JSON."""
    stream = opened("a")
    key = 'train/<img src=x onerror="alert(1)">'
    event = {"kind": "step", "step": 1, "time_s": 5.5, "values": {"train/loss": "nan", "x": "-inf", key: 3}}
    live.append(event)
    audit = {"kind": "audit", "step": 1, "time_s": 6.0, "values": {}, "text": "é\u2028\r\nid: 7"}
    where = [{"leaf": "params.w", "devices": [2], "processes": [0], "replicas": 4, "odd": True}]
    live.append(audit | {"where": where})
    (block,) = stream.read("a")
    name, _, data = parsed(block)
    assert name == "events"
    assert data == {"run": "a", "process": 0, "events": [event, audit | {"where": where}]}


def test_a_torn_last_line_is_held_back_until_it_is_whole(opened, live):
    """Cut at every seventh byte: nothing of it is sent before its newline, and then all of it once."""
    stream = opened("a")
    live.step()
    path = live.path / "events-0.jsonl"
    whole = path.read_bytes()
    begin = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(begin, len(whole), 7):
        path.write_bytes(whole[:cut])  # the same inode
        assert stream.read("a") == []
    path.write_bytes(whole)
    assert steps_of(stream.read("a")) == [1]


def test_damaged_lines_and_kinds_from_the_future_are_passed_over(opened, live):
    """The events around them come; the cursor stands behind them."""
    stream = opened("a")
    live.step()
    live.append('{"kind": "hologram", "step": 1, "time_s": 1.0, "values": {}}\n')
    live.append("{broken\n\x00\x00\n")
    live.step()
    assert steps_of(stream.read("a")) == [1, 2]
    live.append("{broken\n")
    assert stream.read("a") == []
    assert opened("a", cursor=stream.cursor).read("a") == []


@pytest.mark.parametrize("seed", range(5))
def test_any_number_of_connections_gives_every_event_once(library, opened, seed):
    """Two runs, one with two processes; connections drop after any message and lose what was under way."""
    chance = random.Random(seed)
    one, two = LiveRun(library.root / "one"), LiveRun(library.root / "two", processes=2)
    names = ("one", "two")
    stream = opened(*names)
    cursor = parsed(stream.opening([]))[1]
    written, got = [], []
    for number in range(300):
        process = chance.choice([0, 0, 1])
        target = two if process else chance.choice([one, two])
        event = {"kind": "step", "step": number, "time_s": 1.0, "values": {}}
        target.append(event, process=process)
        written.append((target.path.name, process, number))
        if chance.random() < 0.3:
            for name in names:
                for block in stream.read(name):
                    if chance.random() < 0.3:  # lost on the wire, and the connection with it
                        stream = opened(*names, cursor=cursor)
                        break
                    _, cursor, data = parsed(block)
                    got += [(data["run"], data["process"], event["step"]) for event in data["events"]]
    for name in names:
        for block in stream.read(name):
            data = parsed(block)[2]
            got += [(data["run"], data["process"], event["step"]) for event in data["events"]]
    assert sorted(got) == sorted(written)
    for name, process in (("one", 0), ("two", 0), ("two", 1)):
        order = [step for run, of, step in got if (run, of) == (name, process)]
        assert order == sorted(order)


def test_each_message_carries_a_cursor_behind_it_and_before_the_next(library, opened):
    """Two processes in one read: after the first message only the second process is left."""
    live = LiveRun(library.root / "a", processes=2)
    stream = opened("a")
    live.append({"kind": "step", "step": 1, "time_s": 1.0, "values": {}}, process=0)
    live.append({"kind": "step", "step": 1, "time_s": 1.0, "values": {}}, process=1)
    first, _ = stream.read("a")
    again = opened("a", cursor=parsed(first)[1])
    (second,) = again.read("a")
    assert parsed(second)[2]["process"] == 1


def test_a_process_that_begins_later_is_read_from_its_start(opened, live):
    """A cursor that does not name it stands before its first byte."""
    stream = opened("a")
    live.append({"kind": "start", "step": 0, "time_s": 1.0, "values": {}}, process=3)
    (block,) = stream.read("a")
    assert parsed(block)[2]["process"] == 3


@pytest.mark.parametrize("way", ["another file", "cut off", "written anew"])
def test_a_file_that_is_another_one_resets_the_stream_once(library, opened, live, way):
    """By inode, by size, by the bytes before the place (the same inode and longer); afterwards it goes on.

    A server that was started since knows nothing of the old file: the cursor alone tells.
    """
    for _ in range(20):
        live.step()
    stream = opened("a", positions={"a": {}})
    assert steps_of(stream.read("a")) == list(range(1, 21))
    before = stream.cursor
    path = live.path / "events-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if way == "another file":
        other = path.with_suffix(".new")
        other.write_bytes(b"".join(lines))
        os.replace(other, path)
    elif way == "cut off":
        path.write_bytes(b"".join(lines[:5]))
    else:
        path.write_bytes(b"".join(lines[:1] + lines[:0:-1] + lines[1:]))  # longer, and lines still end somewhere
    (block,) = stream.read("a")
    name, cursor, data = parsed(block)
    assert (name, data["run"]) == ("reset", "a")
    assert stream.read("a") == []
    live.step()
    assert steps_of(stream.read("a")) == [21]
    assert steps_of(opened("a", cursor=cursor).read("a")) == [21]
    with closing(Library(library.root)) as another:
        another.read_all()
        (block,) = Stream(another.run, runs=["a"], positions=decode_cursor(before)).read("a")
        assert parsed(block)[0] == "reset"


def test_a_gap_that_is_too_large_resets_and_then_goes_on(opened, live, monkeypatch):
    """The series are quicker then. At the bound the events are sent."""
    cursor = opened("a").cursor
    before_bytes = (live.path / "events-0.jsonl").stat().st_size
    for _ in range(20):
        live.step()
    gap_bytes = (live.path / "events-0.jsonl").stat().st_size - before_bytes
    monkeypatch.setattr(run_module, "GAP_BYTES", gap_bytes)
    assert steps_of(opened("a", cursor=cursor).read("a")) == list(range(1, 21))
    monkeypatch.setattr(run_module, "GAP_BYTES", gap_bytes - 1)
    stream = opened("a", cursor=cursor)
    (block,) = stream.read("a")
    assert parsed(block)[0] == "reset"
    live.step()
    assert steps_of(stream.read("a")) == [21]


def test_while_a_long_run_is_still_being_read_there_is_no_reset(library, live, monkeypatch):
    """Its series would be as short as before: one reset, when they are whole."""
    for _ in range(20):
        live.step()
    library.poll(budget_s=-1.0)  # finds the run, and has no time to read it
    assert not library.run("a").caught_up
    stream = Stream(library.run, runs=["a"], positions={"a": {}})
    monkeypatch.setattr(run_module, "GAP_BYTES", 100)
    assert stream.read("a") == []
    library.read_all()
    assert [parsed(block)[0] for block in stream.read("a")] == ["reset"]
    assert stream.read("a") == []


def test_a_run_that_was_deleted_ends_nothing_and_may_come_back(library, opened, live):
    """Quiet while it is gone; another run in its place is another run, also if the disk gives it the same number."""
    other = LiveRun(library.root / "b")
    live.step()
    stream = opened("a", "b", positions={"a": {}, "b": {}})
    stream.read("a"), stream.read("b")
    shutil.rmtree(live.path)
    assert stream.read("a") == []
    other.step()
    assert steps_of(stream.read("b")) == [1]
    again = LiveRun(library.root / "a", start_s=5.0)
    again.step(), again.step()
    assert [parsed(block)[0] for block in stream.read("a")] == ["reset"]
    again.step()
    assert steps_of(stream.read("a")) == [3]
    assert opened("a", "b", cursor=stream.cursor).read("a") == []


def test_a_run_that_never_was_is_an_error_unless_a_cursor_names_it(opened):
    """A stream that reconnects after a run was deleted goes on with the others."""
    with pytest.raises(RunFolderError):
        opened("missing")
    stream = opened("missing", positions={"missing": {0: Position("1", 2)}})
    assert stream.read("missing") == []


@pytest.mark.parametrize("process", [0, 1, 7])
def test_a_cursor_opens_no_file_that_the_run_does_not_have(library, opened, live, tmp_path, process):
    """Made up by hand, it names a link that leads out, or nothing: a reset, and nothing of the file."""
    outside = LiveRun(tmp_path / "outside" / "run")
    outside.step()
    (live.path / "events-1.jsonl").symlink_to(outside.path / "events-0.jsonl")
    stream = opened("a", positions={"a": {process: Position("1+0", 1)}})
    assert [parsed(block)[0] for block in stream.read("a")] == ["reset"]
    assert stream.read("a") == []


def test_a_folder_that_leads_out_is_no_run(library, opened, tmp_path):
    """Nothing outside of the watched folder can be followed."""
    outside = LiveRun(tmp_path / "outside" / "run")
    library.root.mkdir()
    (library.root / "b").symlink_to(outside.path)
    with pytest.raises(RunFolderError):
        opened("b")


def test_the_opening_message_has_a_cursor_and_all_runs(opened, live):
    """So that a connection that breaks before the first event goes on where it began."""
    stream = opened("a")
    head, _, rest = stream.opening([{"id": "a"}]).partition(b"\n")
    assert head == b"retry: 1000"
    name, cursor, data = parsed(rest)
    assert (name, data) == ("runs", {"runs": [{"id": "a"}], "gone": [], "all": True})
    live.step()
    assert steps_of(opened("a", cursor=cursor).read("a")) == [1]


def test_a_cursor_of_twenty_runs_stays_small(library):
    """It goes with every message: under 2 KB."""
    names = [f"long/name/of/image-20261130-{number:06}" for number in range(20)]
    for name in names:
        LiveRun(library.root / name, steps=10 + len(name))
    library.read_all()
    assert len(Stream(library.run, runs=names, positions={}).cursor) < 2000


def test_a_cursor_of_many_processes_fits_in_a_header(library):
    """As 500 processes of one run have it, or 20 runs of 32: with numbers that do not repeat."""
    chance = random.Random(0)

    def cursor_bytes(runs, processes):
        positions = {
            f"group/image-20260101-12000{run}": {
                process: Position(f"+{chance.getrandbits(32):08x}", chance.randint(10**6, 10**8))
                for process in range(processes)
            }
            for run in range(runs)
        }
        text = encode_cursor(positions)
        assert decode_cursor(text) == positions
        return len(text)

    assert cursor_bytes(1, 500) < 7_000
    assert cursor_bytes(20, 32) < 9_000
    live = LiveRun(library.root / "many", processes=40)
    library.read_all()
    stream = Stream(library.run, runs=[live.path.name], positions={})
    assert len(stream.cursor) < 40 * 14 + 100


def test_a_cursor_that_would_be_too_long_is_a_short_word(opened, live, monkeypatch):
    """The stream goes on as before; who connects again is told once to fetch the series, and goes on."""
    monkeypatch.setattr(cursor_module, "LONGEST_CURSOR", 10)
    stream = opened("a")
    live.step()
    (block,) = stream.read("a")
    name, cursor, _ = parsed(block)
    assert (name, cursor) == ("events", ANEW)
    again = opened("a", positions=anew(["a"]))
    (block,) = again.read("a")
    name, cursor, data = parsed(block)
    assert (name, cursor, data["run"]) == ("reset", ANEW, "a")
    live.step()
    assert steps_of(again.read("a")) == [2]


def test_the_cursor_stands_in_the_id_alone(opened, live):
    """It is long: once in a message is enough."""
    stream = opened("a")
    live.step()
    (block,) = stream.read("a")
    assert block.decode().count(parsed(block)[1]) == 1
