"""Several processes, from the command line: starting them, joining them, one voice for errors.

Owns: ``--processes P``, the join before anything uses a device, the run folder that attempts of one launch share, who
prints an error that all have.
Not here: the supervisor (`launch`), joining itself (`topology.processes`).

This module imports no jax: a supervisor starts at once and takes no device.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from paceline.base import launched
from paceline.base.errors import OptionError
from paceline.cli.options import early_value

_RUN_FILE = "run-folder"


def launch_if_asked(arguments: list[str]) -> int | None:
    """With ``--processes P``: start them and return the run's exit code; None without it, or in one of them."""
    asked = early_value(arguments, "processes")
    if asked is None or launched.NUM_PROCESSES in os.environ:
        return None
    from paceline.cli import launch

    flags = ["-n", asked]
    for name in ("devices-per-process", "max-restarts"):
        value = early_value(arguments, name.replace("-", "_"))
        flags += [] if value is None else [f"--{name}", value]
    if early_value(arguments, "devices_per_process") is None and (simulated := early_value(arguments, "simulate")):
        flags += ["--devices-per-process", _share(simulated, asked)]
    command = [sys.executable, "-m", "paceline.cli.main", "train", *arguments]
    if "--devices-per-process" in flags:  # simulated devices share the cores in any case
        flags.append("--oversubscribe")
    return launch.run([*flags, "--", *command])


def _share(simulated: str, processes: str) -> str:
    """Of ``--simulate K`` devices each process makes K / P."""
    if not (simulated.isdigit() and processes.isdigit() and int(processes)) or int(simulated) % int(processes):
        raise OptionError(
            what=f"--simulate {simulated} with --processes {processes}",
            why="every process simulates the same number of devices",
            fix=f"use a multiple of {processes} for --simulate",
        )
    return str(int(simulated) // int(processes))


def join(arguments: list[str]) -> bool:
    """Join the other processes if there are any; returns whether there are.

    Raises: as `topology.processes.initialize`.
    """
    from paceline.topology.processes import initialize

    devices = _number(arguments, "devices_per_process")
    if devices is None and launched.DEVICES_PER_PROCESS not in os.environ:
        simulated = early_value(arguments, "simulate") or ""
        devices = int(simulated) if simulated.isdigit() else None  # anything else is reported by the parser
    team = initialize(
        early_value(arguments, "coordinator"),
        num_processes=_number(arguments, "num_processes"),
        process_index=_number(arguments, "process_index"),
        devices_per_process=devices,
        join_timeout_s=_seconds(arguments, "join_timeout", default=60.0),
        peer_timeout_s=_seconds(arguments, "peer_timeout", default=30.0),
    )
    return team.several


def _number(arguments: list[str], name: str) -> int | None:
    value = early_value(arguments, name)
    if value is None:
        return None
    if not value.isdigit():
        raise _no_number(name, value)
    return int(value)


def _seconds(arguments: list[str], name: str, *, default: float) -> float:
    value = early_value(arguments, name)
    if value is None:
        return default
    try:
        return float(value)
    except ValueError as error:
        raise _no_number(name, value) from error


def _no_number(name: str, value: str) -> OptionError:
    flag = name.replace("_", "-")
    return OptionError(
        what=f"--{flag} {value}",
        why="it says how the processes of the run join",
        fix=f"use --{flag} with a number",
    )


class LaunchFolder:
    """What the attempts of one launch tell each other: the folder of the run."""

    def run_of_earlier_attempt(self) -> str | None:
        """The run folder of the attempt before this one; None at the first attempt, or if that came to none."""
        folder = os.environ.get(launched.LAUNCH_FOLDER)
        if folder is None or os.environ.get(launched.ATTEMPT, "0") == "0":
            return None
        try:
            return (Path(folder) / _RUN_FILE).read_text() or None
        except OSError:
            return None


launch_folder = LaunchFolder()


def remember_run(path: str) -> None:
    """Write down the run folder for a later attempt of this launch."""
    folder = os.environ.get(launched.LAUNCH_FOLDER)
    if folder is not None and os.environ.get(launched.PROCESS_INDEX, "0") == "0":
        (Path(folder) / _RUN_FILE).write_text(os.path.abspath(path))
