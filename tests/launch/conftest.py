"""A supervisor in this process, with small programs that play the roles of processes of a run."""

from __future__ import annotations

import io
import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

import paceline
from paceline.launch.screen import Screen
from paceline.launch.settings import Launch
from paceline.launch.supervisor import run

SOURCE = str(Path(paceline.__file__).parents[1])
PATIENCE_S = 30.0

# What every role starts with. `meet("name")` lets the processes of a test wait for each other without a clock.
PRELUDE = """\
import json, os, signal, subprocess, sys, time
from pathlib import Path
from paceline.telemetry.status import open_status
folder = Path(os.environ["PACELINE_LAUNCH_FOLDER"])
index, attempt = int(os.environ["PACELINE_PROCESS_INDEX"]), int(os.environ["PACELINE_ATTEMPT"])
peers = int(os.environ["PACELINE_NUM_PROCESSES"])
def mark(name):
    (folder / f"{name}-{index}-{attempt}").touch()
def await_mark(name, other):
    while not (folder / f"{name}-{other}-{attempt}").exists():
        time.sleep(0.005)
def meet(name):
    mark(name)
    for other in range(peers):
        await_mark(name, other)
def wait():
    while True:
        signal.pause()
"""


class Launched:
    """What a launch left: exit code, standard output of process 0, the supervisor's words, the folder."""

    def __init__(self, outcome, out, err):
        self.code = outcome.exit_code
        self.outcome = outcome
        self.attempts = outcome.attempts
        self.first = outcome.attempts[-1].first_failing
        self.out = out
        self.err = err
        self.folder = outcome.logs

    def log(self, index):
        return (self.folder / f"process-{index}.log").read_text()


@pytest.fixture
def role(tmp_path, monkeypatch):
    """`role(source)`: the command that runs a small program behind `PRELUDE`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", SOURCE)

    def write(source, *, prelude=PRELUDE):
        path = tmp_path / "role.py"
        path.write_text(prelude + textwrap.dedent(source))
        return [sys.executable, "-S", str(path)]

    return write


@pytest.fixture
def launch(role):
    """`launch(source, processes, ...)`: the role in so many processes, to the end."""

    def launched(source, processes=2, **options):
        out, err = io.BytesIO(), io.StringIO()
        options = {"hang_timeout_s": 20.0, "oversubscribe": True, **options}
        outcome = run(Launch(role(source), processes, **options), screen=Screen(out, err))
        return Launched(outcome, out.getvalue().decode(), err.getvalue())

    return launched


def is_running(pid):
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def await_true(condition, patience_s=PATIENCE_S):
    """Poll until it holds."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.01)


def environment():
    """Environment of a supervisor that is a process of its own."""
    return {**os.environ, "PYTHONPATH": SOURCE}
