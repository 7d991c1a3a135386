"""A task file for the command line whose rows can do something while a run reads them, and a small disk.

Owns: the file, the hook that its data calls, the command in this process, a file system that can be filled.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paceline.checkpoint.files import steps
from paceline.cli.main import main

PATIENCE_S = 30.0

TASK = """\
    import dataclasses

    import jax.numpy as jnp
    import numpy as np
    import optax

    import paceline
    from tests.train import saving

    X = np.random.default_rng(0).normal(size=256).astype(np.float32)


    class Rows:
        def __init__(self, count):
            self.count, self.reads = count, 0

        def __len__(self):
            return self.count

        def read(self, indices):
            self.reads += 1
            saving.at_read(self.reads)
            return {"x": X[indices], "y": 3 * X[indices] + 1}


    @dataclasses.dataclass(frozen=True)
    class Options:
        large: int = 1
        rows: int = 64


    def loss(params, batch):
        return (batch["x"] * params["w"] + params["b"] + params["large"].mean() - batch["y"]) ** 2


    def build(options, shape):
        init = lambda rng: {"w": jnp.zeros(()), "b": jnp.zeros(()), "large": jnp.zeros(options.large)}
        return paceline.Job(
            paceline.task(loss, init=init, name="saved"), optax.sgd(0.1, momentum=0.9), Rows(options.rows),
            evaluation={"x": X[:16], "y": 3 * X[:16] + 1},
        )


    recipe = paceline.Recipe(build=build, options=Options, batch=16)
"""


def at_read(number: int) -> None:
    """Called before each batch is read; tests put something in its place."""


class Ran(NamedTuple):
    """Exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def write_task(folder: Path) -> str:
    """The task file, as an argument of the command."""
    path = folder / "saved.py"
    path.write_text(textwrap.dedent(TASK))
    return str(path)


def command(capfd: Any, *arguments: Any) -> Ran:
    """A command in this process."""
    capfd.readouterr()
    code = main([str(argument) for argument in arguments])
    return Ran(code, *capfd.readouterr())


def until_saved(run: Path, step: int) -> None:
    """Wait for a checkpoint."""
    end_s = time.monotonic() + PATIENCE_S
    while step not in steps(run):
        assert time.monotonic() < end_s, f"{steps(run)}: no checkpoint of step {step}"
        time.sleep(0.002)


@contextlib.contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[Callable[[str], None]]:
    """A file system of its own at a folder; gives a function that mounts it again with other options."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system takes root and the program mount")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield lambda options: subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no room."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
