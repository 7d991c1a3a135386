"""A launch whose processes are killed at random moments, and what its run leaves behind.

Owns: the task, whose metrics say which rows a step saw; the one who kills; the run's last word about each step.
Not here: what a killed save leaves on the disk (`tests/checkpoint/test_faults.py`).

Shapes: 48 rows in batches of 8: 6 steps an epoch, 60 steps, 10 epochs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from paceline.base import launched
from paceline.checkpoint.files import read_document, step_folder
from paceline.checkpoint.match import table
from paceline.checkpoint.reading import read_on_host
from paceline.telemetry.reader import read_run
from tests.processes.run import child_environment, end_session

STEPS, ROWS, BATCH, SAVED_EVERY = 60, 48, 8, 3
PATIENCE_S = 120.0

# The mean over 8 rows of different powers of two below 2**16 is exact in float32: it tells which rows they were.
# A step waits for its rows, as on a slow disk, so that there is time to be killed in.
TASK = f"""\
    import time

    import jax.numpy as jnp
    import numpy as np
    import optax

    import paceline

    X = np.random.default_rng(1).normal(size={ROWS}).astype(np.float32)


    class Rows:
        def __len__(self):
            return {ROWS}

        def read(self, indices):
            time.sleep(0.02)
            return {{"x": X[indices], "id": indices.astype(np.int32)}}


    def loss(params, batch):
        bits = (1 << batch["id"] % 16).astype(jnp.float32)  # exp2 is not exact
        third = batch["id"] // 16
        noted = {{f"rows{{number}}": jnp.where(third == number, bits, 0.0) for number in range(3)}}
        return (batch["x"] * params["w"] + params["b"] - 3) ** 2, noted


    def task():
        init = lambda rng: {{"w": jnp.zeros(()), "b": jnp.ones(())}}
        return paceline.Job(paceline.task(loss, init=init), optax.adam(0.01), Rows())
"""


def write_task(folder: Path) -> Path:
    path = folder / "noted.py"
    path.write_text(textwrap.dedent(TASK))
    return path


@contextlib.contextmanager
def launching(folder: Path, *, processes: int, run: str, restarts: int = 30) -> Iterator[subprocess.Popen]:
    """The launch of a run of the task in `folder`, which takes 60 steps and saves every third."""
    launch = f"launch -n {processes} --oversubscribe --max-restarts {restarts} --logs {run}-logs --"
    train = f"train noted.py --batch {BATCH} --steps {STEPS} --checkpoint-every {SAVED_EVERY} --run {run} --seed 5"
    program = [sys.executable, "-m", "paceline.cli.main"]
    with (folder / f"{run}.out").open("wb") as out:
        popen = subprocess.Popen(
            [*program, *launch.split(), *program, *train.split(), "--progress", "none"], cwd=folder,
            env=child_environment({"JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}),
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            yield popen
        finally:
            end_session(popen, grace_s=20.0)


class Killer:
    """Kills processes of a launch: one at a random moment of its start, of its steps or of a save."""

    def __init__(self, launch: subprocess.Popen, run: Path, *, seed: int) -> None:
        self._launch = launch
        self._run = run
        self._draw = np.random.default_rng(seed)
        self.killed: set[int] = set()
        self.moments: list[str] = []

    def kill(self, moment: str) -> bool:
        """Kill one of the processes, or all at once; False if the launch ended first."""
        before = self._events()
        if not self._await(lambda: self._own()):
            return False
        if moment == "start":
            time.sleep(self._draw.uniform(0.0, 2.0))
        elif moment == "step":
            steps = int(self._draw.integers(2, 7))
            if not self._await(lambda: self._events() >= before + steps):
                return False
            time.sleep(self._draw.uniform(0.0, 0.03))
        elif not self._await(lambda: self._events() > before and self._is_saving()):
            return False
        pids = self._own()
        chosen = pids if self._draw.random() < 0.2 else [pids[self._draw.integers(len(pids))]] if pids else []
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.killed |= set(pids)
        self.moments += [moment] * bool(chosen)
        return True

    def _await(self, condition) -> bool:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            if self._launch.poll() is not None:
                return False
            assert time.monotonic() < end_s, "it never came true"
            time.sleep(0.001)
        return True

    def _own(self) -> list[int]:
        """Processes of the attempt that runs now, but for those of earlier ones."""
        return sorted(set(_processes_of(self._launch.pid)) - self.killed)

    def _events(self) -> int:
        with contextlib.suppress(OSError):
            return (self._run / "events-0.jsonl").read_bytes().count(b'"kind":"step"')
        return 0

    def _is_saving(self) -> bool:
        with contextlib.suppress(OSError):
            return any(name.endswith(".saving") for name in os.listdir(self._run / "checkpoints"))
        return False


def _processes_of(launch: int) -> list[int]:
    """Children of the launch that are processes of the run: its guard is none."""
    mark = launched.PROCESS_INDEX.encode() + b"="
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == launch and stat[0] not in "ZX" and mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def last_state(run: Path) -> dict[str, bytes]:
    """Every leaf of the checkpoint of the last step, proven by its checksums."""
    path = step_folder(run / "checkpoints", STEPS)
    leaves = read_on_host(path, table(read_document(path)))
    return {name: leaf.tobytes() for name, leaf in leaves.items()}


def history(run: Path) -> dict[int, dict[str, float]]:
    """The metrics of each step, as written last: on those the run stands."""
    steps = [event for event in read_run(run).events if event.kind == "step"]
    return {event.step: {k: v for k, v in event.values.items() if k.startswith("train/")} for event in steps}


def rows_of(values: dict[str, float]) -> list[int]:
    """The rows that a step saw, from its metrics."""
    sums = [BATCH * values[f"train/rows{number}"] for number in range(3)]
    assert all(found.is_integer() for found in sums), sums
    return [16 * number + bit for number, found in enumerate(sums) for bit in range(16) if int(found) >> bit & 1]
