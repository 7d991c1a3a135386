"""Runs that log to other programs while they train."""

from __future__ import annotations

import json
import sys

import pytest

from paceline.base.errors import OptionError, TaskError
from paceline.telemetry.exporters.ledger import Ledger
from paceline.telemetry.reader import read_run
from paceline.train.checkpoints import Checkpoints
from tests.telemetry.exporters.readers import read_tensorboard
from tests.train.linear import line, trainer_of, zeros


def losses(folder):
    events = [event for event in read_run(folder).events if event.kind == "step"]
    return {event.step: event.values["train/loss"] for event in events}


def test_tensorboard_has_the_losses_of_the_run(tmp_path):
    """Each step once, as recorded to float32; run.json and the ledger know of it."""
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    trainer, folder = trainer_of(), tmp_path / "run"
    trainer.fit(trainer.init(zeros()), line(), batch=16, steps=4, run=folder, log_to="tensorboard")
    points = read_tensorboard(folder)["train/loss"]
    assert {step: value for step, _, value in points} == pytest.approx(losses(folder), rel=1e-6)
    assert [step for step, _, _ in points] == [1, 2, 3, 4]
    assert Ledger(folder).entry("tensorboard").whole


def test_a_resumed_run_goes_on_in_the_same_place(tmp_path):
    """Four steps, then two more: one curve of six."""
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    folder = tmp_path / "run"
    for steps, resume in ((4, False), (6, True)):
        trainer = trainer_of()
        trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=steps, run=folder, resume=resume,
            checkpoints=Checkpoints(), log_to=["tensorboard"],
        )  # fmt: skip
    assert [step for step, _, _ in read_tensorboard(folder)["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert Ledger(folder).entry("tensorboard").whole


def test_a_missing_package_is_told_before_a_folder_is_made(tmp_path, monkeypatch):
    """With the command that installs it; an unknown name too."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    trainer = trainer_of()
    with pytest.raises(OptionError, match="the package wandb is not installed") as refused:
        trainer.fit(trainer.init(zeros()), line(), batch=16, steps=4, run=tmp_path / "run", log_to=("wandb",))
    assert refused.value.fix == "pip install 'paceline[wandb]'"
    with pytest.raises(OptionError, match="no exporter is called 'board'"):
        trainer.fit(trainer.init(zeros()), line(), batch=16, steps=4, run=tmp_path / "run", log_to="board")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_be_compiled_leaves_no_folder_and_no_event_files(tmp_path):
    """The next try may use the same path."""
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")

    def broken(params, batch):
        raise ValueError("a mistake in the loss")

    trainer = trainer_of(broken)
    with pytest.raises(TaskError, match="a mistake in the loss"):
        trainer.fit(trainer.init(zeros()), line(), batch=16, steps=4, run=tmp_path / "run", log_to="tensorboard")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_says_so_there(tmp_path):
    """A callback raises at step 2: TensorBoard has the report with the reason."""
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def fail(step, values):
        if step == 2:
            raise RuntimeError("stop here")

    trainer = trainer_of()
    with pytest.raises(RuntimeError, match="stop here"):
        trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=4, run=tmp_path / "run", callbacks=[fail],
            log_to="tensorboard",
        )  # fmt: skip
    (report,) = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload().Tensors("report")
    assert json.loads(report.tensor_proto.string_val[0])["stopped"] == "RuntimeError: stop here"
