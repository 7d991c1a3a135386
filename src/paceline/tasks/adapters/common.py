"""What the adapters share: the user's loss of a model, keys by name, trees by path, the checks of a first state.

Owns: the contract between an adapter and the engine: nested dicts of arrays, no random key in the model state.
Not here: anything that knows a model library.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from paceline.base.errors import PacelineError, TaskError
from paceline.tasks.losses import Outcome
from paceline.tasks.task import Initial, RunningStatistics, Task, full_signature
from paceline.tasks.tree import named_leaves

Path = tuple[str, ...]
ModelLoss = Callable[[Any, Any, Array], Outcome]
"""``f(model, batch, rng)``."""
Run = Callable[..., Outcome]
"""``run(params, model_state, batch, rng, *, training, axis)``; BatchNorm reduces over the mesh axis `axis` if given."""


def adapted(
    run: Run,
    *,
    init: Callable[[Array], Initial],
    statistics: Sequence[RunningStatistics],
    name: str,
    axis: str | None = None,
) -> Task:
    """The task of a model that `run` runs. Evaluation gives back the model state that it was given."""

    def evaluate(params: Any, model_state: Any, batch: Any, rng: Array) -> Outcome:
        outcome = run(params, model_state, batch, rng, training=False, axis=axis)
        return dataclasses.replace(outcome, model_state=model_state)

    return Task(
        loss=functools.partial(run, training=True, axis=axis),
        evaluate=evaluate,
        init=init,
        statistics=tuple(statistics),
        synced=lambda axis: adapted(run, init=init, statistics=statistics, name=name, axis=axis),
        name=name,
    )


def model_loss(loss: Callable[..., Any]) -> ModelLoss:
    """``f(model, batch, rng) -> Outcome`` from a loss of two or three arguments.

    Raises: TaskError: `loss` takes another number of arguments.
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(loss).parameters.values()
    count = sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)
    if count not in (2, 3):
        raise TaskError(
            what=f"the loss {getattr(loss, '__name__', loss)!r} takes {count} positional arguments",
            why="Paceline would not know which of them are the model, the batch and the random key",
            fix="write f(model, batch) or f(model, batch, rng)",
        )
    function = full_signature(loss)
    return lambda model, batch, rng: function(model, {}, batch, named_key(rng, "loss"))


def named_key(rng: Array, name: str) -> Array:
    """The key of one use of randomness. Another name gives another key, in every process the same."""
    return jax.random.fold_in(rng, jnp.uint32(zlib.crc32(name.encode())))


def nested(leaves: Mapping[Path, Any]) -> dict[str, Any]:
    """The nested dict whose leaf at each path is given."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = leaf
    return tree


def pick(tree: Mapping[str, Any], path: Iterable[str]) -> Any:
    """The leaf of a nested dict at a path."""
    return functools.reduce(lambda node, part: node[part], path, tree)


def check_initial(initial: Initial) -> Initial:
    """Raise TaskError for a model without parameters, or with a random key in its state."""
    if not jax.tree.leaves(initial.params):
        raise TaskError(
            what="the model has no parameters",
            why="there is nothing to train",
            fix="return the whole model, with its layers, and make each layer before it is first called",
        )
    for name, leaf in named_leaves(initial.model_state):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise TaskError(
                what=f"the model keeps a random key at {name!r}",
                why="every key comes from the seed and the step; a key in the state would be one more thing to restore",
                fix="leave it out and draw from the key that the model is given at each call",
            )
    return initial


def strongly_typed(tree: Any) -> Any:
    """The tree without weak types: a Python number as first value would make the second step another program."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), tree)


def model_error(got: Any, *, wanted: str, fix: str) -> PacelineError:
    """The error for something that is not a model of the library."""
    kind = f"the class {got.__name__}" if isinstance(got, type) else f"a value of type {type(got).__name__}"
    return TaskError(what=f"{kind} where {wanted} is needed", why="Paceline would not know its parameters", fix=fix)


def loss_name(loss: Callable[..., Any], name: str | None) -> str:
    """How reports call the task: as asked, else like its loss."""
    return name or getattr(loss, "__name__", "task")
