"""``--json FILE``: what a command found, or the error that ended it, as one JSON object.

Owns: when the file is tried, what is written to it however the command ends, what it must not replace.
This module imports no jax.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from paceline.base.errors import OptionError, PacelineError
from paceline.base.regular import in_place_of, reason
from paceline.cli.options import early_value
from paceline.cli.voice import is_first
from paceline.telemetry.document import write_document
from paceline.telemetry.exporters.ledger import EXPORTS_FILE
from paceline.telemetry.folder import PROGRAM_FILE, REPORT_FILE, RUN_FILE

_OF_A_RUN = (RUN_FILE, PROGRAM_FILE, REPORT_FILE, EXPORTS_FILE)


def reporting(arguments: list[str], command: Callable[[list[str]], tuple[Mapping[str, Any], int]]) -> int:
    """Run a command that returns a JSON document and an exit code; the document, or the error, goes to ``--json``.

    Of several processes the first one writes.
    """
    path = early_value(arguments, "json")
    if path is not None:
        check_writable(path)
        _check_spares(path, arguments)
    try:
        document, code = command(arguments)
    except PacelineError as error:
        if path is not None and is_first():
            with suppress(OSError):  # the error itself is what the user has to know
                write_document(Path(path), {"error": error.as_dict()})
        raise
    if path is not None and is_first():
        _write(path, document)
    return code


def _write(path: str, document: Mapping[str, Any]) -> None:
    try:
        write_document(Path(path), document)
    except OSError as error:
        raise OptionError(
            what=f"--json {path}: the file cannot be written: {reason(error)}",
            why="the command is done, but its report is nowhere but on the terminal",
            fix="free space there or choose another file, then give the command again",
        ) from error


def check_writable(path: str) -> None:
    """Raise OptionError now rather than after the run."""
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or Path(path).is_dir():
        raise OptionError(
            what=f"--json {path}: the file cannot be written",
            why="the report of the run would be lost",
            fix="choose a file in a folder that exists and that you can write to",
        )
    if Path(path).exists() and (instead := in_place_of(path)):
        raise OptionError(
            what=f"--json {path}: {instead}",
            why="the report is put in the place of what lies there, in one step, and would take it away",
            fix="choose the name of a file, and read that",
        )


def refuse_target(flag: str, path: str, *, why: str) -> OptionError:
    """The error for a file that a command was told to write, and that must stay as it is."""
    return OptionError(what=f"--{flag} {path}: the file is not written", why=why, fix="choose a name of its own for it")


def _check_spares(path: str, arguments: Sequence[str]) -> None:
    """Raise OptionError if the report would replace a record of a run, or a file that is named beside it."""
    place = Path(os.path.realpath(path))
    is_record = place.name in _OF_A_RUN or fnmatch(place.name, "events-*.jsonl")
    if is_record and (place.parent / RUN_FILE).is_file():
        raise refuse_target("json", path, why="it is a record of a run, which the report would replace")
    for number, argument in enumerate(arguments):
        flag, _, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
        if flag == "--json" or (number and arguments[number - 1] == "--json"):
            continue
        if value and os.path.realpath(os.path.expanduser(value)) == str(place):
            raise refuse_target("json", path, why="the command line names that file for something else too")
