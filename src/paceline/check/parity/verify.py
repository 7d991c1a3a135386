"""`verify`: does a task, or a step written by hand, compute on K devices what it computes on one?

Owns: the arguments of `paceline.verify`.
Not here: the work (`check.parity.task_run`, `check.parity.step_run`).
Invariant: what was not run is listed, and nothing that was not run counts as equal.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import optax

from paceline.base.errors import BatchSizeError, OptionError
from paceline.check.parity.cases import PLACEMENTS, SCHEMES, Grid
from paceline.check.parity.handwritten import HandwrittenStep
from paceline.check.parity.memory import most_devices
from paceline.check.parity.problem import make_problem
from paceline.check.parity.report import Verification
from paceline.check.parity.step_run import verify_step
from paceline.check.parity.task_run import TaskRun
from paceline.engine.parallel import Parallel, Placement, Scheme
from paceline.engine.update import check_task
from paceline.engine.usercode import optimizer_code
from paceline.tasks.task import Task
from paceline.topology.devices import choose_devices

DEFAULT_SECONDS = 100.0


def verify(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    data: Any,
    params: Any = None,
    model_state: Any = None,
    parallel: Parallel | None = None,
    schemes: Sequence[Scheme] = SCHEMES,
    placements: Sequence[Placement] = PLACEMENTS,
    devices: Sequence[int] = (2, 4, 8),
    accumulation: Sequence[int] = (1, 4),
    batch: int | None = None,
    updates: int = 3,
    seed: int = 0,
    step: Callable[..., Any] | None = None,
    make_state: Callable[..., Any] | None = None,
    seconds: float = DEFAULT_SECONDS,
) -> Verification:
    """Compare a few updates on one device with the same on K devices, and name the cause where they differ.

    Loss, every leaf of the gradient, parameters, optimizer state, model state and metrics: in float64 to 1e-10, then in
    the precision of `parallel`, with the rounding of one device as measure. One update has fewer rows than the batch.

    Args:
      task: the user's loss.
      optimizer: any optax optimizer.
      data: as for `Trainer.fit`; a few batches of it are used.
      params, model_state: the start; default: the task's init.
      parallel: clipping, moving average, precision; scheme, placement and accumulation are varied.
      schemes, placements, devices, accumulation: what to vary. Device counts that are not there are listed as not run.
      batch: rows B of a batch, a multiple of every K times n; default: twice the smallest such.
      updates: how many.
      seed: of the parameters and of everything random.
      step: a step written by hand for `jax.pmap` or `jax.shard_map`, to be verified in place of Paceline's own. It is
        given its arguments by their names: params, opt_state, model_state, batch (or its leaves), rng, step, valid, or
        state; it returns the next state, and a loss or metrics.
      make_state: ``make_state(params, opt_state, ...)`` for a step that takes one argument `state`.
      seconds: time that it may take [s]; when it is over, what is left is listed as not run. 0: no limit.
    Returns: a `Verification`; ``.ok`` says whether all is well, ``.lines()`` is the table.
    Raises: TaskError, LossError, StateError: the task or the step cannot be run. BatchSizeError: a batch that does not
      split. DeviceError: the model does not fit into this machine.
    """
    begin = time.perf_counter()
    check_task(task, optimizer, caller="paceline.verify")
    _check(updates=updates, seconds=seconds)
    optimizer = _named(optimizer)
    grid = Grid(*map(_values, (schemes, placements, devices, accumulation)))
    parts = _parts(grid)
    fitting = most_devices(task, optimizer, params=params, device=choose_devices()[0])
    problem = make_problem(
        task, optimizer, data=data, parallel=parallel or Parallel(), params=params, model_state=model_state,
        batch=_batch(batch, parts), updates=updates, seed=seed,
    )  # fmt: skip
    if step is None:
        outcome = TaskRun(problem, grid, until=begin + seconds if seconds else math.inf, fitting=fitting).outcome()
    else:
        outcome = verify_step(problem, HandwrittenStep(step, make_state), grid=grid)
    return dataclasses.replace(outcome, seconds=time.perf_counter() - begin)


def _parts(grid: Grid) -> int:
    """The number that the rows of a batch must be a multiple of, after a check of what is to be varied."""
    known = {"schemes": SCHEMES, "placements": PLACEMENTS, "devices": None, "accumulation": None}
    for name, allowed in known.items():
        values = getattr(grid, name)
        least = 2 if name == "devices" else 1
        for value in values:
            if allowed is not None and value not in allowed:
                raise _option_error(f"{name} {value!r}", f"use {', '.join(allowed)}")
            if allowed is None and (not isinstance(value, int) or value < least):
                raise _option_error(f"{name} {value!r}", f"use whole numbers of {name}, {least} or more")
        if not values:
            raise _option_error(f"no {name}", "name at least one, or leave it out")
    return math.lcm(*(count * n for count in grid.devices for n in grid.accumulation))


def _option_error(what: str, fix: str) -> OptionError:
    return OptionError(what=f"{what} to verify", why="there is nothing to compare with one device", fix=fix)


def _check(*, updates: int, seconds: float) -> None:
    if updates < 1:
        raise OptionError(
            what=f"updates={updates}", why="without an update there is nothing to compare", fix="use 1 or more"
        )
    if not seconds >= 0:
        raise OptionError(what=f"seconds={seconds}", why="it is a time", fix="use 0 for no limit, or seconds above 0")


def _named(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer, whose errors name it."""
    full = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Any:
        with optimizer_code(optimizer):
            return full.init(params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        with optimizer_code(optimizer):
            return full.update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(init, update)


def _values(values: Any) -> tuple[Any, ...]:
    """A single value is a list of one; a text is one value, not its letters."""
    return (values,) if isinstance(values, int | str) else tuple(values)


def _batch(batch: int | None, parts: int) -> int:
    if batch is None:
        return 2 * parts
    if batch < 1 or batch % parts:
        lower = max(batch // parts, 1) * parts
        raise BatchSizeError(
            what=f"a batch of {batch} rows does not split into {parts} equal parts",
            why="it is taken by every number of devices times microbatches that is verified",
            fix=f"use --batch {lower} or {lower + parts}, or vary fewer devices or microbatches",
        )
    return batch
