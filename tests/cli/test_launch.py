"""`paceline launch`: flags, the division at --, the JSON document, files for schedulers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import paceline as package
from paceline.base.errors import OptionError, ProcessError
from paceline.cli import launch as cli
from paceline.cli.launch import run


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Each test in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """What the supervisor would be asked to do, in place of doing it."""
    launches = []

    class Done:
        def as_dict(self):
            return {"exit_code": 0, "attempts": []}

    monkeypatch.setattr(cli, "run_launch", lambda launch: launches.append(launch) or Done())
    return launches


def refused(*arguments):
    """The error, as text."""
    with pytest.raises(OptionError) as caught:
        run(list(arguments))
    return str(caught.value)


def test_every_option_reaches_the_supervisor(asked):
    """Each flag once, none at its default; all behind -- is the command, flags of its own and a second -- too."""
    flags = (
        "-n 3 --devices-per-process 2 --nodes 4 --node-index 1 --coordinator a:5 --max-restarts 6 --hang-timeout 7 "
        "--compile-timeout 8 --stop-grace 9 --logs here --oversubscribe --attempt 2"
    )
    assert run([*flags.split(), "--", "paceline", "train", "image", "-n", "9", "--", "x"]) == 0
    (launch,) = asked
    assert launch.command == ["paceline", "train", "image", "-n", "9", "--", "x"]
    assert (launch.processes, launch.devices_per_process, launch.nodes, launch.node_index) == (3, 2, 4, 1)
    assert (launch.coordinator, launch.max_restarts, launch.logs) == ("a:5", 6, Path("here"))
    assert (launch.hang_timeout_s, launch.compile_timeout_s, launch.stop_grace_s) == (7.0, 8.0, 9.0)
    assert launch.oversubscribe and launch.first_attempt == 2


def test_processes_are_as_many_as_gpus_where_there_are_some(asked, monkeypatch):
    """8 GPUs, 2 each: 4 processes. Without GPUs the number must be said."""
    monkeypatch.setattr(cli, "gpu_count", lambda: 8)
    assert run(["--devices-per-process", "2", "--", "paceline"]) == 0 and asked[0].processes == 4
    monkeypatch.setattr(cli, "gpu_count", lambda: 0)
    assert "use -n 2 or another number" in refused("--", "paceline")


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["-n", "2", "paceline", "train"], "use paceline launch -n 2 -- paceline train NAME"),
        (["-n", "2", "--"], "use paceline launch -n 2 -- paceline train NAME"),
        (["-n", "2", "--hang-time", "3", "--", "x"], "correct or remove it"),
        (["-n", "two", "--", "x"], "--help shows the type of each option"),
        (["-n", "0", "--", sys.executable], "use --processes 1 or more"),
        (["-n", "1", "--image", "x", "--", "x"], "remove --image, or add --write"),
        (["-n", "1", "--time", "3", "--", "x"], "remove --time, or add --write"),
        (["-n", "1", "--gpus-per-node", "3", "--", "x"], "remove --gpus-per-node, or add --write"),
        (["-n", "1", "--write", "slurm", "f", "--coordinator", "a:1", "--", "x"], "remove --coordinator"),
        (["-n", "1", "--write", "slurm", "f", "--node-index", "1", "--", "x"], "remove --node-index"),
        (["-n", "1", "--write", "kubernetes", "f", "--time", "3", "--", "x"], "remove --time"),
        (["-n", "1", "--write", "slurm", "f", "--"], "use paceline launch -n 2 -- paceline train NAME"),
        (["-n", "1", "--write", "kubernetes", "f", "--image", "i", "--", "paceline", "train", "x"], "--resume auto"),
        (["-n", "0", "--write", "slurm", "f", "--", "x"], "use --processes 1 or more"),
        (["-n", "1", "--json", "none/there.json", "--", "x"], "choose a file in a folder that exists"),
    ],
)
def test_options_without_sense_or_effect_are_refused(arguments, fix):
    """Before anything starts or is written; the fix names what to change."""
    assert fix in refused(*arguments)
    assert list(Path().iterdir()) == []


def test_the_exit_code_and_the_failure_are_written_as_json(capfd):
    """Keys as documented: exit code; attempts with reason, first failing process and duration; logs."""
    code = "import os, sys; sys.exit('error: no') if os.environ['PACELINE_PROCESS_INDEX'] == '1' else None"
    arguments = ["-n", "2", "--oversubscribe", "--max-restarts", "1", "--json", "o.json"]
    assert run([*arguments, "--", sys.executable, "-S", "-c", code]) == 1
    document = json.loads(Path("o.json").read_text())
    assert document["exit_code"] == 1 and [one["reason"] for one in document["attempts"]] == ["failed", "failed"]
    first = document["attempts"][0]["first_failing"]
    assert (first["process"], first["exit_code"], first["signal"], first["error"]) == (1, 1, None, "error: no")
    assert 0 < document["attempts"][0]["duration_s"] < 30 and Path(document["logs"]).is_dir()
    assert "restart 1 of 1, because process 1 failed" in capfd.readouterr().err


def test_an_error_before_the_start_is_written_too(monkeypatch):
    """The command is not there: exit code 2, and the words of the error."""
    assert "no-such-program" in refused("-n", "1", "--json", "o.json", "--", "no-such-program")
    document = json.loads(Path("o.json").read_text())
    assert document["exit_code"] == 2 and document["error"]["kind"] == "OptionError"


def test_too_many_processes_are_an_error_of_the_machine():
    """10,000 are more than the cores of any machine that runs this."""
    with pytest.raises(ProcessError, match="10000 processes on"):
        run(["-n", "10000", "--", sys.executable])


@pytest.mark.parametrize(
    ("kind", "file", "start"),
    [("slurm", "job.sh", "sbatch job.sh"), ("kubernetes", "job.yaml", "kubectl apply -f job.yaml")],
)
def test_a_file_is_written_and_how_to_start_it_said(capsys, kind, file, start):
    """GPUs without -n: a process each. The command need not be on this machine."""
    arguments = [
        "--write",
        kind,
        file,
        "--nodes",
        "2",
        "--gpus-per-node",
        "4",
        "--image",
        "i:1",
        "--",
        "on-the-cluster",
    ]
    assert run(arguments) == 0
    text = Path(file).read_text()
    assert "on-the-cluster" in text and "i:1" in text and start in capsys.readouterr().out
    assert "is there already" in refused(*arguments) and Path(file).read_text() == text


def test_help_names_every_option(capsys):
    """Also without a --."""
    with pytest.raises(SystemExit):
        run(["--help"])
    told = capsys.readouterr().out
    for flag in ("-n", "--devices-per-process", "--max-restarts", "--hang-timeout", "--write", "--oversubscribe"):
        assert flag in told


def test_the_supervisor_never_imports_jax():
    """It would take devices, or memory on them, from the processes that it starts; and it starts faster."""
    code = "import sys, paceline.cli.launch; print([m for m in ('jax', 'jaxlib', 'numpy') if m in sys.modules])"
    source = str(Path(package.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "[]"
