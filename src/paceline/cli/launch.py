"""`paceline launch -n P -- COMMAND...`: several processes of one run on this machine, watched, or a scheduler's file.

Owns: the options of the command, the division at ``--``, the JSON document.
Not here: the supervisor (`launch.supervisor`), the texts of the files (`launch.templates`).

This module imports no jax: the supervisor must take no device from the processes that it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from paceline.base.errors import OptionError, PacelineError
from paceline.cli.options import find_value, parse
from paceline.cli.reporting import check_writable
from paceline.launch.machine import gpu_count
from paceline.launch.settings import Launch, check_command, check_numbers
from paceline.launch.supervisor import run as run_launch
from paceline.launch.templates import kubernetes, slurm
from paceline.launch.templates.job import job_for, write_job
from paceline.telemetry.document import write_document


@dataclass(frozen=True)
class LaunchOptions:
    """Options of `paceline launch`.

    Args:
      processes: processes on each machine.
      devices_per_process: GPUs that each process takes, or CPU devices that it simulates.
      nodes: machines that take part; start the same command on each.
      node_index: this machine, counted from 0.
      coordinator: host:port where process 0 listens (default: a free port of this machine).
      max_restarts: start all processes again after a failure, at most so often.
      hang_timeout: seconds without progress, or 10 median steps if that is more, after which a process hangs (0: off).
      compile_timeout: the same while a process starts or compiles.
      stop_grace: seconds that processes may take to save after Ctrl-C or SIGTERM.
      logs: folder for logs (default: a new one in runs/).
      oversubscribe: allow more processes than cores.
      attempt: number of the first attempt; above 0 the run of the logs folder goes on, as after a scheduler's requeue.
      write: instead of launching, write a scheduler's file: slurm FILE or kubernetes FILE.
      gpus_per_node: GPUs of each machine, for --write.
      image: container image, for --write.
      time: time limit such as 12:00:00, for --write slurm.
      json: write exit code, attempts and failures to this file as one JSON object.
      traceback: show Python's traceback for errors.
    """

    processes: Annotated[int | None, tyro.conf.arg(aliases=["-n"])] = None
    devices_per_process: int | None = None
    nodes: int = 1
    node_index: int = 0
    coordinator: str | None = None
    max_restarts: int = 0
    hang_timeout: float = 60.0
    compile_timeout: float = 600.0
    stop_grace: float = 60.0
    logs: str | None = None
    oversubscribe: bool = False
    attempt: int = 0
    write: tuple[Literal["slurm", "kubernetes"], str] | None = None
    gpus_per_node: int | None = None
    image: str | None = None
    time: str | None = None
    json: str | None = None
    traceback: bool = False


def run(arguments: list[str]) -> int:
    """Launch, or write a file, as the arguments say; the exit code is that of the run."""
    flags, command = divide(arguments)
    path = find_value(flags, "json")
    if path is not None:
        check_writable(path)
    try:
        document = launch_or_write(flags, command)
    except PacelineError as error:
        if path is not None:
            write_document(Path(path), {"exit_code": error.exit_code, "attempts": [], "error": error.as_dict()})
        raise
    if path is not None:
        write_document(Path(path), document)
    return document["exit_code"]


def divide(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags before the first ``--``, the command behind it.

    Raises: OptionError: there is no ``--``, and no call for help.
    """
    if "--" in arguments:
        place = arguments.index("--")
        return list(arguments[:place]), list(arguments[place + 1 :])
    if {"-h", "--help"} & set(arguments):
        return list(arguments), []
    raise OptionError(
        what="paceline launch has no -- before a command",
        why="it divides the options of launch from the command that each process runs",
        fix="use paceline launch -n 2 -- paceline train NAME",
    )


def launch_or_write(flags: list[str], command: list[str]) -> dict[str, Any]:
    """Launch the command, or write a file, as the flags say; what ``--json`` of this command writes.

    Raises: PacelineError: a mistake in the flags; nothing runs then.
    """
    options: LaunchOptions = parse(
        flags,
        program="paceline launch",
        description="Start several processes of one run, watch them, restart them. Put -- and the command last.",
        groups={"launch": LaunchOptions()},
    )["launch"]
    _refuse_options_without_effect(options)
    if options.write is None:
        return run_launch(_launch(options, command)).as_dict()
    kind, path = options.write
    launch = _launch(options, command)
    check_numbers(launch)
    if not command:  # one that is not on this machine may be on the cluster
        check_command(command)
    job = job_for(launch, path=Path(path), gpus_per_node=options.gpus_per_node, image=options.image, time=options.time)
    write_job(Path(path), (slurm if kind == "slurm" else kubernetes).render(job))
    start = f"sbatch {path}" if kind == "slurm" else f"kubectl apply -f {path}"
    print(f"wrote {path}; start it with {start}")
    return {"exit_code": 0, "attempts": [], "written": path}


def _launch(options: LaunchOptions, command: list[str]) -> Launch:
    return Launch(
        command=command,
        processes=_processes(options),
        devices_per_process=options.devices_per_process,
        nodes=options.nodes,
        node_index=options.node_index,
        coordinator=options.coordinator,
        max_restarts=options.max_restarts,
        hang_timeout_s=options.hang_timeout,
        compile_timeout_s=options.compile_timeout,
        stop_grace_s=options.stop_grace,
        logs=None if options.logs is None else Path(options.logs),
        oversubscribe=options.oversubscribe,
        first_attempt=options.attempt,
    )


def _processes(options: LaunchOptions) -> int:
    if options.processes is not None:
        return options.processes
    gpus = options.gpus_per_node if options.write else gpu_count()
    if gpus and gpus > 0:
        return max(1, gpus // (options.devices_per_process or 1))
    raise OptionError(
        what="paceline launch was not told how many processes to start",
        why="without GPUs to count there is no right number",
        fix="use -n 2 or another number",
    )


def _refuse_options_without_effect(options: LaunchOptions) -> None:
    """Some options describe a scheduler's job, others are the scheduler's to fill in."""
    kind = None if options.write is None else options.write[0]
    if kind is None:
        idle, fix = ("gpus_per_node", "image", "time"), ", or add --write slurm FILE or --write kubernetes FILE"
    else:
        idle, fix = ("node_index", "coordinator", "attempt"), ": the file takes it from the scheduler"
    if kind == "kubernetes":
        idle = (*idle, "time")
    for name in idle:
        if getattr(options, name) != getattr(LaunchOptions, name):
            flag = f"--{name.replace('_', '-')}"
            raise OptionError(
                what=f"{flag} {'without --write' if kind is None else f'with --write {kind}'}",
                why="it would have no effect",
                fix=f"remove {flag}{fix}",
            )
