"""Problems by hand, for the tests of what runs them.

Owns: putting numpy rows, a loss and an optimizer together. Not here: expected values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import optax

from paceline.check.parity.problem import Batch, Problem
from paceline.engine.parallel import Parallel
from paceline.tasks.task import task

SGD = optax.sgd(0.1)


def problem(
    loss: Any, batches: Any, *, params: Any, model_state: Any = None, optimizer: Any = SGD, parallel: Any = None,
    seed: int = 0, synced: bool = False, **options: Any,
) -> Problem:  # fmt: skip
    """A problem of these batches, each rows or ``(rows, valid)``; further options are those of `paceline.task`."""
    pairs = [given if isinstance(given, tuple) else (given, None) for given in batches]
    made = tuple(Batch(rows, np.ones(count(rows), bool) if valid is None else np.array(valid)) for rows, valid in pairs)
    return Problem(
        task(loss, **options), optimizer, parallel or Parallel(), params, model_state or {}, made, seed=seed,
        maskable=True, synced=synced,
    )  # fmt: skip


def count(rows: Any) -> int:
    return len(next(iter(rows.values())))
