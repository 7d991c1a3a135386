"""`paceline compare A B ...`: runs and results side by side, as text, picture or one HTML file.

Owns: the options of the command, what is printed and written, and in which order.
Not here: the comparison (`dashboard.compare`), the same on a page that follows runs (`cli.watch`).
Invariant: every subject is read, and every file that is asked for could be written, before anything is written; no
subject and nothing in a run is replaced. What is drawn comes last: a drawing that fails takes nothing else away.
This module imports no jax.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.base.errors import OptionError
from paceline.base.figures import PAGES, FigureError, check_figure
from paceline.cli.options import early_value, parse
from paceline.cli.reporting import refuse_target, reporting
from paceline.dashboard.compare.document import compare_document
from paceline.dashboard.compare.figure import write_figure
from paceline.dashboard.compare.page import write_page
from paceline.dashboard.compare.subjects import load_subject
from paceline.dashboard.compare.text import compare_lines
from paceline.telemetry.folder import RUN_FILE

_USUAL_WIDTH = 120
_TARGETS = ("png", "html", "json")


@dataclass(frozen=True)
class CompareOptions:
    """Options of `paceline compare`.

    Args:
      png: draw the comparison into this file (.png or .svg).
      html: write the comparison to this file as one HTML page.
      json: write the comparison to this file as one JSON object.
      traceback: show Python's traceback for errors.
    """

    png: str | None = None
    html: str | None = None
    json: str | None = None
    traceback: bool = False


def run(arguments: list[str]) -> int:
    """Compare as the arguments say; returns the exit code."""
    _check_targets(arguments)  # before `reporting`, which writes the error to --json
    found: list[tuple[dict[str, Any], CompareOptions]] = []

    def compared(arguments: list[str]) -> tuple[dict[str, Any], int]:
        found.append(_compare(arguments))
        return found[0][0], 0

    code = reporting(arguments, compared)
    _draw(*found[0])
    return code


def _compare(arguments: list[str]) -> tuple[dict[str, Any], CompareOptions]:
    paths, flags = _divide(arguments)
    options: CompareOptions = parse(
        flags,
        program="paceline compare A B ...",
        description="Runs (folders) and results (JSON files of scale, plan, verify) side by side.",
        groups={"compare": CompareOptions()},
    )["compare"]
    if not paths:
        raise OptionError(
            what="paceline compare was given nothing to compare",
            why="it reads runs, and files that paceline scale, plan or verify wrote",
            fix="use paceline compare runs/a runs/b, or paceline compare scale.json plan.json",
        )
    if options.png is not None:
        check_figure(options.png, flag="png")
    if options.html is not None:
        check_figure(options.html, flag="html", endings=PAGES)
    document = compare_document([load_subject(path) for path in paths])
    print("\n".join(compare_lines(document, width=shutil.get_terminal_size((_USUAL_WIDTH, 24)).columns)))
    return document, options


def _draw(document: dict[str, Any], options: CompareOptions) -> None:
    """Picture and page, each whether or not the other fails. Raises: FigureError: for all that failed."""
    failed: list[FigureError] = []
    for name, path, write in (("page", options.html, write_page), ("picture", options.png, write_figure)):
        if path is None:
            continue
        try:
            write(document, path)
        except FigureError as error:
            failed.append(error)
        else:
            print(f"{name}: {path}")
    if failed:
        what = "; ".join(error.what for error in failed)
        raise FigureError(what=what, why=failed[0].why, fix=failed[0].fix) from failed[0]


def _check_targets(arguments: list[str]) -> None:
    """Raise OptionError if a file that is asked for is a subject, lies in a run, or is asked for twice."""
    paths, _ = _divide(arguments)
    subjects = {os.path.realpath(os.path.expanduser(path)): path for path in paths}
    taken: dict[str, str] = {}
    for flag in _TARGETS:
        target = early_value(arguments, flag)
        if not target:
            continue
        place = os.path.realpath(target)
        if place in subjects:
            raise refuse_target(flag, target, why=f"it would replace {subjects[place]}, which is to be compared")
        run = next((folder for folder in Path(place).parents if (folder / RUN_FILE).is_file()), None)
        if run is not None:
            raise refuse_target(flag, target, why=f"it lies in the run {run}, whose files are its record")
        if place in taken:
            raise refuse_target(flag, target, why=f"--{taken[place]} names the same file, and one would be lost")
        taken[place] = flag


def _divide(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Subjects, and flags with their values; subjects may stand on both sides of the flags."""
    paths: list[str] = []
    flags: list[str] = []
    takes_value = {f"--{flag}" for flag in _TARGETS}
    for number, argument in enumerate(arguments):
        before = arguments[number - 1] if number else ""
        is_flag = argument.startswith("-") or before in takes_value
        (flags if is_flag else paths).append(argument)
    return paths, flags
