"""Paceline trains a loss written for one device on all of them: same mathematics, proven.

The public names are loaded when they are first used, so that importing paceline costs nothing and touches no device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline import check as check
    from paceline.base.errors import PacelineError as PacelineError
    from paceline.check.parity.verify import verify as verify
    from paceline.checkpoint.restore import restore as restore
    from paceline.checkpoint.weights import export_weights as export_weights
    from paceline.checkpoint.weights import import_weights as import_weights
    from paceline.data.source import rows as rows
    from paceline.data.source import stream as stream
    from paceline.engine.parallel import Parallel as Parallel
    from paceline.engine.schedule import scaled_learning_rate as scaled_learning_rate
    from paceline.engine.state import TrainState as TrainState
    from paceline.recipes.recipe import Job as Job
    from paceline.recipes.recipe import Recipe as Recipe
    from paceline.recipes.recipe import RunShape as RunShape
    from paceline.tasks.adapters.equinox import from_equinox as from_equinox
    from paceline.tasks.adapters.linen import from_linen as from_linen
    from paceline.tasks.adapters.nnx import from_nnx as from_nnx
    from paceline.tasks.losses import Outcome as Outcome
    from paceline.tasks.losses import Weighted as Weighted
    from paceline.tasks.task import Initial as Initial
    from paceline.tasks.task import RunningStatistics as RunningStatistics
    from paceline.tasks.task import Task as Task
    from paceline.tasks.task import task as task
    from paceline.topology.devices import simulate_devices as simulate_devices
    from paceline.topology.processes import initialize as initialize
    from paceline.train.checkpoints import Checkpoints as Checkpoints
    from paceline.train.interrupt import Interrupted as Interrupted
    from paceline.train.interrupt import Terminated as Terminated
    from paceline.train.report import Report as Report
    from paceline.train.trainer import Trainer as Trainer

_HOMES = {
    "Checkpoints": "paceline.train.checkpoints",
    "Initial": "paceline.tasks.task",
    "Interrupted": "paceline.train.interrupt",
    "Job": "paceline.recipes.recipe",
    "Outcome": "paceline.tasks.losses",
    "PacelineError": "paceline.base.errors",
    "Parallel": "paceline.engine.parallel",
    "Recipe": "paceline.recipes.recipe",
    "Report": "paceline.train.report",
    "RunShape": "paceline.recipes.recipe",
    "RunningStatistics": "paceline.tasks.task",
    "Task": "paceline.tasks.task",
    "TrainState": "paceline.engine.state",
    "Terminated": "paceline.train.interrupt",
    "Trainer": "paceline.train.trainer",
    "Weighted": "paceline.tasks.losses",
    "export_weights": "paceline.checkpoint.weights",
    "from_equinox": "paceline.tasks.adapters.equinox",
    "from_linen": "paceline.tasks.adapters.linen",
    "from_nnx": "paceline.tasks.adapters.nnx",
    "import_weights": "paceline.checkpoint.weights",
    "initialize": "paceline.topology.processes",
    "restore": "paceline.checkpoint.restore",
    "rows": "paceline.data.source",
    "scaled_learning_rate": "paceline.engine.schedule",
    "stream": "paceline.data.source",
    "simulate_devices": "paceline.topology.devices",
    "task": "paceline.tasks.task",
    "verify": "paceline.check.parity.verify",
}

_PACKAGES = ("check",)

__all__ = sorted([*_HOMES, *_PACKAGES])  # pyright: ignore[reportUnsupportedDunderAll]: the names are those imported above
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"paceline.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
