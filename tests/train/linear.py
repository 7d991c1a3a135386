"""The smallest job: y = 3x + 1 without noise, its trainer, and the same training in numpy.

Owns: data, loss and trainer that most tests of training share; one shape, so that programs are compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optax

from paceline.engine.parallel import Parallel
from paceline.tasks.task import task
from paceline.train.trainer import Trainer

RATE = 0.1
SCHEMES = ("global_view", "per_device", "pmap")


def line(rows: int = 64) -> dict[str, np.ndarray]:
    """Points on the line, float32 ``[rows]``."""
    x = np.random.default_rng(0).normal(size=rows).astype(np.float32)
    return {"x": x, "y": 3 * x + 1}


def zeros() -> dict[str, np.ndarray]:
    return {"w": np.zeros((), np.float32), "b": np.zeros((), np.float32)}


def squared_error(params: Any, batch: Any) -> Any:
    return (batch["x"] * params["w"] + params["b"] - batch["y"]) ** 2


def trainer_of(loss: Any = squared_error, *, devices: int = 4, optimizer: Any = None, **parallel: Any) -> Trainer:
    return Trainer(task(loss), optimizer or optax.sgd(RATE), devices=devices, parallel=Parallel(**parallel))


def params_of(trainer: Trainer, state: Any) -> dict[str, np.ndarray]:
    """Parameters as one device has them, on the host."""
    return {name: np.asarray(leaf) for name, leaf in trainer.single(state).params.items()}


def numpy_sgd(data: dict[str, np.ndarray], batches: Sequence[Any]) -> dict[str, float]:
    """Plain SGD in float64 from zero over batches of row numbers: gradient of the mean of (wx + b - y)^2."""
    w = b = 0.0
    for rows in batches:
        x, y = data["x"][rows].astype(np.float64), data["y"][rows].astype(np.float64)
        error = w * x + b - y
        w, b = w - RATE * np.mean(2 * error * x), b - RATE * np.mean(2 * error)
    return {"w": w, "b": b}


def assert_close(params: dict[str, np.ndarray], expected: dict[str, float], *, rtol: float = 1e-5) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(params[name], value, rtol=rtol, atol=1e-6, err_msg=name)
