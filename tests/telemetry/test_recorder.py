"""Recording goes on whatever the disk does, and says so once."""

from __future__ import annotations

import errno
import os
import shutil
import time

import numpy as np
import pytest

from paceline.base.errors import RunFolderError
from paceline.telemetry.events import Where
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.reader import read_events
from paceline.telemetry.recorder import EventSink, NullRecorder, Recorder


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run")


@pytest.fixture
def warned():
    return []


def kinds(recorder):
    return [(event.kind, event.step) for event in read_events(recorder.path).events]


class Disk:
    """Stands in for `os.write`: takes ``room`` bytes, then is full until it is given more."""

    def __init__(self, room):
        self.room = room
        self.calls = 0
        self.write = os.write

    def __call__(self, descriptor, data):
        self.calls += 1
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.write(descriptor, data[: self.room])
        self.room -= written
        return written


def test_what_is_recorded_is_read_back_in_order(folder):
    """Kinds, steps, values, texts and times; start and end are added."""
    times = iter([100.0, 100.0, 101.0, 102.0, 103.0, 104.0])
    with Recorder(folder, first_step=4, clock=lambda: next(times)) as recorder:
        recorder.step(5, {"train/loss": 0.5, "train/rows": np.int64(32)})
        recorder.evaluation(5, {"evaluate/loss": float("nan")})
        recorder.notice(5, "checkpoint saved\nat step 5")
    events = read_events(folder.events_file(0)).events
    assert [event.kind for event in events] == ["start", "step", "evaluation", "notice", "end"]
    assert [event.step for event in events] == [4, 5, 5, 5, 5]
    assert [event.time_s for event in events] == [100.0, 101.0, 102.0, 103.0, 104.0]
    assert events[1].values == {"train/loss": 0.5, "train/rows": 32}
    assert str(events[2].values["evaluate/loss"]) == "nan"
    assert events[3].text == "checkpoint saved\nat step 5"
    assert recorder.failure is None


def test_checkpoints_skips_and_places_are_kinds_and_fields_of_their_own(folder):
    """So that a page can mark them without reading words."""
    where = Where("params.w", devices=(2,), processes=(0,), replicas=4, odd=True)
    with Recorder(folder, first_step=10) as recorder:
        recorder.skip(11, "update left out")
        recorder.audit(11, {"audit/differing_leaves": 1}, text="w differs", where=[where])
        recorder.checkpoint(10, "checkpoint of step 10 saved")
    events = read_events(folder.events_file(0)).events[1:]
    assert [(event.kind, event.step, event.text, event.where) for event in events] == [
        ("skip", 11, "update left out", ()),
        ("audit", 11, "w differs", (where,)),
        ("checkpoint", 10, "checkpoint of step 10 saved", ()),
        ("end", 11, None, ()),  # a checkpoint that was told late takes no step back
    ]


def test_each_process_has_its_own_file(folder):
    """Process 1 opens the folder that process 0 made."""
    with Recorder(folder), Recorder(RunFolder.open(folder.path), 1) as second:
        second.step(1, {})
    assert sorted(os.listdir(folder.path)) == ["events-0.jsonl", "events-1.jsonl", "run.json"]
    assert kinds(second) == [("start", 0), ("step", 1), ("end", 1)]


def test_an_event_is_one_system_call(folder, monkeypatch):
    """So that a kill tears one line at most, and a reader sees whole lines."""
    disk = Disk(10**9)
    recorder = Recorder(folder)
    monkeypatch.setattr(os, "write", disk)
    recorder.step(1, {"train/loss": 1.0})
    assert disk.calls == 1


def test_every_event_is_on_the_disk_when_its_call_returns(folder):
    """Nothing waits in a buffer that SIGKILL would take along."""
    recorder = Recorder(folder)
    for step in range(1, 4):
        recorder.step(step, {})
        assert kinds(recorder)[-1] == ("step", step)


@pytest.mark.clock(reason="the cost of an event")
def test_recording_a_step_is_cheap(folder):
    """Far from a millisecond: under 400 microseconds here, where annotations are checked too; about 4 without."""
    values = {"train/loss": 0.123, "train/rows": 480, "speed/step_s": 0.015, "input/wait_s": 1e-5}
    with Recorder(folder) as recorder:
        rounds = []
        for _ in range(5):
            begin = time.perf_counter()
            for step in range(500):
                recorder.step(step, values)
            rounds.append((time.perf_counter() - begin) / 500)
    assert min(rounds) < 400e-6


@pytest.mark.parametrize("room", range(0, 90, 7))
def test_a_full_disk_loses_lines_but_neither_the_loop_nor_later_lines(folder, warned, monkeypatch, room):
    """Full after any number of bytes, then freed: one warning, one torn line at most, the rest is read."""
    recorder = Recorder(folder, warn=warned.append)
    disk = Disk(room)
    monkeypatch.setattr(os, "write", disk)
    for step in range(1, 5):
        recorder.step(step, {"train/loss": 1.0})
    disk.room = 10**9
    recorder.step(5, {"train/loss": 2.0})
    recorder.close()
    assert recorder.failure is not None
    assert recorder.failure.errno == errno.ENOSPC
    assert len(warned) == 1
    assert "from step 1 on" in warned[0] or "from step 2 on" in warned[0]
    assert "No space left on device" in warned[0]
    page = read_events(recorder.path)
    assert [event.step for event in page.events if event.kind == "step"][-1] == 5
    assert page.events[-1].kind == "end"
    assert page.skipped <= 1


def test_a_run_folder_that_vanishes_is_noticed(folder, warned):
    """A removed file takes writes without complaint: the recorder looks once a second."""
    now = [0.0]
    recorder = Recorder(folder, warn=warned.append, clock=lambda: now[0])
    shutil.rmtree(folder.path)
    for now[0] in (0.5, 1.5, 2.5, 9.0):
        recorder.step(int(now[0]), {})
    recorder.close()
    assert isinstance(recorder.failure, FileNotFoundError)
    assert len(warned) == 1
    assert "was removed while the run went on" in warned[0]
    assert not folder.path.exists()


def test_a_folder_that_vanishes_in_a_short_run_is_noticed_at_the_end(folder, warned):
    """Closing looks once more."""
    recorder = Recorder(folder, warn=warned.append, clock=lambda: 0.0)
    shutil.rmtree(folder.path)
    recorder.close()
    assert len(warned) == 1


def test_a_folder_that_is_moved_takes_its_events_along(folder, tmp_path):
    """Moving is not losing: the open file follows."""
    recorder = Recorder(folder)
    os.rename(folder.path, tmp_path / "moved")
    recorder.step(1, {})
    recorder.close()
    assert recorder.failure is None
    assert len(read_events(tmp_path / "moved" / "events-0.jsonl").events) == 3


def test_the_default_warning_is_pythons_own(folder, monkeypatch):
    """Once, whatever follows."""
    recorder = Recorder(folder)
    monkeypatch.setattr(os, "write", Disk(0))
    with pytest.warns(RuntimeWarning, match="Training goes on") as caught:
        recorder.step(1, {})
        recorder.step(2, {})
        recorder.close()
    assert len(caught) == 1


def test_recording_after_close_is_a_failure_and_no_crash(folder, warned):
    """The descriptor's number may belong to another file by then: nothing is written."""
    recorder = Recorder(folder, warn=warned.append)
    recorder.close()
    recorder.close()
    recorder.step(1, {})
    assert kinds(recorder) == [("start", 0), ("end", 0)]
    assert recorder.failure is not None
    assert recorder.failure.errno == errno.EBADF


def test_a_resumed_run_appends_and_a_torn_line_spoils_no_other(folder):
    """The kill tore the last line; the next recorder ends it first."""
    Recorder(folder).step(1, {"train/loss": 1.0})
    path = folder.events_file(0)
    path.write_bytes(path.read_bytes()[:-9])
    with Recorder(folder, first_step=0) as recorder:
        recorder.step(1, {"train/loss": 1.0})
    assert kinds(recorder) == [("start", 0), ("start", 0), ("step", 1), ("end", 1)]
    assert read_events(path).skipped == 1


def test_an_exception_is_told_in_the_end_event_and_goes_on(folder):
    """Its kind and its words."""
    with pytest.raises(ValueError), Recorder(folder) as recorder:
        raise ValueError("the loss exploded")
    assert read_events(recorder.path).events[-1].text == "ValueError: the loss exploded"
    with pytest.raises(KeyboardInterrupt), Recorder(folder) as recorder:
        raise KeyboardInterrupt
    assert read_events(recorder.path).events[-1].text == "KeyboardInterrupt"


def test_a_recorder_needs_a_folder_that_is_there(tmp_path):
    """At the start an error is still in time."""
    with pytest.raises(RunFolderError) as caught:
        Recorder(RunFolder(tmp_path / "nowhere"))
    assert "RunFolder.create" in caught.value.fix


@pytest.mark.parametrize("kind", [Recorder, NullRecorder])
def test_both_recorders_keep_one_contract(folder, kind):
    """The loop does not ask whether the run has a folder."""
    sink: EventSink = NullRecorder() if kind is NullRecorder else Recorder(folder)
    assert isinstance(sink, EventSink)
    with sink as entered:
        assert entered is sink
        sink.step(1, {"train/loss": 0.5})
        sink.evaluation(1, {"evaluate/loss": 0.5})
        sink.audit(1, {}, text="w differs", where=())
        sink.notice(1, "hello")
        sink.checkpoint(1, "saved")
        sink.skip(1, "left out")
    sink.close("again")
    assert sink.failure is None
