"""The script that `--write slurm` writes, on a real Slurm: started, warned, saved, queued again, done."""

from __future__ import annotations

import signal
import sys

import pytest

from paceline.launch.settings import Launch
from paceline.launch.templates import slurm as template
from paceline.launch.templates.job import job_for
from tests.launch.conftest import PRELUDE, SOURCE, await_true
from tests.processes.slurm import slurm_of_this_machine

ROLE = (
    PRELUDE
    + """
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, save)
print("process", index, "attempt", attempt, flush=True)
if attempt == 0:
    wait()
"""
)


@pytest.fixture(scope="module")
def slurm():
    """A Slurm of one machine; skipped, with the reason, where there cannot be one."""
    with slurm_of_this_machine() as slurm:
        yield slurm


@pytest.mark.slow(
    reason="a real Slurm starts a job, twice: only it shows which signals reach whom, and what requeue does"
)
def test_a_job_that_is_warned_saves_and_goes_on(slurm, tmp_path):
    """SIGUSR1, as Slurm sends it before the end of the time: both processes save, and attempt 1 goes on and ends."""
    program = tmp_path / "bin" / "paceline"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={SOURCE} exec {sys.executable} -m paceline.cli.main "$@"\n')
    program.chmod(0o755)
    (tmp_path / "role.py").write_text(ROLE)
    launch = Launch([sys.executable, str(tmp_path / "role.py")], 2, oversubscribe=True, logs=tmp_path / "logs")
    script, output = tmp_path / "train.sh", tmp_path / "output"
    script.write_text(template.render(job_for(launch, path=script, gpus_per_node=None, image=None, time=None)))
    path = f"{program.parent}:/usr/bin:/bin"
    job = slurm.sbatch(script, output=output, env={"PATH": path, "PYTHONPATH": SOURCE})
    logs = [tmp_path / "logs" / f"slurm-{job}" / f"process-{index}.log" for index in range(2)]
    await_true(lambda: all(log.exists() and "attempt 0" in log.read_text() for log in logs))
    slurm.signal(job, signal.SIGUSR1)
    await_true(lambda: slurm.job(job)["Restarts"] == "1")
    slurm.start_soon(job)
    assert slurm.wait(job, timeout_s=60) == "COMPLETED"
    for index, log in enumerate(logs):
        words = [line for line in log.read_text().splitlines() if line and not line.startswith("paceline launch")]
        assert words == [f"process {index} attempt 0", "saved", f"process {index} attempt 1"]
    assert output.read_text().count("SIGUSR1: each process may finish its step and save") == 1
