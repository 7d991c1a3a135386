"""Under a real Slurm a run of two processes is the run of one process with two devices, also when it is broken off.

Owns: srun, the signal before the end of a job's time, requeue, the script of `paceline launch --write slurm`.
Not here: which signals reach whom in that script (`launch/test_slurm_script`); Open MPI (`test_mpi`).
Invariant: expected parameters come from this process, with two simulated devices.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.recipes.find import find_recipe
from paceline.recipes.recipe import RunShape
from paceline.train.trainer import Trainer
from tests.processes.environment import CHILD, SOURCE, TRAIN
from tests.processes.mlp import SCHEMES, assert_same, restored, trained
from tests.processes.run import child_environment, until

MLP = str(Path(__file__).with_name("mlp.py"))
ONCE = pytest.mark.once(
    reason="Slurm, Paceline's script and its watchdog are the same at both ends; the test above joins jax at both"
)


def test_srun_trains_the_same_parameters(slurm, tmp_path):
    """`srun -n 2 paceline train linear`: 20 steps, slope and intercept equal bit for bit, one report."""
    run, document = tmp_path / "run", tmp_path / "report.json"
    options = ["--devices-per-process", "1", "--batch", "64", "--steps", "20"]
    ended = slurm.run(
        [*TRAIN, "linear", *options, "--run", str(run), "--json", str(document)],
        processes=2, env=CHILD, timeout_s=150,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("scheme global_view on 2 devices") == 1, ended.stdout
    recipe = find_recipe("linear")
    job = recipe.make_job(recipe.options(), RunShape(64, 20, 1, 0))
    trainer = Trainer(job.task, job.optimizer, devices=2)
    state, _ = trainer.fit(trainer.init(), job.data, batch=64, steps=20)
    assert json.loads(document.read_text())["outcome"] == {name: float(leaf) for name, leaf in state.params.items()}


def job_script(folder: Path, *options: str) -> Path:
    """A job as a user writes one: two tasks; warned by SIGUSR1 it saves, and the script queues it again."""
    train = shlex.join([*TRAIN, MLP, "--devices-per-process", "1", "--batch", "16", *options])
    script = folder / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --ntasks=2\n#SBATCH --requeue\n"
        '[ -n "$SLURM_RESTART_COUNT" ] && export DELAY_S=0\n'  # the second start is in no hurry to be interrupted
        f"srun {train}\ncode=$?\necho ended $code\n"
        "[ $code = 143 ] && scontrol requeue $SLURM_JOB_ID\nexit $code\n"
    )
    return script


def await_steps(run: Path, steps: int, *, output: Path) -> None:
    """Until process 1 has recorded so many steps."""
    events = run / "events-1.jsonl"

    def enough() -> bool:
        assert "error" not in (output.read_text() if output.exists() else "")
        return events.exists() and events.read_text().count("train/loss") >= steps

    until(enough, timeout_s=120, what=f"{steps} steps")


@ONCE
@pytest.mark.slow(reason="a job starts twice: only a real Slurm shows that a requeued job goes on where it was")
def test_a_job_that_is_warned_goes_on_where_it_was(slurm, tmp_path):
    """SIGUSR1: both processes save after the same step and exit 143; queued again, the run is the unbroken one."""
    run, output = tmp_path / "run", tmp_path / "output"
    options = ["--run", str(run), "--resume", "auto", "--steps", "60", "--checkpoint-every", "1000"]
    env = CHILD | {"DELAY_S": "0.02"}
    job = slurm.sbatch(job_script(tmp_path, *options), output=output, env=env)
    await_steps(run, 5, output=output)
    slurm.signal(job, signal.SIGUSR1)
    slurm.wait(job, states=["PENDING"], timeout_s=60)
    assert "ended 143" in output.read_text()
    (saved,) = [int(child.name) for child in (run / "checkpoints").iterdir() if child.name.isdigit()]
    assert 5 <= saved < 60
    assert json.loads((run / "report.json").read_text())["stopped"] == "terminated"
    assert_same(restored(run), trained(SCHEMES["global_view"], steps=saved))
    slurm.start_soon(job)
    assert slurm.wait(job, timeout_s=120) == "COMPLETED", output.read_text()
    assert_same(restored(run), trained(SCHEMES["global_view"], steps=60))


@ONCE
@pytest.mark.slow(reason="the written script, a supervisor and two processes on a real Slurm")
def test_the_written_script_trains_the_same_parameters(slurm, tmp_path):
    """`paceline launch --write slurm`, then `sbatch`: the job completes with the parameters of one process."""
    program = tmp_path / "bin" / "paceline"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m paceline.cli.main "$@"\n')
    program.chmod(0o755)
    run, output, script = tmp_path / "run", tmp_path / "output", tmp_path / "train.sh"
    path = f"{program.parent}:{child_environment()['PATH']}"
    train = ["paceline", "train", MLP, "--batch", "16", "--steps", "8", "--run", str(run), "--checkpoint-every", "end"]
    launch = [str(program), "launch", "-n", "2", "--devices-per-process", "1", "--oversubscribe"]
    subprocess.run(
        [*launch, "--logs", str(tmp_path / "logs"), "--write", "slurm", str(script), "--", *train],
        env=child_environment(CHILD), check=True, timeout=60,
    )  # fmt: skip
    job = slurm.sbatch(script, output=output, env=CHILD | {"PATH": path, "PYTHONPATH": SOURCE + ":" + str(Path.cwd())})
    assert slurm.wait(job, timeout_s=150) == "COMPLETED", output.read_text()
    assert_same(restored(run), trained(SCHEMES["global_view"], steps=8))


@ONCE
@pytest.mark.slow(reason="two real tasks of a job: srun itself leaves the survivor alone")
def test_a_process_that_dies_ends_the_other(slurm, tmp_path):
    """srun itself waits for the rest: process 0 names process 1, says how to go on, and ends within seconds."""
    run = tmp_path / "run"
    code = (
        "import os, signal, sys\n"
        "from paceline.cli.main import main\n"
        "from paceline.train.loop import Loop\n"
        "record = Loop._record\n"
        "def dying(self, item, step_s):\n"
        "    record(self, item, step_s)\n"
        "    if item.step == 3 and os.environ['SLURM_PROCID'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "Loop._record = dying\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    script = tmp_path / "dying.py"
    script.write_text(code)
    options = ["--devices-per-process", "1", "--batch", "16", "--steps", "500", "--run", str(run)]
    start_s = time.monotonic()
    ended = slurm.run(
        [sys.executable, str(script), "train", MLP, *options], processes=2, env=CHILD | {"DELAY_S": "0.005"},
        timeout_s=150, options=["--label"],
    )  # fmt: skip
    assert time.monotonic() - start_s < 120
    own = [line[3:] for line in ended.stderr.splitlines() if line.startswith("0: ")]
    (error,) = [line for line in own if line.startswith("error: ")]
    assert "process 0 on " in error and "process 1 (" in error and "(pid " in error, ended.stderr
    assert any("--resume" in line for line in own)
    assert not any("Traceback" in line for line in own)
