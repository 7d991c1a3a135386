"""The arguments of `Trainer.fit` as one value.

Owns: their form; `Trainer.fit` documents them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.telemetry.exporters.exporter import exporter_names
from paceline.telemetry.progress import Mode
from paceline.train.audit import AuditOptions
from paceline.train.batching import DataOptions
from paceline.train.checkpoints import Checkpoints
from paceline.train.loop import Callback
from paceline.train.resume import Resume


@dataclass(frozen=True)
class FitOptions:
    """The arguments of `Trainer.fit`, which documents them."""

    data: DataOptions
    evaluation: Any = None
    evaluate_every: int | None = None
    callbacks: Sequence[Callback] = ()
    run: str | os.PathLike[str] | None = None
    progress: Mode = "none"
    config: Mapping[str, Any] = field(default_factory=dict)
    audit: AuditOptions = field(default_factory=AuditOptions)
    checkpoints: Checkpoints | None = None
    resume: Resume = False
    log_to: str | Sequence[str] = ()

    @property
    def exporters(self) -> tuple[str, ...]:
        """Names in `log_to`, each once. Raises: OptionError: one that there is not."""
        return exporter_names(self.log_to)
