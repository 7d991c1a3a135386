"""Which checkpoints of a run are kept: the last ones, and the best by a metric.

Owns: the choice, the direction of the metric, the file by which a resumed run still knows the best.
Not here: how a checkpoint is deleted (`checkpoint.files`).
Invariant: a value that is not a number is never the best, and the best checkpoint is deleted only after a better one is
complete.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.base.errors import OptionError
from paceline.base.regular import read_regular
from paceline.checkpoint import files
from paceline.telemetry.metrics import describe

BEST_FILE = "best.json"


class Best:
    """The best step so far by one metric.

    Args:
      folder: of the checkpoints.
      key: of the metric, such as ``evaluate/loss``; ``min:evaluate/x`` and ``max:evaluate/x`` say the direction.

    Raises: OptionError: the direction is not known.
    """

    def __init__(self, folder: Path, *, key: str) -> None:
        self.metric, self.better = direction(key)
        self._file = folder / BEST_FILE
        self._values: dict[int, float] = {}
        self.step, self.value = self._remembered()

    def _remembered(self) -> tuple[int | None, float]:
        try:
            content = json.loads(read_regular(self._file))
            if content["metric"] == self.metric and content["better"] == self.better:
                return int(content["step"]), float(content["value"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # none yet, or of another version: the next evaluation begins anew
        return None, math.nan

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """Note the metric of a step, whose checkpoint may still be written."""
        value = float(values.get(self.metric, math.nan))
        if not math.isnan(value):
            self._values[step] = value

    def update(self, there: list[int], *, persist: bool) -> int | None:
        """The best step of the checkpoints that are there; noted on the disk when it is a new one."""
        if self.step not in there:
            self.step, self.value = None, math.nan
        found = self.step
        for step in sorted(set(self._values) & set(there)):
            value = self._values.pop(step)
            if self.step is None or (value < self.value if self.better == "lower" else value > self.value):
                self.step, self.value = step, value
        if persist and self.step is not None and self.step != found:
            document: dict[str, Any] = {"metric": self.metric, "better": self.better}
            files.write_small(self._file, {**document, "step": self.step, "value": self.value})
        return self.step


def direction(key: str) -> tuple[str, str]:
    """Metric key, and ``lower`` or ``higher``. Raises: OptionError: it is not known which is better."""
    word, colon, rest = key.partition(":")
    if colon and word in ("min", "max") and rest:
        return rest, "lower" if word == "min" else "higher"
    if colon and word in ("min", "max"):
        raise OptionError(
            what=f"best={key!r} names no metric",
            why="nothing would decide which checkpoint is the best",
            fix=f"say {word}:evaluate/NAME, with a metric that the evaluation gives",
        )
    better = describe(key).better
    if better == "none":
        raise OptionError(
            what=f"best={key!r}: it is not known whether less or more of it is better",
            why="the wrong direction would keep the worst checkpoint",
            fix=f"say best='min:{key}' or best='max:{key}'",
        )
    return key, better


def surplus(there: list[int], *, keep: int, best: int | None) -> list[int]:
    """The steps to delete: all but the last `keep` and the best."""
    return [step for step in sorted(there)[:-keep] if step != best]
