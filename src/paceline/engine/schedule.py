"""Linear scaling of the learning rate with the global batch.

Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", sections 2.1 (linear scaling rule) and 2.2 (gradual
warm-up).
"""

from __future__ import annotations

from typing import Literal

import optax

from paceline.base.errors import OptionError
from paceline.engine.update import Schedule


def scaled_learning_rate(
    *,
    base_rate: float,
    base_batch: int,
    batch: int,
    warmup_steps: int = 0,
    total_steps: int | None = None,
    decay: Literal["constant", "cosine"] = "constant",
) -> Schedule:
    """Learning rate by update for a global batch of another size than the one it was tuned for.

    Rises linearly from `base_rate` to ``base_rate * batch / base_batch`` over `warmup_steps` updates, then stays or
    falls on a half cosine to 0 at `total_steps`. Counts updates, not microbatches and not epochs.

    Args:
      base_rate: the rate that works with `base_batch`.
      base_batch: rows of the global batch that `base_rate` was tuned with.
      batch: rows B of the global batch now, over all devices and microbatches.
      warmup_steps: updates of the rise; Goyal et al. use five epochs.
      total_steps: updates of the run; needed for the cosine.
    Raises: OptionError: a rate or batch that is not positive, or a decay that has no end.
    """
    if not base_rate > 0 or base_batch < 1 or batch < 1 or warmup_steps < 0:
        raise OptionError(
            what=f"base_rate={base_rate}, base_batch={base_batch}, batch={batch}, warmup_steps={warmup_steps}",
            why="the rate is base_rate * batch / base_batch",
            fix="use positive numbers",
        )
    peak = base_rate * batch / base_batch
    rest = _after_warmup(peak, warmup_steps, total_steps, decay)
    if warmup_steps == 0:
        return rest
    return optax.join_schedules([optax.linear_schedule(base_rate, peak, warmup_steps), rest], [warmup_steps])


def _after_warmup(peak: float, warmup_steps: int, total_steps: int | None, decay: str) -> Schedule:
    if decay == "constant":
        return optax.constant_schedule(peak)
    if total_steps is None or total_steps <= warmup_steps:
        raise OptionError(
            what=f"decay={decay!r} with total_steps={total_steps} and warmup_steps={warmup_steps}",
            why="the decay ends at total_steps, after the warm-up",
            fix="pass total_steps, larger than warmup_steps",
        )
    return optax.cosine_decay_schedule(peak, total_steps - warmup_steps)
