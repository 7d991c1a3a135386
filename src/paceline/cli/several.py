"""Several processes, from the command line: starting them, joining them, one voice for errors.

Owns: ``--processes P`` and the flags that go with it, ``--json`` of a run whose processes could not write it, the join
before anything uses a device, the run folder that attempts of one launch share.
Not here: the supervisor (`launch`), joining itself (`topology.processes`).

This module imports no jax: a supervisor starts at once and takes no device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.base import launched
from paceline.base.errors import OptionError, PacelineError, ProcessError
from paceline.base.regular import read_regular
from paceline.cli.options import early_value
from paceline.cli.reporting import check_writable
from paceline.cli.voice import is_first
from paceline.telemetry.document import write_document

_RUN_FILE = "run-folder"
_WITH_VALUE = ("logs", "hang-timeout", "compile-timeout", "stop-grace")
_SWITCHES = ("oversubscribe",)


def launch_if_asked(arguments: list[str]) -> int | None:
    """With ``--processes P``: start them and return the run's exit code; None without it, or in one of them.

    However the launch ends, the file of ``--json`` is there: the report of process 0, or the error.

    Raises: PacelineError: a mistake in the options of the launch; nothing has started then.
    """
    if launched.NUM_PROCESSES in os.environ:
        return None
    path = early_value(arguments, "json")
    if path is not None:
        check_writable(path)
    before = path and _written_at(path)
    try:
        asked = _asked(arguments)
        if asked is None:
            return None
        document = _launch(arguments, asked)
    except PacelineError as error:
        _write_error(path, error)
        raise
    if path and document["exit_code"] and _written_at(path) == before:  # else process 0 told by itself
        _write_error(path, _error_of(document))
    return document["exit_code"]


def _asked(arguments: list[str]) -> str | None:
    """The number of processes; None for a run of this process alone, which nobody can start again."""
    asked, restarts = early_value(arguments, "processes"), early_value(arguments, "max_restarts")
    if asked is None and restarts not in (None, "0"):
        raise OptionError(
            what=f"--max-restarts {restarts} without --processes",
            why="a process that ended cannot start itself again",
            fix="add --processes P, or use paceline launch --max-restarts N -- paceline train NAME",
        )
    if asked is not None and (not asked.isdecimal() or int(asked) < 1):
        raise OptionError(
            what=f"--processes {asked}",
            why="it counts the processes that train together",
            fix="use --processes 1 or more",
        )
    return asked


def _launch(arguments: list[str], asked: str) -> dict[str, Any]:
    from paceline.cli import launch

    own, rest = _divide(arguments)
    flags = ["--processes", asked]
    for name in ("devices-per-process", "max-restarts"):
        value = early_value(arguments, name.replace("-", "_"))
        flags += [] if value is None else [f"--{name}", value]
    if early_value(arguments, "devices_per_process") is None and (simulated := early_value(arguments, "simulate")):
        flags += ["--devices-per-process", _share(simulated, asked)]
    if "--devices-per-process" in flags:  # simulated devices share the cores in any case
        flags.append("--oversubscribe")
    return launch.launch_or_write([*flags, *own], [sys.executable, "-m", "paceline.cli.main", "train", *rest])


def _divide(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Flags that only the launch knows, and what is left for each process."""
    own: list[str] = []
    rest: list[str] = []
    wants_value = False
    for argument in arguments:
        name, has_value, _ = argument.partition("=")
        name = name[2:].replace("_", "-") if name.startswith("--") else ""
        if name in _WITH_VALUE or name in _SWITCHES:
            own.append(argument)
            wants_value = name in _WITH_VALUE and not has_value
        else:
            (own if wants_value and not name else rest).append(argument)
            wants_value = False
    return own, rest


def _written_at(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _write_error(path: str | None, error: PacelineError) -> None:
    if path is not None and is_first():
        write_document(Path(path), {"error": error.as_dict()})


def _error_of(document: Mapping[str, Any]) -> ProcessError:
    """The error of a launch whose processes left no report."""
    last = document["attempts"][-1]
    first = last["first_failing"]
    told = _main_line(first["error"]) if first else ""
    return ProcessError(
        what=f"{last['words']}: {told}" if told else last["words"],
        why="the run ended before process 0 could write its report",
        fix=f"see {first['log']} for all that it said" if first else f"see the logs in {document['logs']}",
    )


def _main_line(error: str) -> str:
    """Of a traceback the last line, of an error of ours the first; empty for stacks and output."""
    if error.startswith("Traceback"):
        return error.rsplit("\n", 1)[-1]
    return error.partition("\n")[0].removeprefix("error: ") if error.startswith("error: ") else ""


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


def run_of_earlier_attempt() -> str | None:
    """The run folder of the attempt of this launch before this one; None at the first, or if that came to none."""
    folder = os.environ.get(launched.LAUNCH_FOLDER)
    if folder is None or os.environ.get(launched.ATTEMPT, "0") == "0":
        return None
    try:
        return read_regular(Path(folder) / _RUN_FILE).decode() or None
    except OSError:
        return None


def remember_run(path: str) -> None:
    """Write down the run folder for a later attempt of this launch."""
    folder = os.environ.get(launched.LAUNCH_FOLDER)
    if folder is not None and os.environ.get(launched.PROCESS_INDEX, "0") == "0":
        (Path(folder) / _RUN_FILE).write_text(os.path.abspath(path))
