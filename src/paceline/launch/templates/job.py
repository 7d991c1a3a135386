"""What every scheduler's file needs to know, and writing it.

Owns: the job's name, the division of GPUs among processes, refusing to overwrite.
Not here: the texts (`slurm`, `kubernetes`).
Invariant: a file that is there is never changed.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from paceline.base.errors import OptionError
from paceline.launch.settings import Launch

WARNING_S = 120
"""Seconds before the end of its time at which a job is told to save."""


@dataclass(frozen=True)
class Job:
    """A launch on machines that a scheduler chooses.

    Args:
      launch: of each machine; node index and coordinator are the scheduler's to fill in.
      name: lower-case letters, digits and dashes, as Kubernetes asks.
      gpus_per_node: GPUs of a machine; 0 for none.
      image: container image, or None.
      time: limit as Slurm writes it, or None for the cluster's.
    """

    launch: Launch
    name: str
    gpus_per_node: int = 0
    image: str | None = None
    time: str | None = None

    def options(self) -> list[str]:
        """Options of `paceline launch` that are the same on each machine."""
        launch, default = self.launch, Launch([], 1)
        options = ["-n", str(launch.processes), "--nodes", str(launch.nodes)]
        flags = (
            ("--devices-per-process", launch.devices_per_process, None),
            ("--max-restarts", launch.max_restarts, default.max_restarts),
            ("--hang-timeout", launch.hang_timeout_s, default.hang_timeout_s),
            ("--compile-timeout", launch.compile_timeout_s, default.compile_timeout_s),
            ("--stop-grace", launch.stop_grace_s, default.stop_grace_s),
        )
        for flag, value, usual in flags:
            if value is not None and value != usual:
                options += [flag, f"{value:g}"]
        return options + ["--oversubscribe"] * launch.oversubscribe


def job_for(launch: Launch, *, path: Path, gpus_per_node: int | None, image: str | None, time: str | None) -> Job:
    """A job named after its file, with the GPUs of a machine divided evenly among its processes.

    Raises: OptionError: more GPUs asked for than a machine has, or a time that Slurm does not read.
    """
    gpus = gpus_per_node or 0
    if gpus < 0:
        raise OptionError(what=f"--gpus-per-node {gpus}", why="it counts things", fix="use --gpus-per-node 1 or more")
    if gpus:
        launch = dataclasses.replace(launch, devices_per_process=_gpus_each(launch, gpus))
    if time is not None and not re.fullmatch(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}", time):
        raise OptionError(
            what=f"--time {time}",
            why="a scheduler reads minutes, hours:minutes:seconds or days-hours:minutes:seconds",
            fix="use for example --time 12:00:00",
        )
    name = re.sub(r"[^a-z0-9]+", "-", path.name.partition(".")[0].lower()).strip("-")[:30].strip("-")
    name = name if name[:1].isalpha() else f"paceline-{name}".rstrip("-")
    return Job(launch, name, gpus, image, time)


def write_job(path: Path, text: str) -> None:
    """Write a new file.

    Raises: OptionError: it is there already, or cannot be written.
    """
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise OptionError(
            what=f"--write: {str(path)!r} is there already",
            why="you may have changed it",
            fix="choose another name, or remove it",
        ) from error
    except OSError as error:
        raise OptionError(
            what=f"--write: {str(path)!r} cannot be written: {error.strerror}",
            why="there would be no file",
            fix="choose a file in a folder that exists and that you can write to",
        ) from error


def _gpus_each(launch: Launch, gpus: int) -> int:
    each = launch.devices_per_process or gpus // launch.processes
    if each < 1 or each * launch.processes > gpus:
        raise OptionError(
            what=f"{launch.processes} processes with {max(each, 1)} GPU each on machines with {gpus}",
            why="two processes on one GPU share its memory and wait for each other",
            fix=f"use at most -n {gpus}, or more --gpus-per-node",
        )
    return each
