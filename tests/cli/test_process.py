"""What only a process of its own can show: exit codes as the shell sees them, Ctrl-C, simulated devices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import paceline
from paceline.telemetry.reader import read_run

PATIENCE_S = 120.0

# The first line uses a device while the file is loaded: simulated devices must be there by then.
TASK = """\
    import jax.numpy as jnp
    import optax

    import paceline

    X = jnp.arange(64.0) / 64


    def task():
        return paceline.Job(
            task=paceline.task(lambda params, batch: (params["w"] - batch) ** 2, init=lambda rng: {"w": jnp.zeros(())}),
            optimizer=optax.sgd(0.1),
            data=X,
        )
"""


@pytest.fixture
def start(tmp_path):
    """`start("train", ...)`: the program in an empty folder, with its output as text."""
    source = str(Path(paceline.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "JAX_PLATFORMS": "cpu"}
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline.cli.main", *arguments],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_ctrl_c_leaves_a_report_and_exit_code_130(start, tmp_path):
    """SIGINT after 20 steps on 3 simulated devices: the report is printed and written, and there is no traceback."""
    (tmp_path / "long.py").write_text(textwrap.dedent(TASK))
    process = start("train", "long.py", "--simulate", "3", "--batch", "6", "--epochs", "1000000", "--run", "run")
    events = tmp_path / "run" / "events-0.jsonl"
    deadline = time.monotonic() + PATIENCE_S
    while not (events.exists() and events.read_bytes().count(b"\n") > 20):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "ended early: interrupted" in out and "on 3 devices" in out
    assert "Traceback" not in err
    record = read_run(tmp_path / "run")
    assert record.report["stopped"] == "interrupted"
    steps = [event.step for event in record.events_by_process[0] if event.kind == "step"]
    assert steps == list(range(1, record.report["steps"] + 1))


def test_a_mistake_has_exit_code_2_and_no_traceback(start):
    """More devices than --simulate made: only what, why and fix on standard error."""
    process = start("train", "linear", "--simulate", "2", "--devices", "3")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert err.startswith("error: 3 devices asked for, 2 cpu devices visible\n  why: ")
    assert "--simulate 3" in err and err.count("\n") == 3
    assert out == ""
