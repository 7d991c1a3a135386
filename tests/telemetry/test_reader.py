"""Every whole line exactly once; torn lines later; damaged lines counted."""

from __future__ import annotations

import errno
import os
from typing import Literal, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.base.errors import RunFolderError
from paceline.telemetry import events as events_module
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
    assert first == ([event(0), event(1), event(2)], len(whole), 0, {})
    file.write_bytes(whole + LINES[-1])
    assert read_events(file, first.next_offset) == ([event(3)], len(whole) + len(LINES[-1]), 0, {})


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


def test_kinds_of_a_later_version_are_counted_by_name(tmp_path):
    """Two "zoom" and one "tilt" between known events, and one damaged line: each in its own count, no event lost."""
    file = tmp_path / "events-0.jsonl"
    zoom, tilt = b'{"kind":"zoom","step":1,"time_s":2.0,"level":[3]}\n', b'{"kind":"tilt","step":1,"time_s":2.0}\n'
    file.write_bytes(LINES[0] + zoom + tilt + b"{torn\n" + zoom + LINES[1])
    page = read_events(file)
    assert page.events == [event(0), event(1)]
    assert (page.unknown, page.skipped) == ({"zoom": 2, "tilt": 1}, 1)
    assert page.next_offset == file.stat().st_size


def test_a_reader_that_knows_fewer_kinds_keeps_what_it_knows(tmp_path, monkeypatch):
    """The version before checkpoints and skips were kinds, on a file of today: steps as ever, the others counted."""
    file = tmp_path / "events-0.jsonl"
    today = [encode(Event(kind, 7, 1.0, {}, "words")) for kind in ("checkpoint", "skip", "notice")]
    file.write_bytes(LINES[0] + b"".join(today))
    before = Literal["step", "evaluation", "audit", "notice", "start", "end"]
    line = msgspec.defstruct("_Line", [("kind", before), ("step", int), ("time_s", float), ("values", dict),
                                       ("text", str | None, None), ("where", tuple, ())])  # fmt: skip
    monkeypatch.setattr(events_module, "_decoder", msgspec.json.Decoder(line))
    monkeypatch.setattr(events_module, "_KINDS", frozenset(get_args(before)))
    page = read_events(file)
    assert [found.kind for found in page.events] == ["step", "notice"]
    assert (page.unknown, page.skipped) == ({"checkpoint": 1, "skip": 1}, 0)


def test_a_file_without_a_whole_line_gives_nothing_yet(tmp_path):
    """Neither an empty file nor the beginning of a first line."""
    file = tmp_path / "events-0.jsonl"
    for content in (b"", LINES[0][:-1]):
        file.write_bytes(content)
        assert read_events(file) == ([], 0, 0, {})


@pytest.mark.parametrize("offset", [-1, 10**6])
def test_an_offset_outside_the_file_is_an_error_and_not_silence(tmp_path, offset):
    """A follower would otherwise wait for ever on the file of another run."""
    file = tmp_path / "events-0.jsonl"
    file.write_bytes(LINES[0])
    with pytest.raises(RunFolderError) as caught:
        read_events(file, offset)
    assert "offset=0" in caught.value.fix and "paceline log does with --again" in caught.value.fix


def test_a_folder_that_nobody_can_look_into_is_an_error_in_words(tmp_path):
    """As a run that is taken away while it is followed."""
    with pytest.raises(RunFolderError, match=r"cannot look into run folder.*No such file or directory"):
        events_files(tmp_path / "gone")


def test_events_that_are_not_yours_to_read_are_no_wrong_name(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr("paceline.telemetry.reader.opened_regular", refuse)
    with pytest.raises(RunFolderError, match="Permission denied") as caught:
        read_events(tmp_path / "events-0.jsonl")
    assert caught.value.fix == "see that you can read it"


def test_events_that_are_not_there_are_an_error(tmp_path):
    """The fix says which file to name; a folder is not one."""
    for path in (tmp_path / "events-0.jsonl", tmp_path):
        with pytest.raises(RunFolderError) as caught:
            read_events(path)
        assert "events-<process>.jsonl" in caught.value.fix


def test_a_named_pipe_in_place_of_events_is_an_error_and_no_waiting(tmp_path):
    """Nobody writes to it: an ordinary opening would never end. The error says what lies there."""
    os.mkfifo(tmp_path / "events-0.jsonl")
    with pytest.raises(RunFolderError, match="a named pipe lies there"):
        read_events(tmp_path / "events-0.jsonl")


@pytest.mark.parametrize("name", ["report.json", "program.json"])
def test_a_link_that_leads_nowhere_is_no_missing_document(tmp_path, name):
    """A run without a report was killed; one whose report went away was not."""
    folder = RunFolder.create(tmp_path / "run")
    (folder.path / name).symlink_to("gone.json")
    with pytest.raises(RunFolderError, match=f"{name}.*a link that leads nowhere lies there"):
        read_run(folder.path)


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
    assert (record.program, record.unknown) == (None, {})
    folder.write_report({"steps": 1})
    folder.write_program({"flops": 7})
    for process in (0, 9):
        with open(folder.events_file(process), "ab") as file:
            file.write(b'{"kind":"zoom","step":1,"time_s":2.0}\n')
    record = read_run(folder.path)
    assert (record.report, record.program, record.unknown) == ({"steps": 1}, {"flops": 7}, {"zoom": 2})


def test_a_run_that_has_just_begun_has_no_events(tmp_path):
    """The folder is there before the first event."""
    record = read_run(RunFolder.create(tmp_path / "run").path)
    assert (record.run, record.events, record.report) == ({}, [], None)


def test_what_is_no_run_folder_is_an_error(tmp_path):
    """The fix tells what to name instead."""
    with pytest.raises(RunFolderError, match=r"holds no run\.json") as caught:
        read_run(tmp_path)
    assert "name the folder" in caught.value.fix


@pytest.mark.parametrize("name", ["run.json", "report.json", "program.json"])
def test_a_damaged_document_is_named(tmp_path, name):
    """Not taken for an empty one."""
    folder = RunFolder.create(tmp_path / "run")
    (folder.path / name).write_text('{"batch": 3')
    with pytest.raises(RunFolderError) as caught:
        read_run(folder.path)
    assert name in caught.value.what
    assert caught.value.fix == f"restore {name} from a copy, or leave this folder out"
