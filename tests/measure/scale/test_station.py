"""A process that measures on order, and how it fails."""

from __future__ import annotations

import dataclasses
import json
import os
import sys

import jax
import numpy as np
import pytest

from paceline.base.errors import BatchSizeError, NonFiniteError, ProcessError, TaskError, error_from
from paceline.insight.memory.largest import MemoryFitError
from paceline.measure.scale import station as stations
from paceline.measure.scale.station import HereStation, Network, ProcessStation, refuse, serve
from paceline.measure.scale.subject import Flow, Noise, Prepared, Sample
from tests.measure.scale.tasks import subject

OTHER_SIDE = """\
import json, os, sys
for line in sys.stdin:
    order = json.loads(line)
    answers = {{
        "prepare": {{"value": {{"compile_s": 1.5, "no_local": "why"}}}},
        "measure": {{"value": {{"step_s": 0.25, "wait_s": 0.0, "flow": []}}}},
        "noise": {{"value": {{"rows": 8.0, "why_unknown": "", "relative_error": 0.1, "steps": 100}}}},
        "network": {{"value": {{"curves": {{"a": 1}}, "lines": ["x"]}}}},
    }}
    {change}
    print(json.dumps(answers[order["do"]]), flush=True)
"""


@pytest.fixture
def other_side():
    """`other_side(change)`: a station whose process answers, with a line of its own that may end it first."""
    made = []

    def start(change="pass"):
        text = OTHER_SIDE.format(change=change).replace("[]", '{"latency_s": 1, "step_s": 2, "in_flight": 3}')
        made.append(ProcessStation([sys.executable, "-c", text], environment=os.environ, name="2 devices"))
        return made[-1]

    yield start
    for station in made:
        station.close()


def test_orders_are_answered_by_the_other_process(other_side):
    """Seconds, a sample with its flow, curves: as data classes again."""
    station = other_side()
    assert station.prepare(8) == Prepared(1.5, "why")
    assert station.noise(8) == Noise(8.0, "", 0.1, 100)
    assert station.measure(8, "feed", steps=2) == Sample(0.25, 0.0, Flow(1.0, 2.0, 3.0))
    assert station.network() == Network({"a": 1}, ("x",))


def test_an_error_of_the_user_arrives_as_it_was_raised(other_side):
    """Its class, its words."""
    error = {"kind": "BatchSizeError", "what": "w", "why": "y", "fix": "use --batch 8"}
    with pytest.raises(BatchSizeError) as raised:
        other_side(f"answers = {{'prepare': {{'error': {error!r}}}}}").prepare(8)
    assert raised.value.fix == "use --batch 8"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("os.kill(os.getpid(), 9)", "the process that measures 2 devices was killed by signal 9, in 'prepare'"),
        ("sys.exit(3)", "the process that measures 2 devices ended with exit code 3, in 'prepare'"),
        ("answers = {'prepare': {'crash': 'KeyError: 1'}}", "the process that measures 2 devices failed: KeyError: 1"),
    ],
)
def test_a_process_that_fails_is_named_with_how(other_side, change, told):
    """Killed, ended, or another exception; the fix names the memory, which is the usual reason for a signal 9."""
    with pytest.raises(ProcessError) as raised:
        other_side(change).prepare(8)
    assert told in raised.value.what
    assert "use a smaller --batch" in raised.value.fix


def test_closing_ends_the_process_however_often(other_side):
    """It no longer runs."""
    station = other_side()
    station.prepare(8)
    station.close()
    station.close()
    assert station._process.returncode is not None


class _Here:
    """A station that fails in two ways."""

    def prepare(self, batch):
        if batch == 3:
            raise BatchSizeError(what="w", why="y", fix="f")
        if batch == 4:
            raise ValueError("odd")
        return Prepared(2.0)

    def noise(self, batch):
        return Noise(None, "not asked")

    def measure(self, batch, stage, *, steps):
        return Sample(0.5)

    def trace(self, batch, folder, *, steps):
        return None

    def network(self):
        return Network({}, ())

    def close(self):
        return None


def test_each_order_gets_one_answer_and_a_failure_ends_nothing(capsys):
    """A value, an error with its words, an exception with its trace on standard error, a value again."""
    orders = [{"do": "prepare", "batch": rows} for rows in (2, 3, 4)]
    orders.append({"do": "measure", "batch": 2, "stage": "fit", "steps": 1})
    answers: list[str] = []
    serve(_Here(), orders=[json.dumps(order) + "\n" for order in orders], answer=answers.append)
    first, second, third, fourth = map(json.loads, answers)
    assert first == {"value": {"compile_s": 2.0, "no_local": ""}}
    assert second == {"error": {"kind": "BatchSizeError", "what": "w", "why": "y", "fix": "f"}}
    assert third == {"crash": "ValueError: odd"} and "ValueError: odd" in capsys.readouterr().err
    assert fourth["value"]["step_s"] == 0.5


class _Rows:
    """Data of a user whose fourth row is broken."""

    def __len__(self):
        return 64

    def __getitem__(self, row):
        if row >= 4:
            raise ValueError("row is broken")
        return {"x": np.ones(3, "float32"), "y": np.float32(1)}


def test_what_the_data_of_a_user_raise_arrives_with_its_line(capsys):
    """Through the orders and the answers of a process: a TaskError that names this file, and no trace."""
    made = dataclasses.replace(subject(), data=_Rows(), shuffle=False)
    answers: list[str] = []
    station = HereStation(lambda batch: made, jax.devices()[:1])
    serve(station, orders=[json.dumps({"do": "prepare", "batch": 8})], answer=answers.append)
    (error,) = (error_from(json.loads(line)["error"]) for line in answers)
    assert isinstance(error, TaskError) and capsys.readouterr().err == ""
    assert "ValueError: row is broken" in error.what
    assert "test_station.py:" in error.fix and "in __getitem__" in error.fix


@pytest.mark.parametrize(
    "text", ["RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\nmore", "INTERNAL: x"]
)
def test_a_device_without_memory_is_an_error_with_a_way_out(monkeypatch, text):
    """The first line of what the runtime said, and options that take less; other errors of the runtime pass."""

    def refuses(*arguments, **named):
        raise jax.errors.JaxRuntimeError(text)

    monkeypatch.setattr(stations, "Bench", refuses)
    with pytest.raises((MemoryFitError, jax.errors.JaxRuntimeError)) as raised:
        HereStation(lambda batch: subject(), jax.devices()[:2]).prepare(64)
    if text.startswith("INTERNAL"):
        assert raised.type is jax.errors.JaxRuntimeError
        return
    assert raised.type is MemoryFitError
    assert "a batch of 64 on 2 x cpu" in raised.value.what and "more" not in raised.value.what
    assert "--placement zero1" in raised.value.fix and "smaller --batch" in raised.value.fix


def test_a_training_that_diverges_costs_the_noise_scale_and_nothing_else(monkeypatch):
    """It is measured last: what was timed before stays."""

    class Diverges:
        no_local = ""

        def __init__(self, make_subject, devices, *, batch):
            return

        def noise(self):
            raise NonFiniteError(what="the loss is nan at step 7", why="y", fix="f")

    monkeypatch.setattr(stations, "Bench", Diverges)
    station = HereStation(lambda batch: subject(), jax.devices()[:2])
    station.prepare(8)
    noise = station.noise(8)
    assert noise.rows is None and "diverged: the loss is nan at step 7" in noise.why_unknown


def test_where_there_is_no_station_every_order_is_answered_with_why():
    """A task that this process could not load."""
    answers: list[str] = []
    refuse(TaskError(what="w", why="y", fix="look at f.py:3"), orders=["{}"], answer=answers.append)
    assert error_from(json.loads(answers[0])["error"]).fix == "look at f.py:3"
