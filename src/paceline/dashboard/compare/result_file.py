"""Which command wrote a JSON file, told by its keys, and the part of it that a comparison needs.

Owns: the error for a file that is no result, reading a document into a typed form.
Not here: what the numbers mean (`from_scale`, `from_plan`, `from_verify`).
Invariant: a file that is not wholly understood is refused with the place in it; no number is guessed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from paceline.base.errors import PacelineError

T = TypeVar("T")

ResultKind = Literal["scale", "plan", "verify"]
NonFinite = Literal["nan", "inf", "-inf"]
Real = int | float | NonFinite
Devices = Annotated[int, msgspec.Meta(ge=1)]

_LARGEST = int(sys.float_info.max)
_KEYS: dict[ResultKind, frozenset[str]] = {
    "scale": frozenset({"scalings", "platform"}),
    "plan": frozenset({"plan", "config"}),
    "verify": frozenset({"ok", "results", "subject"}),
}


class SubjectError(PacelineError):
    """Something that is to be compared is no run and no result."""


class Config(msgspec.Struct):
    """The ``config`` that every command writes: what it was asked for."""

    target: str = ""
    options: dict[str, Any] = {}
    recipe: dict[str, Any] = {}


def kind_of(document: Mapping[str, Any]) -> ResultKind | None:
    """Which command wrote it; None for none that can be compared."""
    for kind, keys in _KEYS.items():
        if keys <= document.keys():
            return kind
    return None


def check_kind(document: Mapping[str, Any], path: str) -> ResultKind:
    """The kind. Raises: SubjectError: it is none, with what the file is instead where that can be told."""
    kind = kind_of(document)
    if kind is not None:
        return kind
    error = document.get("error")
    if isinstance(error, Mapping):
        raise SubjectError(
            what=f"{path} holds the error of a command: {error.get('what', 'it does not say which')}",
            why="a command that failed has no numbers to compare",
            fix="run the command again; it replaces the file",
        )
    report = document.get("report")
    if isinstance(report, Mapping):
        folder = report.get("run_folder")
        raise SubjectError(
            what=f"{path} is the report of a run, not the run",
            why="its steps, from which curves and intervals come, lie in the folder of the run",
            fix=f"name the folder: {folder}" if isinstance(folder, str) else "name the folder that the run printed",
        )
    known = ", ".join(str(key) for key in list(document)[:5]) or "none"
    raise SubjectError(
        what=f"{path} is no result that can be compared; its keys: {known}",
        why="runs are folders; results are files of paceline scale, plan or verify",
        fix="name the folder of a run, or a file that paceline scale, plan or verify wrote with --json FILE",
    )


def check_numbers(content: Any, path: str, *, command: str) -> None:
    """Raises: SubjectError: a whole number is beyond a float, with its place: nothing could be reckoned with it."""
    place = _beyond(content)
    if place is not None:
        raise damaged(path, command=command, reason=f"the number at `{place}` is beyond 1.8e308")


def _beyond(value: Any) -> str | None:
    """The place of the first whole number beyond a float, such as ``plan.devices``; None if there is none."""
    if isinstance(value, int):
        return None if abs(value) <= _LARGEST else ""
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        found = _beyond(part)
        if found is not None:
            return f"{name}.{found}".rstrip(".")
    return None


def typed(content: Any, form: type[T], *, path: str, command: str) -> T:
    """``content`` in that form. Raises: SubjectError: it lacks a part, or has another type there."""
    try:
        return msgspec.convert(content, type=form)
    except msgspec.ValidationError as error:
        raise damaged(path, command=command, reason=str(error)) from error


def damaged(path: str, *, command: str, reason: str) -> SubjectError:
    """The error for a result that cannot be read."""
    return SubjectError(
        what=f"{path} looks like a result of paceline {command}, but cannot be read: {reason}",
        why="it is damaged, or was written by another version",
        fix=f"write it again with paceline {command} --json {path}",
    )


def real(value: Real) -> int | float:
    """The number, which JSON may have as "nan", "inf" or "-inf"."""
    return float(value)


def options_of(config: Config) -> dict[str, Any]:
    """Options that shape what is computed, by the name under which differences are said."""
    skipped = _OWN_OPTIONS
    step = {name: value for name, value in config.options.items() if name not in skipped}
    return {**step, **{f"{TASK_OPTION}{name}": value for name, value in config.recipe.items()}}


TASK_OPTION = "task option "
"""Before the name of an option of the task's own."""

_OWN_OPTIONS = frozenset({
    "scheme", "placement", "precision", "accumulation", "batch", "devices",  # settings: compared as such
    "json", "config", "traceback", "figure", "html", "profile", "run", "progress", "watch", "log_to",  # where it writes
    "mode", "repeats", "seconds", "network", "plan", "simulate", "on", "nodes", "link", "curves", "rate", "cache",
    "input_rate", "samples", "price", "noise_scale_rows", "compare", "confirm",  # how it was measured or predicted
    "evaluate_every", "audit_every", "on_divergence", "checkpoint_every", "keep", "keep_best", "on_save_failure",
    "resume", "epochs", "steps", "compilation_cache", "processes", "max_restarts", "coordinator", "num_processes",
    "process_index", "devices_per_process", "join_timeout", "peer_timeout",  # how the run was carried out
})  # fmt: skip
"""Options that do not change what a step computes."""
