"""Every whole line exactly once; torn lines later; damaged lines counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.base.errors import RunFolderError
from paceline.telemetry.events import Event, encode
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.reader import events_files, read_events, read_run
from paceline.telemetry.recorder import Recorder


def event(step, text=None):
    return Event("step", step, 1.0 + step, {"train/loss": 1.0 / (1 + step)}, text)


LINES = [encode(event(step)) for step in range(4)]


@pytest.mark.parametrize("kept", range(len(LINES[-1])))
def test_a_line_torn_by_a_kill_at_any_byte_is_read_when_it_is_whole(tmp_path, kept):
    """The first read gives what is before it, the next one gives it: nothing twice, nothing lost."""
    file = tmp_path / "events-0.jsonl"
    whole = b"".join(LINES[:-1])
    file.write_bytes(whole + LINES[-1][:kept])
    first = read_events(file)
    assert first == ([event(0), event(1), event(2)], len(whole), 0)
    file.write_bytes(whole + LINES[-1])
    assert read_events(file, first.next_offset) == ([event(3)], len(whole) + len(LINES[-1]), 0)


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=6), data=st.data())
def test_a_file_that_grows_by_any_pieces_is_read_exactly_once(tmp_path_factory, texts, data):
    """Cuts anywhere, inside characters of several bytes too."""
    expected = [event(step, text) for step, text in enumerate(texts)]
    content = b"".join(map(encode, expected))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    file = tmp_path_factory.mktemp("grow") / "events-0.jsonl"
    events, offset = [], 0
    for cut in [*cuts, len(content)]:
        file.write_bytes(content[:cut])
        page = read_events(file, offset)
        events += page.events
        offset = page.next_offset
        assert page.skipped == 0
    assert events == expected
    assert offset == len(content)


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b"\xff\x00\xff", b'{"kind":"step"}', LINES[1][:-2]])
def test_a_damaged_line_in_the_middle_is_counted_and_costs_only_itself(tmp_path, damage):
    """An empty line is no damage: a recorder ends lines that a full disk may have ended already."""
    file = tmp_path / "events-0.jsonl"
    file.write_bytes(LINES[0] + damage + b"\n" + LINES[2])
    page = read_events(file)
    assert page.events == [event(0), event(2)]
    assert page.skipped == (1 if damage else 0)
    assert page.next_offset == file.stat().st_size


def test_a_file_without_a_whole_line_gives_nothing_yet(tmp_path):
    """Neither an empty file nor the beginning of a first line."""
    file = tmp_path / "events-0.jsonl"
    for content in (b"", LINES[0][:-1]):
        file.write_bytes(content)
        assert read_events(file) == ([], 0, 0)


@pytest.mark.parametrize("offset", [-1, 10**6])
def test_an_offset_outside_the_file_is_an_error_and_not_silence(tmp_path, offset):
    """A follower would otherwise wait for ever on the file of another run."""
    file = tmp_path / "events-0.jsonl"
    file.write_bytes(LINES[0])
    with pytest.raises(RunFolderError) as caught:
        read_events(file, offset)
    assert caught.value.fix == "read it again from offset 0"


def test_events_that_are_not_there_are_an_error(tmp_path):
    """The fix says which file to name; a folder is not one."""
    for path in (tmp_path / "events-0.jsonl", tmp_path):
        with pytest.raises(RunFolderError) as caught:
            read_events(path)
        assert "events-<process>.jsonl" in caught.value.fix


def test_a_run_is_read_whole(tmp_path):
    """run.json, report.json and the events of every process, in order of its index."""
    folder = RunFolder.create(tmp_path / "run")
    folder.write_run({"batch": 32})
    for process in (10, 0, 9):
        with Recorder(folder, process) as recorder:
            recorder.step(1, {"train/loss": float(process)})
    (folder.path / "events-x.jsonl").write_text("not ours")
    record = read_run(folder.path)
    assert (record.run, record.report, record.skipped) == ({"batch": 32}, None, 0)
    assert list(record.events_by_process) == [0, 9, 10] == list(events_files(folder.path))
    assert record.events[1].values == {"train/loss": 0.0}
    folder.write_report({"steps": 1})
    assert read_run(folder.path).report == {"steps": 1}


def test_a_run_that_has_just_begun_has_no_events(tmp_path):
    """The folder is there before the first event."""
    record = read_run(RunFolder.create(tmp_path / "run").path)
    assert (record.run, record.events, record.report) == ({}, [], None)


def test_what_is_no_run_folder_is_an_error(tmp_path):
    """The fix tells what to name instead."""
    with pytest.raises(RunFolderError, match=r"holds no run\.json") as caught:
        read_run(tmp_path)
    assert "name the folder" in caught.value.fix


@pytest.mark.parametrize("name", ["run.json", "report.json"])
def test_a_damaged_document_is_named(tmp_path, name):
    """Not taken for an empty one."""
    folder = RunFolder.create(tmp_path / "run")
    (folder.path / name).write_text('{"batch": 3')
    with pytest.raises(RunFolderError) as caught:
        read_run(folder.path)
    assert name in caught.value.what
    assert caught.value.fix == f"restore {name} from a copy, or leave this folder out"
