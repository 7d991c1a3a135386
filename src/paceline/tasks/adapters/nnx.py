"""`from_nnx`: a task from a Flax NNX module.

Owns: the split of a module into parameters (`nnx.Param`) and model state (all other variables but random state).
Invariant: a module lives for one trace. Its structure comes from one abstract build.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array

from paceline.tasks.adapters.common import (
    adapted,
    check_initial,
    loss_name,
    model_error,
    model_loss,
    named_key,
    nested,
    pick,
    strongly_typed,
)
from paceline.tasks.losses import Outcome
from paceline.tasks.task import Initial, RunningStatistics, Task

_FIX = "pass a function of the random streams that returns a new module, for example lambda rngs: Net(rngs=rngs)"


def from_nnx(
    build: Callable[[nnx.Rngs], nnx.Module],
    loss: Callable[..., Any],
    *,
    statistics: Sequence[RunningStatistics] = (),
    name: str | None = None,
) -> Task:
    """Make a `Task` from an NNX module and a loss written for one device.

    Args:
      build: makes the module. Called once here, on abstract arrays, and at each initialisation.
      loss: ``f(model, batch)`` or ``f(model, batch, rng)``; returns a loss in one of the three forms,
        ``(loss, metrics)`` or an `Outcome`. The model is in ``train()`` mode, or in ``eval()`` mode for evaluation.
      statistics: running statistics beside those of `nnx.BatchNorm`, which are found.
      name: default: the name of the loss.
    Randomness: every `RngStream` is made anew each step from the step's key and the stream's path, its count at zero.
    Raises: TaskError: `build` makes no module, or one without parameters; `loss` takes another number of arguments.
    """
    function = model_loss(loss)
    if isinstance(build, nnx.Module):
        raise model_error(build, wanted="a function that builds a module", fix=_FIX)
    module = nnx.eval_shape(lambda: build(nnx.Rngs(jax.random.key(0))))
    if not isinstance(module, nnx.Module):
        raise model_error(module, wanted="an nnx.Module", fix=_FIX)
    check_initial(_initial(module))

    def run(params: Any, model_state: Any, batch: Any, rng: Array, *, training: bool, axis: str | None) -> Outcome:
        model = _assemble(module, params, model_state, rng)
        _set_mode(model, training=training, axis=axis)
        outcome = function(model, batch, rng)
        return Outcome(outcome.loss, outcome.metrics, _kept(_initial(model).model_state, like=model_state))

    return adapted(
        run,
        init=lambda rng: strongly_typed(_initial(build(nnx.Rngs(rng)))),
        statistics=(*_statistics(module), *statistics),
        name=loss_name(loss, name),
    )


def _initial(module: nnx.Module) -> Initial:
    _, params, _, others = nnx.split(module, nnx.Param, nnx.RngState, ...)
    return Initial(_plain(params), _plain(others))


def _plain(state: Any) -> dict[str, Any]:
    return nested({tuple(map(str, path)): variable.get_value() for path, variable in nnx.to_flat_state(state)})


def _assemble(module: nnx.Module, params: Any, model_state: Any, rng: Array) -> nnx.Module:
    """A module of the same structure with these values and fresh random streams."""
    structure, *states = nnx.split(module, nnx.Param, nnx.RngState, ...)

    def fill(tree: Any, state: Any) -> Any:
        return nnx.map_state(lambda path, variable: variable.copy(pick(tree, map(str, path))), state)

    streams = nnx.map_state(functools.partial(_stream, rng), states[1])
    return nnx.merge(structure, fill(params, states[0]), streams, fill(model_state, states[2]))


def _stream(rng: Array, path: tuple[Any, ...], variable: Any) -> Any:
    """Key or count of one stream. By path, not by name: two dropout layers hold two streams of the name ``dropout``."""
    shape = variable.get_value().shape
    if not isinstance(variable, nnx.RngKey):
        return variable.copy(jnp.zeros(shape, jnp.uint32))
    key = named_key(rng, ".".join(map(str, path)))
    return variable.copy(jax.random.split(key, shape) if shape else key)


def _set_mode(model: nnx.Module, *, training: bool, axis: str | None) -> None:
    model.train() if training else model.eval()
    for _, module in nnx.iter_modules(model):
        if isinstance(module, nnx.BatchNorm):
            module.axis_name = module.axis_name or axis
            if module.promote_dtype is dtypes.promote_dtype:
                module.promote_dtype = _promote_inputs


def _promote_inputs(args: Any, /, *, dtype: Any = None, inexact: bool = True) -> Any:
    """Promote all but the running statistics: in float32, they would turn a bfloat16 model back into a float32 one."""
    x, mean, var, scale, bias = args
    x, scale, bias = dtypes.promote_dtype((x, scale, bias), dtype=dtype, inexact=inexact)
    return x, mean, var, scale, bias


def _kept(state: Any, *, like: Any) -> Any:
    """`state` without variables that the call added, such as sown intermediates: the next step could not take them."""
    return {name: _kept(state[name], like=old) for name, old in like.items()} if isinstance(like, dict) else state


def _statistics(module: nnx.Module) -> list[RunningStatistics]:
    found = []
    for path, layer in nnx.iter_modules(module):
        if isinstance(layer, nnx.BatchNorm):
            mean, var = (".".join([*map(str, path), leaf]) for leaf in ("mean", "var"))
            found.append(RunningStatistics(mean, var, layer.momentum))
    return found
