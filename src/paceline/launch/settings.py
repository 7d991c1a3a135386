"""What a supervisor is asked to do, and whether this machine can.

Owns: the options of a launch, their checks before anything starts, the command as it will be run.
Not here: flags (`cli.launch`), what the processes themselves find wrong (`topology.processes`).
Invariant: a launch that passed `check` fails later only for reasons that the processes themselves have.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.base.errors import OptionError, ProcessError, RunFolderError
from paceline.launch.machine import gpu_count, is_port_free, usable_cores


@dataclass(frozen=True)
class Launch:
    """One launch on one machine.

    Args:
      command: program and arguments that every process runs.
      processes: processes on this machine.
      devices_per_process: GPUs that each takes, or CPU devices that each simulates; None leaves it to the program.
      nodes: machines that take part, each with a supervisor of its own and as many processes.
      node_index: this machine, 0 to ``nodes`` - 1.
      coordinator: ``host:port`` of process 0; None chooses a free port, for one machine only.
      max_restarts: how often all processes are started again after a failure.
      hang_timeout_s: without any event for so long, or for 10 median steps if that is more, a process hangs; 0: never.
      compile_timeout_s: the same while it starts, restores or compiles.
      stop_grace_s: how long processes may take to save after Ctrl-C or SIGTERM.
      logs: folder for logs; None makes one in ``runs/``.
      oversubscribe: allow more processes than cores.
      first_attempt: above 0, the run that the logs folder tells of goes on, as after a scheduler's requeue.
    """

    command: Sequence[str]
    processes: int
    devices_per_process: int | None = None
    nodes: int = 1
    node_index: int = 0
    coordinator: str | None = None
    max_restarts: int = 0
    hang_timeout_s: float = 60.0
    compile_timeout_s: float = 600.0
    stop_grace_s: float = 60.0
    logs: Path | None = None
    oversubscribe: bool = False
    first_attempt: int = 0

    @property
    def indices(self) -> range:
        """Global indices of the processes on this machine."""
        return range(self.node_index * self.processes, (self.node_index + 1) * self.processes)


def check(launch: Launch, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse what cannot work before any process starts.

    Raises: OptionError: a number or the command makes no sense. ProcessError: too few devices or cores, or the
      coordinator's port is taken.
    """
    check_numbers(launch)
    check_command(launch.command)
    _check_nodes(launch)
    _check_devices(launch, environment)
    if launch.coordinator is not None:
        _check_coordinator(launch)


def check_numbers(launch: Launch) -> None:
    """Raise OptionError for a number out of its range. ``-n`` is called by its long name, which `train` has too."""
    counts = (("--processes", launch.processes, 1), ("--devices-per-process", launch.devices_per_process, 1))
    counts += (
        ("--nodes", launch.nodes, 1),
        ("--max-restarts", launch.max_restarts, 0),
        ("--attempt", launch.first_attempt, 0),
    )
    for flag, value, least in counts:
        if value is not None and value < least:
            raise OptionError(what=f"{flag} {value}", why="it counts things", fix=f"use {flag} {least} or more")
    times = (("--hang-timeout", launch.hang_timeout_s), ("--compile-timeout", launch.compile_timeout_s))
    for flag, value in (*times, ("--stop-grace", launch.stop_grace_s)):
        if not value >= 0:  # NaN too
            raise OptionError(what=f"{flag} {value:g}", why="it is a time in seconds", fix=f"use {flag} 0 or more")


def check_command(command: Sequence[str]) -> None:
    """Raise OptionError for a command that is empty or cannot be found."""
    if not command:
        raise OptionError(
            what="paceline launch was not told what to launch",
            why="everything behind -- is the command that each process runs",
            fix="use paceline launch -n 2 -- paceline train NAME",
        )
    program = command[0]
    if program == "paceline" or shutil.which(program) is not None:
        return
    fix = "check its name, or give its whole path"
    if program.endswith(".py") and Path(program).is_file():
        fix = f"use -- python {program}"
    raise OptionError(what=f"the command {program!r} is not there or cannot be run", why="nothing can start", fix=fix)


def runnable(command: Sequence[str]) -> list[str]:
    """The command with ``paceline`` as the program that is running now: one on PATH may be another version."""
    if command[0] != "paceline":
        return list(command)
    return [sys.executable, "-P", "-m", "paceline.cli.main", *command[1:]]


def make_logs(launch: Launch, *, now_s: float | None = None) -> Path:
    """The folder for logs, made if it is not there; absolute, as processes may change their own.

    Raises: RunFolderError: it cannot be made or written.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    folder = (launch.logs or Path("runs") / f"launch-{stamp}").absolute()
    try:
        if launch.logs is None:
            folder = _make_new(folder)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"  # access() says yes on a full or read-only disk
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise RunFolderError(
            what=f"the folder for logs {str(folder)!r} cannot be written: {error.strerror}",
            why="the output of the processes would be lost",
            fix="use --logs with a folder that you can write to",
        ) from error
    return folder


def _make_new(folder: Path) -> Path:
    """The folder, or one with a number behind its name where another launch of this second has it."""
    for number in range(1, 1000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            continue
    return folder


def _check_nodes(launch: Launch) -> None:
    if not 0 <= launch.node_index < launch.nodes:
        raise OptionError(
            what=f"--node-index {launch.node_index} with --nodes {launch.nodes}",
            why="the machines of a run are counted from 0",
            fix=f"use --nodes with all of them and --node-index 0 to {launch.nodes - 1}"
            if launch.nodes > 1
            else "give --nodes, the number of machines, too",
        )
    if launch.nodes > 1 and launch.coordinator is None:
        raise OptionError(
            what=f"--nodes {launch.nodes} without --coordinator",
            why="processes on several machines must know where process 0 listens",
            fix="use --coordinator HOST:PORT, the same on each machine, with the name of machine 0 and a free port",
        )


def _check_devices(launch: Launch, environment: Mapping[str, str]) -> None:
    gpus, cores = gpu_count(environment), usable_cores()
    each = launch.devices_per_process or 1
    if gpus and launch.processes * each > gpus:
        raise ProcessError(
            what=f"{launch.processes} processes with {each} GPU{'s' * (each > 1)} each; this machine shows {gpus}",
            why="two processes on one GPU share its memory and wait for each other",
            fix=f"use at most {gpus} in all: --processes {max(1, gpus // each)}"
            + (f" or --devices-per-process {gpus // launch.processes}" if gpus >= launch.processes else ""),
        )
    if not gpus and launch.processes > cores and not launch.oversubscribe:
        raise ProcessError(
            what=f"{launch.processes} processes on {cores} usable CPU core{'s' * (cores > 1)}",
            why="each computes all the time, so they would take turns and wait for each other",
            fix=f"use --processes {cores} or fewer, or --oversubscribe to try it all the same",
        )


def _check_coordinator(launch: Launch) -> None:
    host, _, port_text = (launch.coordinator or "").rpartition(":")
    if not host or not port_text.isdigit() or not 0 < int(port_text) < 65536:
        raise OptionError(
            what=f"--coordinator {launch.coordinator}",
            why="it says where process 0 listens, as host:port",
            fix="use --coordinator HOST:PORT with a port from 1024 to 65535",
        )
    if launch.node_index == 0 and not is_port_free(int(port_text)):
        raise ProcessError(
            what=f"port {port_text} of --coordinator {launch.coordinator} is taken on this machine",
            why="process 0 must listen there, and another program, perhaps an earlier run, does",
            fix="use another port, or stop that program (ss -ltnp shows it)"
            + ("; without --coordinator a free port is chosen" if launch.nodes == 1 else ""),
        )
