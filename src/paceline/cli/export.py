"""`paceline export RUN FILE.safetensors`: the weights of a checkpoint, for other programs.

Owns: the options of the command.
Not here: reading and writing (`checkpoint.weights`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.base.errors import OptionError
from paceline.cli.options import parse
from paceline.cli.reporting import reporting


@dataclass(frozen=True)
class ExportOptions:
    """Options of `paceline export`.

    Args:
      step: of which checkpoint (default: the latest sound one).
      ema: the moving average of the parameters instead of the parameters.
      json: write what was done to this file as one JSON object.
      traceback: show Python's traceback for errors.
    """

    step: int | None = None
    ema: bool = False
    json: str | None = None
    traceback: bool = False


def run(arguments: list[str]) -> int:
    """Export as the arguments say; returns the exit code."""
    return reporting(arguments, _export)


def _export(arguments: list[str]) -> tuple[dict[str, Any], int]:
    places, flags = _divide(arguments)
    options: ExportOptions = parse(
        flags,
        program="paceline export RUN FILE",
        description="Write the weights of a checkpoint to a safetensors file.",
        groups={"export": ExportOptions()},
    )["export"]
    if len(places) != 2:
        raise OptionError(
            what=f"paceline export was given {len(places)} of its two places",
            why="it reads the checkpoints of a run and writes a file",
            fix="use paceline export RUN_FOLDER FILE.safetensors",
        )
    from paceline.checkpoint.weights import export_checkpoint

    step = export_checkpoint(places[0], places[1], step=options.step, ema=options.ema)
    print(f"wrote {places[1]}: the {'moving average' if options.ema else 'parameters'} after step {step}")
    return {"file": places[1], "step": step, "ema": options.ema}, 0


def _divide(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the first flag, and the rest."""
    first = next((number for number, text in enumerate(arguments) if text.startswith("-")), len(arguments))
    return arguments[:first], arguments[first:]
