"""Event files that TensorBoard reads as it reads its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from paceline.telemetry.events import Event
from paceline.telemetry.exporters.exporter import make_exporter
from tests.telemetry.exporters.readers import read_tensorboard


def session(folder, first, losses, *, kept=None):
    """Steps behind ``first`` with these losses."""
    exporter = make_exporter("tensorboard", folder, kept=kept)
    exporter.begin({"task": "image"})
    exporter.event(Event("start", first, 100.0 + first, {}))
    for number, loss in enumerate(losses, first + 1):
        exporter.event(Event("step", number, 100.0 + number, {"train/loss": loss}))
    exporter.end({"last_step": first + len(losses), "stopped": None})
    exporter.close()
    return exporter


def test_steps_that_a_resumed_run_computes_again_count_once(tmp_path):
    """Killed after step 4, resumed at 2: the curve is 1, 2 of the first session and 3, 4 of the second."""
    first = session(tmp_path, 0, [1.0, 2.0, 3.0, 4.0])
    session(tmp_path, 2, [30.0, 40.0, 50.0], kept=first.kept)
    points = read_tensorboard(tmp_path)["train/loss"]
    assert [(step, value) for step, _, value in points] == [(1, 1), (2, 2), (3, 30), (4, 40), (5, 50)]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


def test_an_export_anew_replaces_the_old_one_and_leaves_other_files(tmp_path):
    """Nothing was kept: the event files are of a run that is exported from its beginning."""
    session(tmp_path, 0, [1.0, 2.0])
    (tmp_path / "tensorboard" / "events.out.tfevents.1.mine").write_bytes(b"")
    session(tmp_path, 0, [5.0])
    assert [(step, value) for step, _, value in read_tensorboard(tmp_path)["train/loss"]] == [(1, 5)]
    assert (tmp_path / "tensorboard" / "events.out.tfevents.1.mine").exists()


def test_what_float32_cannot_hold_becomes_infinite(tmp_path):
    """TensorBoard's scalars are float32; a loss of 1e300 must not end the export."""
    session(tmp_path, 0, [1e300, -1e39, 3.4028234e38, math.nan])
    values = [value for _, _, value in read_tensorboard(tmp_path)["train/loss"]]
    assert values[:2] == [math.inf, -math.inf]
    assert values[2] == pytest.approx(3.4028234e38, rel=1e-6)
    assert math.isnan(values[3])


def test_words_are_shown_as_text(tmp_path):
    """run.json and report.json as code, events under their kind."""
    exporter = make_exporter("tensorboard", tmp_path)
    exporter.begin({"task": "image"})
    exporter.event(Event("step", 3, 1.0, {"train/loss": 1.0}))
    exporter.event(Event("checkpoint", 3, 1.0, {}, "checkpoint of step 3 saved"))
    exporter.end({"last_step": 3, "stopped": "interrupted"})
    exporter.close()
    accumulator = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert sorted(accumulator.Tags()["tensors"]) == ["events/checkpoint", "report", "run"]
    (saved,) = accumulator.Tensors("events/checkpoint")
    assert (saved.step, saved.tensor_proto.string_val[0]) == (3, b"checkpoint of step 3 saved")
    (report,) = accumulator.Tensors("report")
    lines = report.tensor_proto.string_val[0].decode().splitlines()
    assert all(line.startswith("    ") for line in lines)
    assert json.loads("\n".join(lines)) == {"last_step": 3, "stopped": "interrupted"}


def test_neither_tensorflow_nor_torch_is_imported(tmp_path):
    """Even where they are installed: stand-ins that must not be imported come first on the path."""
    for name in ("tensorflow", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    code = """
import sys
from pathlib import Path
from paceline.telemetry.events import Event
from paceline.telemetry.exporters.exporter import make_exporter
exporter = make_exporter("tensorboard", Path(sys.argv[1]))
exporter.begin({})
exporter.event(Event("step", 1, 1.0, {"train/loss": 1.0}))
exporter.close()
assert not {"tensorflow", "torch", "jax"} & set(sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr + ran.stdout
