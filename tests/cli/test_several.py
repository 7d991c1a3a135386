"""`--processes P`, who prints an error, and the folder that attempts of one launch share."""

from __future__ import annotations

import sys

import pytest

from paceline.base import launched
from paceline.base.errors import OptionError
from paceline.cli import launch, several
from paceline.cli.main import main


@pytest.fixture
def started(monkeypatch):
    """The arguments with which the supervisor was started, in place of starting it."""
    found: list[list[str]] = []
    monkeypatch.setattr(launch, "run", lambda arguments: found.append(arguments) or 7)
    return found


def divided(arguments: list[str]) -> tuple[list[str], list[str]]:
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def test_processes_starts_the_same_command_under_a_supervisor(started):
    """P processes, 8 simulated devices shared out; the exit code is that of the supervisor."""
    command = ["train", "linear", "--processes", "2", "--simulate", "8", "--max-restarts", "3"]
    assert main(command) == 7
    flags, run = divided(started[0])
    assert flags == ["-n", "2", "--max-restarts", "3", "--devices-per-process", "4", "--oversubscribe"]
    assert run == [sys.executable, "-m", "paceline.cli.main", *command]


def test_processes_may_stand_in_a_configuration_file(started, tmp_path):
    """As every option of a run."""
    file = tmp_path / "run.toml"
    file.write_text("processes = 3\ndevices_per_process = 1\n")
    assert main(["train", "linear", "--config", str(file)]) == 7
    assert divided(started[0])[0] == ["-n", "3", "--devices-per-process", "1", "--oversubscribe"]


def test_devices_that_cannot_be_shared_out_are_refused(started):
    """3 processes cannot simulate 8 devices together."""
    with pytest.raises(OptionError) as caught:
        several.launch_if_asked(["linear", "--processes", "3", "--simulate", "8"])
    assert "multiple of 3" in caught.value.fix and not started


def test_a_process_of_a_launch_starts_no_supervisor_of_its_own(monkeypatch, started):
    """The command that each process runs still carries --processes."""
    monkeypatch.setenv(launched.NUM_PROCESSES, "2")
    assert several.launch_if_asked(["linear", "--processes", "2"]) is None and not started


def test_a_later_attempt_knows_the_run_of_the_one_before(monkeypatch, tmp_path):
    """Written by process 0 of the first attempt, read by all of the second; the first attempt itself begins anew."""
    monkeypatch.setenv(launched.LAUNCH_FOLDER, str(tmp_path))
    monkeypatch.setenv(launched.PROCESS_INDEX, "0")
    monkeypatch.setenv(launched.ATTEMPT, "0")
    several.remember_run(str(tmp_path / "runs" / "x"))
    assert several.launch_folder.run_of_earlier_attempt() is None
    monkeypatch.setenv(launched.ATTEMPT, "1")
    assert several.launch_folder.run_of_earlier_attempt() == str(tmp_path / "runs" / "x")
    monkeypatch.setenv(launched.LAUNCH_FOLDER, str(tmp_path / "other"))
    assert several.launch_folder.run_of_earlier_attempt() is None


@pytest.mark.parametrize(
    "environment",
    [{"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, {"OMPI_COMM_WORLD_RANK": "1"}],
    ids=["Slurm", "OpenMPI"],
)
def test_a_mistake_in_all_tasks_of_a_scheduler_is_told_by_the_first(monkeypatch, capsys, environment):
    """The second task ends with the same exit code and says nothing."""
    assert main(["train", "linear", "--no-such-option"]) == 2
    assert "no-such-option" in capsys.readouterr().err
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["train"]) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("flag", "value"), [("--process-index", "one"), ("--peer-timeout", "soon")])
def test_a_number_that_is_none_is_refused_before_joining(flag, value):
    """By the option that will not do."""
    with pytest.raises(OptionError) as caught:
        several.join(["linear", flag, value])
    assert f"{flag} {value}" in caught.value.what


def test_of_several_processes_the_first_writes_the_report(monkeypatch, tmp_path):
    """`--json` names one file, and every process runs the same command."""
    file = tmp_path / "out.json"
    monkeypatch.setenv(launched.PROCESS_INDEX, "1")
    assert main(["doctor", "no_such_file.py", "--json", str(file)]) == 2
    assert not file.exists()
    monkeypatch.setenv(launched.PROCESS_INDEX, "0")
    assert main(["doctor", "no_such_file.py", "--json", str(file)]) == 2
    assert "no_such_file.py" in file.read_text()
