"""`--processes P`, who prints an error, and the folder that attempts of one launch share."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from paceline.base import launched
from paceline.base.errors import OptionError
from paceline.cli import launch, several
from paceline.cli.main import main


@pytest.fixture
def started(monkeypatch):
    """The arguments with which the supervisor was started, in place of starting it."""
    found: list[tuple[list[str], list[str]]] = []
    document = {"exit_code": 7}
    monkeypatch.setattr(launch, "launch_or_write", lambda flags, command: found.append((flags, command)) or document)
    return found


@pytest.fixture
def task(tmp_path, monkeypatch):
    """`task(source)`: a program in place of `paceline train`, behind the same supervisor."""
    monkeypatch.chdir(tmp_path)

    def replace(source):
        inner = launch.launch_or_write
        command = [sys.executable, "-S", "-c", f"import os, sys\n{source}"]
        monkeypatch.setattr(launch, "launch_or_write", lambda flags, _: inner(flags, command))

    return replace


def trained(*arguments: str) -> tuple[int, dict]:
    """Exit code and report of `paceline train x --processes 2`."""
    code = main(["train", "x", "--processes", "2", "--oversubscribe", "--json", "f.json", *arguments])
    return code, json.loads(Path("f.json").read_text())


def test_processes_starts_the_same_command_under_a_supervisor(started):
    """P processes, 8 simulated devices shared out; the exit code is that of the supervisor."""
    command = ["train", "linear", "--processes", "2", "--simulate", "8", "--max-restarts", "3"]
    assert main(command) == 7
    flags, run = started[0]
    assert flags == ["--processes", "2", "--max-restarts", "3", "--devices-per-process", "4", "--oversubscribe"]
    assert run == [sys.executable, "-m", "paceline.cli.main", *command]


def test_processes_may_stand_in_a_configuration_file(started, tmp_path):
    """As every option of a run."""
    file = tmp_path / "run.toml"
    file.write_text("processes = 3\ndevices_per_process = 1\n")
    assert main(["train", "linear", "--config", str(file)]) == 7
    assert started[0][0] == ["--processes", "3", "--devices-per-process", "1", "--oversubscribe"]


@pytest.mark.parametrize(
    "own",
    [
        "--logs here --hang-timeout 7 --compile-timeout 8 --stop-grace 9 --oversubscribe",
        "--logs=here --hang_timeout=7 --compile_timeout 8 --stop-grace=9 --oversubscribe",
    ],
)
def test_options_of_the_launch_go_to_the_launch_only(monkeypatch, own):
    """Between those of the run, with a value behind a blank or an equals sign: the processes do not see them."""
    asked = []

    class Done:
        def as_dict(self):
            return {"exit_code": 0}

    monkeypatch.setattr(launch, "run_launch", lambda request: asked.append(request) or Done())
    words = own.split()
    command = ["train", "linear", *words[:2], "--processes", "2", "--batch", "8", *words[2:], "--seed=3"]
    assert main(command) == 0
    (request,) = asked
    assert request.command[4:] == ["linear", "--processes", "2", "--batch", "8", "--seed=3"]
    assert (str(request.logs), request.hang_timeout_s, request.compile_timeout_s) == ("here", 7.0, 8.0)
    assert request.stop_grace_s == 9.0 and request.oversubscribe


@pytest.mark.parametrize("own", [["--logs", "here"], ["--hang-timeout=3"], ["--oversubscribe"]])
def test_options_of_the_launch_mean_nothing_without_one(capsys, own):
    """Unknown, as any other word."""
    assert main(["train", "linear", *own]) == 2
    assert f"unknown option {own[0].partition('=')[0]}" in capsys.readouterr().err


def test_options_of_the_launch_need_their_value(capsys):
    """No word of the run is taken for it."""
    assert main(["train", "linear", "--logs", "--processes", "1"]) == 2
    assert "--logs" in capsys.readouterr().err


def test_restarts_need_somebody_who_starts(monkeypatch, started, tmp_path):
    """`--max-restarts` without --processes would do nothing; in a launched process it is the launch's."""
    (tmp_path / "run.toml").write_text("max_restarts = 3\n")
    for arguments in (["--max-restarts", "3"], ["--config", str(tmp_path / "run.toml")]):
        with pytest.raises(OptionError) as caught:
            several.launch_if_asked(["linear", *arguments])
        assert caught.value.what == "--max-restarts 3 without --processes" and "add --processes" in caught.value.fix
    monkeypatch.setenv(launched.NUM_PROCESSES, "2")
    assert several.launch_if_asked(["linear", "--max-restarts", "3"]) is None and not started


@pytest.mark.parametrize("number", ["0", "-1", "two", "²"])
def test_a_number_of_processes_that_is_none_is_refused_by_its_own_name(capsys, started, number):
    """Not by that of an option of another command."""
    assert main(["train", "linear", "--processes", number]) == 2
    told = capsys.readouterr().err
    assert f"--processes {number}" in told and "use --processes 1 or more" in told and "-n" not in told.split()
    assert not started


def test_the_report_tells_of_a_launch_that_could_not_start(tmp_path, monkeypatch):
    """An option that makes no sense, found by the supervisor: nothing runs, and the file says why."""
    monkeypatch.chdir(tmp_path)
    for arguments, what in ((["--stop-grace", "-1"], "--stop-grace -1"), (["--simulate", "3"], "--simulate 3")):
        code, document = trained(*arguments)
        assert code == 2 and document["error"]["kind"] == "OptionError" and what in document["error"]["what"]


def test_the_report_tells_of_a_run_that_process_0_could_not_report(task):
    """Process 1 raises, process 0 is stopped: the words of the launch, the error, the log; an old file is replaced."""
    task("raise ValueError('row 3') if os.environ['PACELINE_PROCESS_INDEX'] == '1' else __import__('signal').pause()")
    Path("f.json").write_text("{}")
    code, document = trained("--logs", "here")
    assert code == 1
    assert document["error"] == {
        "kind": "ProcessError",
        "what": "process 1 failed: exit code 1: ValueError: row 3",
        "why": "the run ended before process 0 could write its report",
        "fix": f"see {os.path.abspath('here/process-1.log')} for all that it said",
    }


def test_what_process_0_reports_stays(task):
    """Its own error is better than what the launch knows."""
    task("open('f.json', 'w').write('{\"error\": 5}'); sys.exit(3)")
    assert trained() == (3, {"error": 5})


def test_a_run_that_succeeds_leaves_the_report_alone(task):
    """Even one from before: the launch writes errors only."""
    task("pass")
    Path("f.json").write_text('{"report": 1}')
    assert trained() == (0, {"report": 1})


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
    assert several.run_of_earlier_attempt() is None
    monkeypatch.setenv(launched.ATTEMPT, "1")
    assert several.run_of_earlier_attempt() == str(tmp_path / "runs" / "x")
    monkeypatch.setenv(launched.LAUNCH_FOLDER, str(tmp_path / "other"))
    assert several.run_of_earlier_attempt() is None


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


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--process-index", "one"), ("--peer-timeout", "soon"), ("--peer-timeout", "0"), ("--join-timeout", "-1"),
        ("--peer-timeout", "inf"), ("--join-timeout", "nan"),
    ],
)  # fmt: skip
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
