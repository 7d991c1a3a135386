"""Whatever an exporter does, the recorder has every event, training goes on and the run ends in time."""

from __future__ import annotations

import threading
import time
import warnings

import numpy as np
import pytest

from paceline.base.errors import OptionError
from paceline.telemetry.exporters.fanout import Fanout, Link, check_exporters, open_recorder
from paceline.telemetry.exporters.ledger import Entry, Ledger
from paceline.telemetry.exporters.place import file_mark
from paceline.telemetry.exporters.replay import export_run
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.reader import read_events
from paceline.telemetry.recorder import EventSink, NullRecorder, Recorder
from tests.telemetry.exporters.remembering import Remembering

RUN = {"task": "image"}


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run")


@pytest.fixture
def warned():
    return []


def fanout(folder, exporter, *, warned, recorder=None, first_bytes=0, **options):
    link = Link("wandb", folder, exporter=exporter, first_bytes=first_bytes)
    recorder = recorder or (NullRecorder() if folder is None else Recorder(folder))
    return Fanout(recorder, [link], run=RUN, warn=warned.append, **options)


def story(events):
    return [(event.kind, event.step, event.text) for event in events]


def test_an_exporter_is_told_what_the_recorder_is_told(folder, warned):
    """Every kind, in order, bracketed by start and end; numbers are plain; the report comes last."""
    exporter = Remembering()
    with fanout(folder, exporter, warned=warned) as sink:
        assert isinstance(sink, EventSink)
        sink.step(1, {"train/loss": np.float32(0.5), "train/rows": np.int64(32)})
        sink.skip(1, "update 1 left out")
        sink.evaluation(1, {"evaluate/loss": float("inf")})
        sink.audit(1, {"audit/differing_leaves": 1}, text="dense.kernel")
        sink.notice(1, "a file named caf\udce9")
        sink.checkpoint(1, "checkpoint of step 1 saved")
        sink.close("interrupted")
        sink.finish({"steps": 1})
    recorded = read_events(folder.events_file(0)).events
    assert story(exporter.events) == story(recorded)
    assert [event.values for event in exporter.events] == [event.values for event in recorded]
    assert {type(value) for event in exporter.events for value in event.values.values()} == {float, int}
    assert exporter.calls == ["begin", "event", "flush", "end", "close"]
    assert (exporter.run, exporter.report, warned) == (RUN, {"steps": 1}, [])


def test_whole_numbers_beyond_a_float_are_told_as_infinite_ones(folder, warned):
    """The record keeps all their digits."""
    exporter = Remembering()
    with fanout(folder, exporter, warned=warned) as sink:
        sink.step(1, {"tokens": 10**400, "rows": 2**40})
    assert exporter.events[1].values == {"tokens": float("inf"), "rows": 2**40}
    assert read_events(folder.events_file(0)).events[1].values["tokens"] == 10**400


def test_a_run_without_a_folder_is_exported_too(warned):
    exporter = Remembering()
    with fanout(None, exporter, warned=warned, first_step=4) as sink:
        sink.step(5, {"train/loss": 1.0})
    assert story(exporter.events) == [("start", 4, None), ("step", 5, None), ("end", 5, None)]
    assert exporter.report is None and sink.failure is None


def test_a_run_that_fails_before_its_first_step_begins_no_exporter(folder, warned):
    """The run folder is taken away again then; a file of an exporter in it would keep it there."""
    exporter = Remembering()
    with pytest.raises(RuntimeError, match="compile"), fanout(folder, exporter, warned=warned) as sink:
        sink.notice(0, "the run begins anew")
        raise RuntimeError("cannot compile")
    assert exporter.calls == ["close"]
    assert Ledger(folder.path).entry("wandb") is None


@pytest.mark.parametrize("call", ["begin", "event", "flush", "end", "close"])
def test_an_exporter_that_fails_is_given_up_and_told_once(folder, warned, call):
    """Training goes on, its own record is whole; the warning has the reason on one line and the way out."""
    exporter = Remembering(fails_at=call)
    with fanout(folder, exporter, warned=warned) as sink:
        sink.step(1, {"train/loss": 1.0})
        deadline = time.monotonic() + 10
        while call in ("begin", "event", "flush") and not warned and time.monotonic() < deadline:
            time.sleep(0.01)
        sink.step(2, {"train/loss": 1.0})
    assert [event.step for event in read_events(folder.events_file(0)).events] == [0, 1, 2, 2]
    (message,) = warned
    assert f"ConnectionError: no {call} today" in message
    assert f"paceline log {folder.path} --to wandb --again" in message
    assert exporter.closed.is_set()
    entry = Ledger(folder.path).entry("wandb")
    assert entry is None or not entry.whole or call == "close"


def test_a_record_that_lost_events_is_not_advised_to_replace_what_is_there(folder, warned):
    """The events file was removed: exporting the run anew would leave less than the exporter has."""
    recorder = Recorder(folder, warn=lambda message: None)
    with fanout(folder, Remembering(fails_at="end"), warned=warned, recorder=recorder) as sink:
        sink.step(1, {"train/loss": 1.0})
        folder.events_file(0).unlink()
    (message,) = warned
    assert sink.failure is not None
    assert "--again" not in message and "record lacks events too" in message and "complete" not in message


def test_warnings_go_where_the_run_says(folder):
    """Those of the recorder and those of the exporters; without a place they are Python's."""
    said = []
    with open_recorder(folder, warn=said.append) as recorder:
        folder.events_file(0).unlink()
    assert recorder.failure is not None
    assert len(said) == 1 and "events of this run are being lost" in said[0]


def test_one_exporter_that_fails_leaves_the_other_alone(folder, warned):
    """The other gets every event, and is whole."""
    broken, sound = Remembering(fails_at="event"), Remembering()
    links = [Link("wandb", folder, exporter=broken), Link("mlflow", folder, exporter=sound)]
    with Fanout(Recorder(folder), links, run=RUN, warn=warned.append) as sink:
        for number in range(1, 6):
            sink.step(number, {"train/loss": 1.0})
    assert [event.step for event in sound.events] == [0, 1, 2, 3, 4, 5, 5]
    assert len(warned) == 1
    assert Ledger(folder.path).entry("mlflow").whole


def test_a_slow_exporter_delays_no_step_and_drops_are_counted(folder, warned):
    """1,000 events while nothing is taken: 2 wait, the rest is dropped, said at the first and in the end."""
    gate = threading.Event()
    exporter = Remembering(gate=gate)
    sink = fanout(folder, exporter, warned=warned, capacity=2)
    sink.step(1, {})
    assert exporter.waits.wait(20)  # from here on the thread hangs in the first event
    start_s = time.monotonic()
    for number in range(2, 1002):
        sink.step(number, {"train/loss": 1.0})
    assert time.monotonic() - start_s < 5  # it would be 30 s for each event
    assert sink.dropped == 998
    assert len(warned) == 1 and "from step 4 on" in warned[0]
    gate.set()
    sink.finish()
    assert len(read_events(folder.events_file(0)).events) == 1 + 1001 + 1
    assert [event.step for event in exporter.events] == [0, 1, 2, 3, 1001]
    assert len(warned) == 2 and "998 events dropped" in warned[1]
    assert not Ledger(folder.path).entry("wandb").whole


def test_the_end_of_a_run_does_not_wait_for_an_exporter_that_hangs(folder, warned):
    """It waits as long as it is told to, and says what is missing."""
    gate = threading.Event()
    sink = fanout(folder, Remembering(gate=gate), warned=warned, patience_s=0.2)
    sink.step(1, {})
    start_s = time.monotonic()
    sink.finish({"steps": 1})
    assert time.monotonic() - start_s < 5
    assert "within 0.2 s" in warned[0]
    gate.set()
    sink._thread.join(10)


def test_warnings_as_errors_stop_neither_the_run_nor_the_thread(folder):
    """python -W error; the default warning is given from the exporters' thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        link = Link("wandb", folder, exporter=Remembering(fails_at="event"))
        sound = Link("mlflow", folder, exporter=Remembering())
        with Fanout(Recorder(folder), [link, sound], run=RUN) as sink:
            sink.step(1, {})
    assert len(sound.exporter.events) == 3


def test_the_ledger_says_what_a_run_has_exported_by_itself(folder, warned):
    """Not whole while it goes on; whole at its end, up to the last byte."""
    exporter = Remembering()
    ledger = Ledger(folder.path)
    with fanout(folder, exporter, warned=warned) as sink:
        sink.step(1, {})
        deadline = time.monotonic() + 10
        while ledger.entry("wandb") is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not ledger.entry("wandb").whole
    size_bytes = folder.events_file(0).stat().st_size
    entry = ledger.entry("wandb")
    assert entry == Entry("memory", {"events": 3}, {"0": size_bytes}, whole=True, marks=entry.marks)
    assert entry.mark(0) == file_mark(folder.events_file(0), size_bytes)
    assert export_run(folder, "wandb", exporter=Remembering()).events == 0


def test_a_resumed_run_is_not_whole_if_another_file_of_that_size_lies_there(folder, warned):
    """The part that was exported is of another run: only --again can make it right."""
    with fanout(folder, Remembering(), warned=warned) as sink:
        sink.step(1, {})
    content = folder.events_file(0).read_bytes()
    folder.events_file(0).write_bytes(content.replace(b'"step":1', b'"step":2'))
    with fanout(folder, Remembering(), warned=warned, first_bytes=len(content), first_step=1) as sink:
        sink.step(2, {})
    assert not Ledger(folder.path).entry("wandb").whole


@pytest.mark.parametrize("exported", [True, False])
def test_a_resumed_run_is_whole_only_if_its_first_part_was_exported(folder, warned, exported):
    """The first part without an exporter: those events are nowhere but in the folder."""
    if exported:
        with fanout(folder, Remembering(), warned=warned) as sink:
            sink.step(1, {})
    else:
        with Recorder(folder) as recorder:
            recorder.step(1, {})
    before_bytes = folder.events_file(0).stat().st_size
    with fanout(folder, Remembering(), warned=warned, first_bytes=before_bytes, first_step=1) as sink:
        sink.step(2, {})
    assert Ledger(folder.path).entry("wandb").whole is exported


def test_without_exporters_the_recorder_is_the_sink_itself(folder):
    """Nobody pays for what was not asked for; of several processes only process 0 exports."""
    with open_recorder(folder, log_to=()) as plain, open_recorder(folder, process=1, log_to=("wandb",)) as other:
        assert type(plain) is Recorder and type(other) is Recorder
    assert type(open_recorder(None)) is NullRecorder


def test_what_cannot_log_is_refused_before_anything_is_made(tmp_path):
    """A misspelled name, and TensorBoard without a run folder."""
    with pytest.raises(OptionError, match="tensorboard") as refused:
        check_exporters(["tensorbord"], tmp_path)
    assert "tensorboard, wandb, mlflow" in refused.value.fix
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    with pytest.raises(OptionError, match="run folder") as refused:
        check_exporters(["tensorboard"], None)
    assert "run=" in refused.value.fix
    assert list(tmp_path.iterdir()) == []
