"""A task: the loss in its full signature, and what the engine must know beside it.

Owns: `Task`, and `task()` which makes one from the short forms.
Not here: adapters for model libraries (`tasks.adapters`), the forms of a loss (`tasks.losses`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax import Array

from paceline.base.errors import TaskError
from paceline.tasks.losses import Outcome

Tree = Any
LossFunction = Callable[[Tree, Tree, Tree, Array], Outcome]


class Initial(NamedTuple):
    """What an init function returns for a model with state: parameters and model state."""

    params: Tree
    model_state: Tree


@dataclass(frozen=True)
class RunningStatistics:
    """A running mean and variance in the model state, kept by ``new = momentum * old + (1 - momentum) * batch``.

    `per_device` needs to know them: the variance of the union of all devices' rows is the mean of the local variances
    *plus* the variance of the local means.

    Args:
      mean: path of the mean in the model state, for example ``"bn1.mean"``.
      variance: path of the variance.
      momentum: weight of the old value, in [0, 1).
    """

    mean: str
    variance: str
    momentum: float


@dataclass(frozen=True)
class Task:
    """A loss written for one device, with all that Paceline needs to train it on K.

    Args:
      loss: ``loss(params, model_state, batch, rng) -> Outcome``, training mode.
      evaluate: the same in evaluation mode (no dropout, running statistics); default: `loss`.
      init: ``init(rng) -> params`` or ``-> Initial(params, model_state)``.
      statistics: running statistics in the model state that `per_device` has to merge.
      synced: ``synced(axis)`` gives the task whose BatchNorm statistics are taken over the mesh axis.
      name: how reports call the task.
    """

    loss: LossFunction
    evaluate: LossFunction | None = None
    init: Callable[[Array], Any] | None = None
    statistics: tuple[RunningStatistics, ...] = ()
    synced: Callable[[str], Task] | None = None
    name: str = "task"


def task(
    loss: Callable[..., Any],
    *,
    init: Callable[[Array], Any] | None = None,
    evaluate: Callable[..., Any] | None = None,
    statistics: Sequence[RunningStatistics] = (),
    name: str | None = None,
) -> Task:
    """Make a `Task` from a loss of two, three or four arguments.

    Args:
      loss: ``f(params, batch)``, ``f(params, batch, rng)`` or ``f(params, model_state, batch, rng)``. The first two
        return a loss in one of the three forms, or ``(loss, metrics)``; any may return an `Outcome`.
      init: makes the parameters from a key; not needed when `Trainer.init` is given them.
      evaluate: like `loss`, in evaluation mode.
      statistics: see `Task`.
      name: default: the function's name.
    Raises: TaskError: `loss` takes another number of arguments.
    """
    return Task(
        loss=full_signature(loss),
        evaluate=None if evaluate is None else full_signature(evaluate),
        init=init,
        statistics=tuple(statistics),
        name=name or getattr(loss, "__name__", "task"),
    )


def full_signature(function: Callable[..., Any]) -> LossFunction:
    """The four-argument form of a loss of two, three or four positional arguments."""
    count = _positional_count(function)
    if count == 2:
        return lambda params, model_state, batch, rng: _outcome(function(params, batch), model_state)
    if count == 3:
        return lambda params, model_state, batch, rng: _outcome(function(params, batch, rng), model_state)
    if count == 4:
        return lambda params, model_state, batch, rng: _outcome(function(params, model_state, batch, rng), model_state)
    raise TaskError(
        what=f"the loss {getattr(function, '__name__', function)!r} takes {count} positional arguments",
        why="Paceline would not know which of them are the parameters, the batch and the random key",
        fix="write f(params, batch), f(params, batch, rng) or f(params, model_state, batch, rng)",
    )


def _positional_count(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


def _outcome(returned: Any, model_state: Tree) -> Outcome:
    if isinstance(returned, Outcome):
        return returned
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict):
        return Outcome(loss=returned[0], metrics=returned[1], model_state=model_state)
    return Outcome(loss=returned, model_state=model_state)
