"""`paceline log`: from the command line to TensorBoard's files."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from paceline.base.errors import OptionError
from paceline.cli import log
from tests.dashboard.made_runs import make_run


@pytest.fixture
def made(tmp_path):
    return make_run(tmp_path / "image-1", steps=20)


def test_a_run_is_exported_and_a_second_time_is_said_to_be_there(made, tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from tests.telemetry.exporters.readers import read_tensorboard

    assert log.run([str(made), "--to", "tensorboard", "--json", str(tmp_path / "log.json")]) == 0
    assert [step for step, _, _ in read_tensorboard(made)["train/loss"]] == list(range(1, 21))
    (exported,) = json.loads((tmp_path / "log.json").read_text())["exported"]
    assert exported["name"] == "tensorboard" and exported["events"] > 20 and exported["ended"]
    assert log.run([str(made), "--to", "tensorboard"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"TensorBoard: {exported['events']} events to {made / 'tensorboard'}",
        f"TensorBoard has this run already, nothing is new: {made / 'tensorboard'}",
    ]


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        ([], "without --to", "tensorboard, wandb, mlflow"),
        (["--to", "wandb,board"], "no exporter is called 'board'", "tensorboard, wandb, mlflow"),
        (["--to", "wandb", "--to", "mlflow", "--follow"], "--follow with 2 exporters", "--to wandb --follow"),
        (["--too", "wandb"], "unknown option --too", "--help"),
    ],
)
def test_mistakes_are_answered_with_a_way_out(made, arguments, what, fix):
    with pytest.raises(OptionError, match=what) as refused:
        log.run([str(made), *arguments])
    assert fix in refused.value.fix


def test_no_folder_and_two_folders_are_refused(made):
    for places in ([], [str(made), str(made)]):
        with pytest.raises(OptionError, match=f"given {len(places)} run folders"):
            log.run([*places, "--to", "wandb"])


def test_a_folder_behind_the_options_is_answered_with_the_order(made):
    """Not as an option that nobody knows."""
    with pytest.raises(OptionError, match="0 run folders before its options") as refused:
        log.run(["--to", "tensorboard", str(made)])
    assert refused.value.fix == "use paceline log RUN_FOLDER --to tensorboard"


def test_the_command_needs_no_jax():
    """A laptop may export what a cluster trained."""
    code = "import paceline.cli.log, sys; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
