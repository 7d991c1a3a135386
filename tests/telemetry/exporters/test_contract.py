"""What every exporter must do, tried on each: steps, times and values arrive, and a later session goes on."""

from __future__ import annotations

import importlib.util
import math
import time
import warnings

import numpy as np
import pytest

from paceline.telemetry.events import Event
from paceline.telemetry.exporters.exporter import EXPORTERS, Exporter, make_exporter, sendable
from tests.telemetry.exporters.readers import READERS

DONE = "test/done"  # the last value of a session
RUN = {"task": "image", "parallel": {"scheme": "per_device"}, "counts": {"steps": 3, "ratio": "nan"}, "other": [1, 2]}
REPORT = {"steps": 3, "last_step": 3, "stopped": None, "final": {"train/loss": "nan"}}


@pytest.fixture(params=list(EXPORTERS))
def name(request, tmp_path, monkeypatch):
    """Each exporter, with a store of its own in the test's folder and no way to a server."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"the package {request.param} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_X_DISABLE_STATS", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlflow"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return request.param


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "image-1"
    made.mkdir()
    return made


def export(name, folder, events, *, kept=None, report=REPORT, ends=True):
    exporter = make_exporter(name, folder, kept=kept, live=False)
    exporter.begin(RUN)
    for event in events:
        exporter.event(event)
    exporter.flush()
    exporter.event(Event("evaluation", events[-1].step, events[-1].time_s, {DONE: 1}))
    exporter.flush()
    if ends:
        exporter.end(report)
    exporter.close()
    return exporter


def read(name, folder, *, sessions=1):
    """What arrived, once each session's last value is there: wandb's own process writes it a moment after `close`."""
    deadline = time.monotonic() + 20
    while True:
        series = READERS[name](folder)
        if len(series.get(DONE, ())) == sessions or time.monotonic() > deadline:
            series.pop(DONE, None)
            return series
        time.sleep(0.02)


def step(number, loss, **values):
    return Event("step", number, 1000.0 + number / 4, {"train/loss": loss, **values})


def test_making_one_writes_nothing_and_closing_it_unused_is_no_error(name, folder):
    """So that a run can refuse an exporter before it makes anything."""
    exporter = make_exporter(name, folder)
    assert isinstance(exporter, Exporter)
    exporter.close()
    exporter.close()
    assert list(folder.iterdir()) == []


def test_steps_times_and_values_arrive_under_their_own_keys(name, folder):
    """NaN and infinity too; events with words but no numbers add no series. Values to float32, times to 1 ms."""
    exporter = export(
        name,
        folder,
        [
            Event("start", 0, 999.0, {}),
            step(1, 2.5, **{"input/wait_s": 0.001}),
            step(2, math.nan, **{"input/wait_s@1": 0.002}),
            Event("notice", 2, 1000.6, {}, "a file named caf\u00e9"),
            Event("evaluation", 2, 1000.625, {"evaluate/loss": math.inf}),
            step(3, 0.1),
            Event("end", 3, 1001.0, {}, "interrupted"),
        ],
    )
    assert exporter.where
    series = read(name, folder)
    refused = ":" if name == "mlflow" else "@"  # the one character of our keys that MLflow refuses
    assert sorted(series) == ["evaluate/loss", "input/wait_s", f"input/wait_s{refused}1", "train/loss"]
    steps, times_s, losses = zip(*series["train/loss"], strict=True)
    assert steps == (1, 2, 3)
    np.testing.assert_allclose(times_s, [1000.25, 1000.5, 1000.75], rtol=0, atol=1e-3)
    np.testing.assert_allclose(losses, [2.5, np.nan, 0.1], rtol=1e-7)
    assert series["evaluate/loss"][0][0] == 2 and series["evaluate/loss"][0][2] == math.inf
    assert series["input/wait_s"] == [(1, 1000.25, pytest.approx(0.001))]


def test_a_second_session_goes_on_where_the_first_ended(name, folder):
    """A resumed run: what the first kept is plain JSON and leads the second to the same place."""
    first = export(name, folder, [Event("start", 0, 999.0, {}), step(1, 3.0), step(2, 2.0)], ends=False)
    second = export(name, folder, [Event("start", 2, 1100.0, {}), step(3, 1.0)], kept=first.kept)
    series = read(name, folder, sessions=2)
    assert [(number, value) for number, _, value in series["train/loss"]] == [(1, 3), (2, 2), (3, 1)]
    assert set(second.kept) == set(first.kept)


def test_a_run_that_was_killed_ends_without_a_report(name, folder):
    """The values are there all the same."""
    export(name, folder, [Event("start", 0, 999.0, {}), step(1, 3.0)], report=None)
    assert [value for _, _, value in read(name, folder)["train/loss"]] == [3.0]


def test_numbers_that_no_program_takes_arrive_as_infinity(name, folder):
    """Whole numbers beyond a float, as `sendable` makes them; and the largest of 64 bits as it is (float32: 6e-8)."""
    event = Event("step", 1, 1000.0, {"train/tokens": 10**400, "train/rows": 2**63 - 1})
    export(name, folder, [sendable(event)])
    series = read(name, folder)
    assert series["train/tokens"][0][2] == math.inf
    assert series["train/rows"][0][2] == pytest.approx(2.0**63, rel=1e-7)


@pytest.mark.parametrize("name", ["mlflow"], indirect=True)
@pytest.mark.parametrize("store", ["folder", "sqlite"])
def test_times_that_mlflow_refuses_become_the_nearest_that_it_takes(name, folder, tmp_path, monkeypatch, store):
    """A clock that was wrong costs no value; it is told once."""
    if store == "sqlite":
        pytest.importorskip("sqlalchemy", reason="mlflow-skinny is installed without it")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    times_s = (-5.0, 1000.0, 1e17, 1e300, -1e300)
    events = [Event("step", number, time_s, {"train/loss": 1.0}) for number, time_s in enumerate(times_s, 1)]
    with pytest.warns(RuntimeWarning, match="MLflow takes no time of -5 s") as told:
        export(name, folder, events)
    assert len([one for one in told if "MLflow takes no time" in str(one.message)]) == 1
    series = sorted(read(name, folder)["train/loss"])
    assert [number for number, _, _ in series] == [1, 2, 3, 4, 5]
    assert [time_s for _, time_s, _ in series] == pytest.approx([0, 1000, 2**63 / 1000, 2**63 / 1000, 0])


@pytest.mark.parametrize("name", ["mlflow"], indirect=True)
def test_a_time_that_mlflow_refuses_does_not_end_the_export_where_warnings_are_errors(name, folder):
    """``python -W error``."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="MLflow takes no time")
        export(name, folder, [Event("step", 1, -5.0, {"train/loss": 1.0})])
    assert len(read(name, folder)["train/loss"]) == 1
