"""What `paceline plan` predicted, to stand beside what is measured.

Owns: reading the curve from the JSON file of a plan.
Not here: predicting (`insight.plan`).
Invariant: a file that holds no curve is refused; a number of devices that the curve lacks is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.base.errors import OptionError


@dataclass(frozen=True)
class Prediction:
    """One point of the curve of a plan.

    Args:
      samples_per_s: S_K.
      efficiency, efficiency_low, efficiency_high: E_K with its interval, as shares; None if the plan has none.
    """

    samples_per_s: float
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None


def read_predictions(path: str) -> dict[int, Prediction]:
    """The curve of a plan, by number of devices.

    Args:
      path: of the file that ``paceline plan --json`` wrote.
    Raises: OptionError: it cannot be read, is no JSON, or holds no curve.
    """
    fix = "write it with paceline plan TASK --on MACHINE --json FILE"
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            what=f"--plan {path}: {error.strerror}", why="there is no prediction to compare with", fix=fix
        ) from error
    except ValueError as error:
        raise OptionError(
            what=f"--plan {path} holds no JSON", why="there is no prediction to compare with", fix=fix
        ) from error
    curve = _curve(document)
    try:
        found = {int(point["devices"]): _prediction(point) for point in curve}
    except (KeyError, TypeError, ValueError) as error:
        raise _no_curve(path, fix) from error
    if not found:
        raise _no_curve(path, fix)
    return found


def _curve(document: Any) -> list[Any]:
    plan = document.get("plan") if isinstance(document, Mapping) else None
    curve = plan.get("curve") if isinstance(plan, Mapping) else None
    return curve if isinstance(curve, list) else []


def _prediction(point: Mapping[str, Any]) -> Prediction:
    def share(name: str) -> float | None:
        value = point.get(name)
        return None if value is None else float(value)

    return Prediction(
        float(point["samples_per_s"]), share("efficiency"), share("efficiency_low"), share("efficiency_high")
    )


def _no_curve(path: str, fix: str) -> OptionError:
    return OptionError(
        what=f"--plan {path} holds no predicted curve (plan.curve with devices and samples_per_s)",
        why="there is no prediction to compare with",
        fix=fix,
    )
