"""`paceline log RUN --to EXPORTER`: the events of a run, finished or still going on, for another program.

Owns: the options of the command.
Not here: exporters and what they have already (`telemetry.exporters`). Imports no jax.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import tyro

from paceline.base.errors import OptionError
from paceline.cli.options import parse
from paceline.cli.reporting import reporting
from paceline.telemetry.exporters.exporter import EXPORTERS, exporter_names
from paceline.telemetry.exporters.replay import Exported, export_run
from paceline.telemetry.folder import RunFolder


@dataclass(frozen=True)
class LogOptions:
    """Options of `paceline log`.

    Args:
      to: tensorboard, wandb, mlflow; several with commas between, or the option several times.
      follow: go on until the run ends (Ctrl-C stops).
      again: export the whole run anew, whatever was exported before.
      json: write what was done to this file as one JSON object.
      traceback: show Python's traceback for errors.
    """

    to: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    follow: bool = False
    again: bool = False
    json: str | None = None
    traceback: bool = False


def run(arguments: list[str]) -> int:
    """Export as the arguments say; returns the exit code."""
    return reporting(arguments, _log)


def _log(arguments: list[str]) -> tuple[dict[str, Any], int]:
    first = next((number for number, text in enumerate(arguments) if text.startswith("-")), len(arguments))
    places, flags = arguments[:first], arguments[first:]
    if not places and not {"-h", "--help"} & set(flags):
        raise _not_one(places)
    options: LogOptions = parse(
        flags,
        program="paceline log RUN",
        description="Hand the events of a run to TensorBoard, Weights & Biases or MLflow.",
        groups={"log": LogOptions()},
    )["log"]
    if len(places) != 1:
        raise _not_one(places)
    names = exporter_names(options.to)
    if not names:
        raise OptionError(
            what="paceline log without --to",
            why="nothing says where the events go",
            fix=f"add --to with one or more of {', '.join(EXPORTERS)}",
        )
    if options.follow and len(names) > 1:
        raise OptionError(
            what=f"--follow with {len(names)} exporters",
            why="the first would be followed to the end of the run before the second begins",
            fix=f"give one command for each, such as paceline log {places[0]} --to {names[0]} --follow",
        )
    folder = RunFolder.open(places[0])
    done: list[Exported] = []
    for name in names:
        done.append(export_run(folder, name, again=options.again, follow=options.follow, wait=_wait))
        print(done[-1].line())
    return {"run": str(folder.path), "exported": [asdict(one) for one in done]}, 0


def _not_one(places: Sequence[str]) -> OptionError:
    return OptionError(
        what=f"paceline log was given {len(places)} run folders" + ("" if places else " before its options"),
        why="it exports one run",
        fix="use paceline log RUN_FOLDER --to tensorboard",
    )


def _wait(seconds: float) -> bool:
    """Sleeps; true if Ctrl-C ends the following, which is its usual end and no error."""
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        return True
    return False
