"""A run that is on the disk is exported once, whole, and as it was the last time."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import time

import pytest

from paceline.base.errors import RunFolderError
from paceline.telemetry.exporters.exporter import ExportError
from paceline.telemetry.exporters.ledger import EXPORTS_FILE, Entry, Ledger
from paceline.telemetry.exporters.replay import export_run
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.recorder import Recorder
from tests.telemetry.exporters.remembering import Remembering


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path / "run")
    made.write_run({"task": "image"})
    return made


def record(folder, steps, *, process=0, first=0, values=None, ends=True):
    recorder = Recorder(folder, process, first_step=first)
    for number in steps:
        recorder.step(number, {"train/loss": float(number), **(values or {})})
    if ends:
        recorder.close()


def steps(exporter):
    return [event.step for event in exporter.events if event.kind == "step"]


def test_a_finished_run_is_exported_with_its_report(folder):
    """Events in order, run.json first, report.json last."""
    record(folder, [1, 2])
    folder.write_report({"steps": 2})
    exporter = Remembering()
    done = export_run(folder, "wandb", exporter=exporter)
    assert [event.kind for event in exporter.events] == ["start", "step", "step", "end"]
    assert (exporter.run, exporter.report) == ({"task": "image"}, {"steps": 2})
    assert exporter.calls == ["begin", "event", "flush", "end", "close"]
    assert (done.events, done.where, done.ended) == (4, "memory", True)
    assert done.line() == "Weights & Biases: 4 events to memory"


def test_a_second_export_hands_over_nothing_and_says_so(folder):
    record(folder, [1, 2])
    export_run(folder, "wandb", exporter=Remembering())
    exporter = Remembering()
    done = export_run(folder, "wandb", exporter=exporter)
    assert exporter.calls == ["close"]
    assert done.line() == "Weights & Biases has this run already, nothing is new: memory"


def test_what_was_written_since_is_exported_alone(folder):
    """Also with a torn last line, which the next export gets whole."""
    record(folder, [1, 2], ends=False)
    torn = b'{"kind":"step","step":3,"time_s":3.0,'
    with open(folder.events_file(0), "ab") as file:
        file.write(torn)
    first = Remembering()
    assert not export_run(folder, "wandb", exporter=first).ended
    assert steps(first) == [1, 2] and "end" not in first.calls
    with open(folder.events_file(0), "ab") as file:
        file.write(b'"values":{"train/loss":"nan"}}\n')
    second = Remembering()
    export_run(folder, "wandb", exporter=second)
    assert steps(second) == [3]


def test_steps_computed_twice_are_exported_as_they_were_the_last_time(folder):
    """Killed after 4, resumed at 2: 3 and 4 of the first part are left out."""
    record(folder, [1, 2, 3, 4], ends=False)
    record(folder, [3, 4, 5], first=2)
    exporter = Remembering()
    export_run(folder, "wandb", exporter=exporter)
    kinds = [(event.kind, event.step) for event in exporter.events]
    assert kinds == [
        ("start", 0),
        ("step", 1),
        ("step", 2),
        ("start", 2),
        *(("step", n) for n in (3, 4, 5)),
        ("end", 5),
    ]


def test_further_processes_add_their_own_input_and_memory_numbers(folder):
    """Keys end in the process; losses, which all share, are exported once."""
    own = {"input/wait_s": 0.5, "memory/process_bytes": 7, "speed/step_s": 1.0}
    record(folder, [1], values=own)
    record(folder, [1], process=1, values=own)
    exporter = Remembering()
    export_run(folder, "wandb", exporter=exporter)
    values = [event.values for event in exporter.events if event.kind == "step"]
    assert values == [{"train/loss": 1.0, **own}, {"input/wait_s@1": 0.5, "memory/process_bytes@1": 7}]
    assert [event.kind for event in exporter.events].count("end") == 1


def test_a_run_is_followed_to_its_end_and_its_report(folder):
    """New events are handed over as they come; the report, written a moment later, is waited for."""
    record(folder, [1], ends=False)
    exporter = Remembering()
    looks = []

    def wait(_):
        looks.append(steps(exporter))
        if len(looks) == 1:
            record(folder, [2], first=1)
        elif len(looks) == 3:
            folder.write_report({"steps": 2})
        return len(looks) > 20

    done = export_run(folder, "wandb", follow=True, wait=wait, exporter=exporter)
    assert looks == [[1], [1, 2], [1, 2]]
    assert (done.ended, exporter.report) == (True, {"steps": 2})


def test_following_may_be_ended_and_gone_on_with(folder):
    """Ctrl-C: what was handed over is not handed over again."""
    record(folder, [1], ends=False)
    assert export_run(folder, "wandb", follow=True, wait=lambda _: True, exporter=Remembering()).events == 2
    record(folder, [2], first=1)
    exporter = Remembering()
    export_run(folder, "wandb", exporter=exporter)
    assert steps(exporter) == [2]


def test_a_run_that_logs_by_itself_is_left_alone_unless_asked_for_again(folder):
    """Nobody knows how far a killed one came; --again exports all of it anew."""
    record(folder, [1, 2])
    Ledger(folder.path).put("wandb", Entry("there", {"id": "x"}, {}, whole=False))
    with pytest.raises(
        ExportError, match=r"has a part of the run.*by itself.*or an earlier export was cut off"
    ) as refused:
        export_run(folder, "wandb", exporter=Remembering())
    assert "--again" in refused.value.fix
    exporter = Remembering()
    export_run(folder, "wandb", again=True, exporter=exporter)
    assert steps(exporter) == [1, 2]
    assert Ledger(folder.path).entry("wandb").whole


@pytest.mark.parametrize("call", ["begin", "event", "end"])
def test_what_the_program_refuses_is_the_users_to_mend(folder, call):
    """The error has its words; the exporter is closed."""
    record(folder, [1])
    exporter = Remembering(fails_at=call)
    with pytest.raises(ExportError, match=f"Weights & Biases refused: ConnectionError: no {call} today") as refused:
        export_run(folder, "wandb", exporter=exporter)
    assert refused.value.exit_code == 1
    assert exporter.closed.is_set()


def test_a_folder_that_takes_no_entry_is_told_before_anything_is_exported(folder, monkeypatch):
    """exports.json says afterwards what was exported; here the file system takes no file."""
    record(folder, [1])

    def refuse(path, content):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("paceline.telemetry.exporters.ledger.write_document", refuse)
    exporter = Remembering()
    with pytest.raises(ExportError, match=r"exports\.json.*Read-only file system") as refused:
        export_run(folder, "wandb", exporter=exporter)
    assert exporter.calls == ["close"]
    assert "a folder that you can write to" in refused.value.fix


def test_an_exporter_that_cannot_begin_has_nothing_and_needs_no_again(folder):
    record(folder, [1])
    with pytest.raises(ExportError) as refused:
        export_run(folder, "wandb", exporter=Remembering(fails_at="begin"))
    assert "no event" in refused.value.why and "--again" not in refused.value.fix
    assert export_run(folder, "wandb", exporter=Remembering()).events == 3


def follow_for(folder, looks, *, at=None):
    """Follows for so many looks, and calls `at[n]` before look n; what was said."""
    said, count = [], iter(range(looks))

    def wait(_):
        number = next(count, None)
        if number is not None and at and number in at:
            at[number]()
        return number is None

    done = export_run(folder, "wandb", follow=True, wait=wait, say=said.append, exporter=Remembering())
    return said, done


def test_a_followed_run_that_is_silent_is_told_once_and_waited_for(folder):
    """Since its last event; again after it went on, for that is another silence."""
    with Recorder(folder, clock=lambda: 1000.0) as recorder:
        recorder.step(1, {"train/loss": 1.0})
        later = {3: lambda: recorder.step(2, {"train/loss": 1.0})}
        said, done = follow_for(folder, 6, at=later)
    assert len(said) == 2 and not done.ended and done.events == 3
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1000))
    assert f"silent since {since}" in said[0] and "Ctrl-C" in said[0]


def test_a_run_with_long_steps_is_not_called_silent_between_them(folder):
    """Steps of 10 s: 20 of them are 200 s."""
    for quiet_s, told in ((150, 0), (250, 1)):
        with Recorder(folder, clock=lambda quiet_s=quiet_s: time.time() - quiet_s) as recorder:
            recorder.step(1, {"speed/step_s": 10.0})
            said, _ = follow_for(folder, 3)
        assert len(said) == told


def test_following_a_run_that_has_ended_and_is_there_ends_at_once(folder):
    """A second time nothing is new, and nothing will be."""
    record(folder, [1, 2])
    export_run(folder, "wandb", exporter=Remembering())
    looks = []
    done = export_run(folder, "wandb", follow=True, wait=lambda s: looks.append(s) or True, exporter=Remembering())
    assert (looks, done.ended, done.events) == ([], True, 0)


def replaced(folder, steps, *, process=0):
    """Another run in the place of this one."""
    folder.events_file(process).unlink()
    record(folder, steps, process=process)


@pytest.mark.parametrize("steps_then", [5, 3, 1])
@pytest.mark.parametrize("process", [0, 1])
def test_a_run_in_the_place_of_another_is_refused(folder, steps_then, process):
    """Longer, of nearly one size, or shorter: nothing of it is handed over, and --again is the way out."""
    for each in (0, 1):
        record(folder, [1, 2, 3], process=each, values={"input/wait_s": 0.5})
    export_run(folder, "wandb", exporter=Remembering())
    replaced(folder, range(1, 1 + steps_then), process=process)
    exporter = Remembering()
    with pytest.raises(ExportError, match=rf"events-{process}\.jsonl.*is not the one of which Weights") as refused:
        export_run(folder, "wandb", exporter=exporter)
    assert exporter.calls == ["close"]
    assert f"paceline log {folder.path} --to wandb --again" in refused.value.fix
    assert export_run(folder, "wandb", again=True, exporter=Remembering()).events > 0
    assert export_run(folder, "wandb", exporter=Remembering()).events == 0


def test_a_run_that_is_replaced_while_it_is_followed_is_refused(folder):
    record(folder, [1, 2], ends=False)
    with pytest.raises(ExportError, match="is not the one of which"):
        follow_for(folder, 3, at={1: lambda: replaced(folder, range(1, 9))})


def test_a_run_that_is_taken_away_while_it_is_followed_is_an_error_in_words(folder):
    record(folder, [1, 2], ends=False)
    with pytest.raises(RunFolderError, match="cannot look into run folder"):
        follow_for(folder, 3, at={1: lambda: shutil.rmtree(folder.path)})


def test_a_folder_that_was_copied_is_still_the_same_run(folder, tmp_path):
    """Other inodes and times; the bytes decide."""
    record(folder, [1, 2], ends=False)
    export_run(folder, "wandb", exporter=Remembering())
    copy = RunFolder.open(shutil.copytree(folder.path, tmp_path / "copy"))
    record(copy, [3], first=2)
    exporter = Remembering()
    export_run(copy, "wandb", exporter=exporter)
    assert steps(exporter) == [3]


@pytest.mark.parametrize("later", ["longer", "shorter"])
def test_ledgers_without_marks_are_read(folder, later):
    """Older versions wrote none: a longer file is gone on with, a shorter one is refused."""
    record(folder, [1, 2], ends=False)
    size_bytes = folder.events_file(0).stat().st_size
    entry = {"where": "there", "kept": {}, "offsets": {"0": size_bytes}, "whole": True}
    (folder.path / EXPORTS_FILE).write_text(json.dumps({"wandb": entry}))
    if later == "longer":
        record(folder, [3], first=2)
        exporter = Remembering()
        export_run(folder, "wandb", exporter=exporter)
        assert steps(exporter) == [3] and Ledger(folder.path).entry("wandb").mark(0) is not None
    else:
        replaced(folder, [1])
        with pytest.raises(ExportError, match="is not the one") as refused:
            export_run(folder, "wandb", exporter=Remembering())
        assert "--again" in refused.value.fix


def test_whole_numbers_beyond_a_float_are_exported_as_infinite_ones(folder):
    """On a line they have no limit; programs take floats. Followed too, where the seconds of a step are one."""
    record(folder, [1], values={"a": 10**400, "b": -(10**400), "c": 2**64, "d": 7, "speed/step_s": 10**400}, ends=False)
    exporter = Remembering()
    export_run(folder, "wandb", follow=True, wait=lambda _: True, exporter=exporter)
    (values,) = [event.values for event in exporter.events if event.kind == "step"]
    assert (values["a"], values["b"], values["c"], values["d"]) == (math.inf, -math.inf, 2.0**64, 7)
    assert (type(values["c"]), type(values["d"])) == (float, int)


@pytest.mark.parametrize("time_s", [-1e300, -1e17])
def test_a_silence_since_no_possible_time_is_told_all_the_same(folder, time_s):
    with Recorder(folder, clock=lambda: time_s) as recorder:
        recorder.step(1, {"train/loss": 1.0})
        said, _ = follow_for(folder, 2)
    assert len(said) == 1 and f"silent since {time_s:g} s" in said[0]


@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "a named pipe"), (os.mkdir, "a folder")])
def test_what_lies_in_place_of_a_document_is_told_and_not_waited_for(folder, make, what):
    """The report: the run is exported without. The ledger: nothing is, for nobody knows what was exported."""
    record(folder, [1, 2])
    make(folder.report_file)
    folder.run_file.write_text("{")
    said, exporter = [], Remembering()
    export_run(folder, "wandb", exporter=exporter, say=said.append)
    assert steps(exporter) == [1, 2] and (exporter.run, exporter.report) == ({}, None)
    assert said[0].startswith("run.json cannot be read: Expecting") and len(said) == 2
    assert said[1].startswith(f"report.json cannot be read: {what} lies there, not a file")
    (folder.path / EXPORTS_FILE).unlink()
    make(folder.path / EXPORTS_FILE)
    with pytest.raises(ExportError, match=f"{what} lies there"):
        export_run(folder, "wandb", exporter=Remembering())


def test_a_damaged_ledger_is_told_with_its_way_out(folder):
    (folder.path / EXPORTS_FILE).write_text('{"wandb": {"where": 3}}')
    with pytest.raises(ExportError, match=r"exports\.json") as refused:
        export_run(folder, "wandb", exporter=Remembering())
    assert "remove it" in refused.value.fix


def test_entries_of_several_exporters_stand_side_by_side(folder):
    """One does not take the other's away."""
    ledger = Ledger(folder.path)
    ledger.put("wandb", Entry("a", {}, {"0": 5}, whole=True))
    ledger.put("mlflow", Entry("b", {}, {}, whole=False))
    assert ledger.entry("wandb") == Entry("a", {}, {"0": 5}, whole=True)
    assert (ledger.entry("wandb").offset(0), ledger.entry("wandb").offset(1)) == (5, 0)


def test_damaged_lines_that_were_left_out_are_told(folder):
    """And a run without events is not said to be exported."""
    exporter = Remembering()
    assert export_run(folder, "wandb", exporter=exporter).line() == "Weights & Biases: the run has no events yet"
    record(folder, [1, 2])
    with open(folder.path / "events-0.jsonl", "ab") as file:
        file.write(b'\x00\x00\n{"kind": "step", "st\n')
    line = export_run(folder, "wandb", exporter=exporter).line()
    assert line == "Weights & Biases: 4 events to memory; 2 damaged or unknown lines were left out"
