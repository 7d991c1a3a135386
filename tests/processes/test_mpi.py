"""Under mpirun a run of two processes is the run of one process with two devices.

Owns: Open MPI. Not here: Slurm (`test_slurm`).
Invariant: expected parameters come from this process, with two simulated devices.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes.environment import CHILD, TRAIN
from tests.processes.mlp import SCHEMES, assert_same, restored, trained

LIBRARY = str(Path(__file__).with_name("library.py"))
MLP = str(Path(__file__).with_name("mlp.py"))
ONCE = pytest.mark.once(
    reason="Open MPI and Paceline's command line are the same at both ends; the test above joins jax at both"
)


@pytest.mark.slow(
    reason="two schemes, each compiled by three processes: only real ones show that they compute the same"
)
def test_a_script_trains_the_same_parameters(mpi, tmp_path):
    """`mpirun -n 2 python script.py`: eight steps with dropout, bit for bit, under each scheme and placement."""
    schemes = ["per_device", "zero1"]
    ended = mpi.run([sys.executable, LIBRARY, str(tmp_path), "8", *schemes], processes=2, env=CHILD, timeout_s=150)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [f"process {index} of 2: done" in ended.stdout for index in (0, 1)] == [True, True]
    for name in schemes:
        assert_same(dict(np.load(tmp_path / f"{name}.npz")), trained(SCHEMES[name], steps=8))


@ONCE
def test_the_command_line_trains_the_same_parameters(mpi, tmp_path):
    """`mpirun -n 2 paceline train`: one report, of two devices, and a checkpoint that this process reads."""
    run = tmp_path / "run"
    options = ["--devices-per-process", "1", "--batch", "16", "--steps", "8", "--run", str(run)]
    ended = mpi.run([*TRAIN, MLP, *options], processes=2, env=CHILD, timeout_s=150)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("scheme global_view on 2 devices") == 1
    report = json.loads((run / "report.json").read_text())
    assert report["last_step"] == 8
    assert_same(restored(run), trained(SCHEMES["global_view"], steps=8))


@ONCE
def test_a_mistake_is_told_once(mpi, tmp_path):
    """A batch that does not split ends both processes with exit code 2 and one error, not two tracebacks."""
    options = ["--devices-per-process", "1", "--batch", "15", "--steps", "8", "--run", str(tmp_path / "run")]
    ended = mpi.run([*TRAIN, MLP, *options], processes=2, env=CHILD, timeout_s=60)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("error: ") == 1, ended.stderr
    assert "Traceback" not in ended.stderr
