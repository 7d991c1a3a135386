"""What a run leaves in its folder: run.json before the first step, an event a step, report.json at the end."""

from __future__ import annotations

import itertools
import json

import jax
import numpy as np
import optax
import pytest

from paceline.base.errors import RunFolderError, TaskError
from paceline.engine.parallel import Parallel
from paceline.tasks.task import task
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.reader import read_run
from paceline.train.trainer import Trainer
from tests.train.linear import SCHEMES, line, squared_error, trainer_of, zeros


@pytest.fixture(scope="module", params=SCHEMES)
def run(request, tmp_path_factory):
    """A run of 12 steps over 70 rows, evaluated every 5; returns (record, report)."""
    schedule = optax.linear_schedule(0.1, 0.0, 12)
    trainer = Trainer(
        task(squared_error, name="line"), optax.sgd(schedule), devices=4, schedule=schedule,
        parallel=Parallel(request.param, nonfinite="skip"),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("runs") / "run"
    _, report = trainer.fit(
        trainer.init(zeros()), line(70), batch=16, epochs=3, seed=4, evaluation=line(11), evaluate_every=5,
        run=path, config={"target": "line", "options": {"batch": 16}},
    )  # fmt: skip
    return read_run(path), report


def test_run_json_says_what_runs(run):
    """Config, versions, devices, scheme, counts: 2 parameters, 16 = 4 x 4 rows, 3 epochs of 4 steps, 6 rows dropped."""
    document, report = run[0].run, run[1]
    assert document["task"] == "line"
    assert document["config"] == {"target": "line", "options": {"batch": 16}}
    assert document["versions"]["jax"] == jax.__version__
    assert {"python", "numpy", "optax"} <= document["versions"].keys()
    assert document["devices"] == {"count": 4, "platform": "cpu", "kind": "cpu", "processes": 1, "machines": []}
    assert document["parallel"]["scheme"] == report.scheme
    assert document["parallel"]["nonfinite"] == "skip"
    assert document["data"]["seed"] == 4 and document["data"]["batch"] == 16
    assert document["counts"] == {
        "parameters": 2,
        "parameter_leaves": 2,
        "global_batch": 16,
        "per_device_batch": 4,
        "started_at": 0,
        "resumed_at": None,
        "first_step": 0,
        "steps": 12,
        "steps_per_epoch": 4,
        "rows": 70,
        "dropped_per_epoch": 6,
    }


def test_every_step_is_an_event_with_its_numbers(run):
    """Step, time, loss, learning rate, gradient norm, speed, input wait, skips: 12 events in order. Steps 1, 6 and 11
    follow no other and have no speed; `test_vitals` asks which must have one."""
    events = run[0].events_by_process[0]
    steps = [event for event in events if event.kind == "step"]
    assert [event.step for event in steps] == list(range(1, 13))
    assert all(a.time_s <= b.time_s for a, b in itertools.pairwise(steps))
    wanted = {"train/loss", "train/learning_rate", "train/gradient_norm", "train/skipped_updates", "train/rows"}
    wanted |= {"input/wait_s", "input/queued_batches"}
    assert all(wanted <= event.values.keys() for event in steps)
    rates = [event.values["train/learning_rate"] for event in steps]
    assert rates == pytest.approx([0.1 * (12 - done) / 12 for done in range(12)], rel=1e-5)
    timed = [event for event in steps if "speed/step_s" in event.values]
    assert not {1, 6, 11} & {event.step for event in timed}
    for event in timed:
        assert event.values["speed/samples_per_s"] == pytest.approx(16 / event.values["speed/step_s"])


def test_every_evaluation_is_an_event(run):
    """After steps 5, 10 and 12, each over 11 rows; the last is the report's."""
    record, report = run
    evaluations = [event for event in record.events_by_process[0] if event.kind == "evaluation"]
    assert [event.step for event in evaluations] == [5, 10, 12]
    assert all(event.values["evaluate/rows"] == 11 for event in evaluations)
    assert evaluations[-1].values == report.evaluation


@pytest.mark.parametrize("scheme", SCHEMES)
def test_run_json_tells_the_shapes_of_the_global_batch(scheme, tmp_path):
    """16 rows over 4 devices, whatever the scheme keeps in front; the types are those on the devices."""
    trainer = trainer_of(lambda params, batch: squared_error(params, batch) + 0 * batch["image"].sum(axis=(1, 2)),
                         scheme=scheme)  # fmt: skip
    data = line() | {"image": np.zeros((64, 3, 2), np.int16)}
    trainer.fit(trainer.init(zeros()), data, batch=16, steps=1, run=tmp_path / "run")
    assert read_run(tmp_path / "run").run["batch"] == [
        {"name": "image", "shape": [16, 3, 2], "dtype": "int16"},
        {"name": "x", "shape": [16], "dtype": "float32"},
        {"name": "y", "shape": [16], "dtype": "float32"},
    ]


def test_a_batch_that_is_one_array_has_no_name(tmp_path):
    """Rows of an array, not of a dict: one entry whose name is empty."""
    trainer = trainer_of(lambda params, rows: (rows[:, 0] * params["w"] + params["b"] - rows[:, 1]) ** 2)
    trainer.fit(trainer.init(zeros()), np.zeros((64, 2), np.float32), batch=16, steps=1, run=tmp_path / "run")
    assert read_run(tmp_path / "run").run["batch"] == [{"name": "", "shape": [16, 2], "dtype": "float32"}]


def test_the_events_are_bracketed(run):
    """start at step 0, end at step 12 without a text: it ended as planned."""
    events = run[0].events_by_process[0]
    assert (events[0].kind, events[0].step) == ("start", 0)
    assert (events[-1].kind, events[-1].step, events[-1].text) == ("end", 12, None)
    assert run[0].skipped == 0


def test_report_json_is_the_report(run):
    """Key by key, and it names its folder."""
    record, report = run
    assert record.report == json.loads(json.dumps(report.as_dict()))
    assert report.run_folder == str(record.folder.path)
    assert (report.rows_seen, report.rows_dropped) == (192, 18)
    assert f"run folder  {report.run_folder}" in report.lines()


def test_a_resumed_run_says_where_it_began(tmp_path):
    """3 steps, then 2 more in another folder: first_step 3 and steps 4, 5."""
    trainer = trainer_of()
    state, _ = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=3, run=tmp_path / "a")
    trainer.fit(state, line(), batch=16, steps=2, run=tmp_path / "b")
    record = read_run(tmp_path / "b")
    assert record.run["counts"]["first_step"] == 3
    events = record.events_by_process[0]
    steps = [(event.kind, event.step) for event in events if event.kind != "audit"]
    assert steps == [("start", 3), ("step", 4), ("step", 5), ("end", 5)]


def test_an_empty_folder_is_taken(tmp_path):
    """One that somebody made beforehand."""
    trainer = trainer_of()
    trainer.fit(trainer.init(zeros()), line(), batch=16, steps=1, run=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "events-0.jsonl",
        "program.json",
        "report.json",
        "run.json",
    ]


def test_a_folder_in_a_file_is_refused(tmp_path):
    """The path leads through a file, which is named."""
    (tmp_path / "file").write_text("mine")
    trainer = trainer_of()
    with pytest.raises(RunFolderError, match="file' is not a folder"):
        trainer.fit(trainer.init(zeros()), line(), batch=16, steps=1, run=tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_loss_that_cannot_be_traced_leaves_no_folder(tmp_path):
    """No step was made: the path is free for the next try."""
    trainer = trainer_of(lambda params, batch: params["w"] * batch["z"])
    with pytest.raises(TaskError):
        trainer.fit(trainer.init(zeros()), line(), batch=16, steps=1, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_report_that_cannot_be_written_costs_no_state(tmp_path, monkeypatch):
    """A full disk at the end: the state and the report come back, with a notice."""

    def full(folder, content):
        raise RunFolderError(what="cannot write 'report.json': the disk is full", why="", fix="")

    monkeypatch.setattr(RunFolder, "write_report", full)
    trainer = trainer_of()
    state, report = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=2, run=tmp_path / "run")
    assert int(state.step) == 2
    assert report.notices == ("cannot write 'report.json': the disk is full",)


@pytest.mark.parametrize("shown", [True, False])
def test_lost_events_are_said_among_the_messages_of_a_run_that_shows_its_progress(tmp_path, capsys, recwarn, shown):
    """Its events file is taken away behind the last step: the end says so, in words; without progress Python warns."""
    trainer, path = trainer_of(), tmp_path / "run"

    def remove(step, values):
        if step == 4:
            (path / "events-0.jsonl").unlink()

    trainer.fit(
        trainer.init(zeros()), line(64), batch=16, epochs=1, run=path, callbacks=[remove],
        progress="plain" if shown else "none",
    )  # fmt: skip
    lost = "events of this run are being lost"
    warned = [str(one.message) for one in recwarn if one.category is RuntimeWarning]
    assert (lost in capsys.readouterr().err, any(lost in text for text in warned)) == (shown, not shown)
