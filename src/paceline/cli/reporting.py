"""``--json FILE``: what a command found, or the error that ended it, as one JSON object.

Owns: when the file is tried, what is written to it however the command ends.
This module imports no jax.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.base.errors import OptionError, PacelineError
from paceline.cli.options import early_value
from paceline.cli.voice import is_first
from paceline.telemetry.document import write_document


def reporting(arguments: list[str], command: Callable[[list[str]], tuple[Mapping[str, Any], int]]) -> int:
    """Run a command that returns a JSON document and an exit code; the document, or the error, goes to ``--json``.

    Of several processes the first one writes.
    """
    path = early_value(arguments, "json")
    if path is not None:
        check_writable(path)
    try:
        document, code = command(arguments)
    except PacelineError as error:
        if path is not None and is_first():
            write_document(Path(path), {"error": error.as_dict()})
        raise
    if path is not None and is_first():
        write_document(Path(path), dict(document))
    return code


def check_writable(path: str) -> None:
    """Raise OptionError now rather than after the run."""
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or Path(path).is_dir():
        raise OptionError(
            what=f"--json {path}: the file cannot be written",
            why="the report of the run would be lost",
            fix="choose a file in a folder that exists and that you can write to",
        )
