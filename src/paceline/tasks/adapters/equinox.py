"""`from_equinox`: a task from an Equinox module, which is written for one row.

Owns: the map over rows, one key a row.
Not here: the module as nested dicts (`equinox_tree`), its BatchNorms (`equinox_norm`).
Invariant: rows are mapped under the axis ``batch``; every BatchNorm reduces over it, and over any axis it names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from paceline.tasks.adapters.common import (
    adapted,
    check_initial,
    loss_name,
    model_error,
    model_loss,
    named_key,
    strongly_typed,
)
from paceline.tasks.adapters.equinox_norm import ROW_AXIS, with_wide_norms
from paceline.tasks.adapters.equinox_tree import Model, batch_norm_statistics, join, split, state_paths, stateful_model
from paceline.tasks.losses import Outcome
from paceline.tasks.task import Initial, RunningStatistics, Task

_FIX = "pass a function of the key that returns a module, or what eqx.nn.make_with_state returns"


def from_equinox(
    build: Callable[[Array], Any],
    loss: Callable[..., Any],
    *,
    statistics: Sequence[RunningStatistics] = (),
    name: str | None = None,
) -> Task:
    """Make a `Task` from an Equinox module and a loss written for one device.

    Args:
      build: ``build(key)`` makes the module, or ``(module, state)``. Called once here, on abstract arrays, and at each
        initialisation.
      loss: ``f(model, batch)`` or ``f(model, batch, rng)``; returns a loss in one of the three forms,
        ``(loss, metrics)`` or an `Outcome`. ``model(x)`` maps the module over the rows of `x` (see `RowModel`).
      statistics: running statistics beside those of `eqx.nn.BatchNorm` with ``mode="batch"``, which are found. With
        ``mode="ema"`` a BatchNorm normalises by its running values, which the rows of one device alone cannot give:
        on several devices it needs ``batch_norm="synced"`` or `global_view`.
      name: default: the name of the loss.
    Raises: TaskError: `build` makes no module, or one without parameters; `loss` takes another number of arguments.
    """
    function = model_loss(loss)
    if isinstance(build, eqx.Module):
        raise model_error(build, wanted="a function that builds a module", fix=_FIX)
    abstract = Model(*eqx.filter_eval_shape(lambda: tuple(_built(build, jax.random.key(0)))))
    paths = state_paths(abstract)
    check_initial(split(abstract, paths))

    def run(params: Any, model_state: Any, batch: Any, rng: Array, *, training: bool, axis: str | None) -> Outcome:
        module, state = join(abstract, params=params, model_state=model_state, state_paths=paths)
        module = with_wide_norms(module if training else eqx.nn.inference_mode(module), axis)
        model = RowModel(module, state=state, rng=named_key(rng, "rows"))
        outcome = function(model, batch, rng)
        return Outcome(outcome.loss, outcome.metrics, split(Model(module, model.state), paths).model_state)

    def init(rng: Array) -> Initial:
        return strongly_typed(split(_built(build, rng), paths))

    found = batch_norm_statistics(abstract.module)
    return adapted(run, init=init, statistics=(*found, *statistics), name=loss_name(loss, name))


class RowModel:
    """A module that is written for one row, called on all rows of a batch.

    Positional arguments are split along their first dim, keyword arguments go to every row as they are. Where the
    module takes ``key``, each row gets its own. Its state, if it has one, is threaded from call to call. `module` is
    the module itself.
    """

    def __init__(self, module: Any, *, state: eqx.nn.State | None, rng: Array) -> None:
        self.module = module
        self.state = state
        self._rng = rng
        self._takes_key = "key" in inspect.signature(module).parameters
        self._calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output for every row."""
        keys = _row_keys(jax.random.fold_in(self._rng, self._calls), rows=jax.tree.leaves(args)[0].shape[0])
        state = () if self.state is None else (self.state,)

        def one(key: Array, row: tuple[Any, ...]) -> tuple[Any, Any]:
            extra = {"key": key} if self._takes_key else {}
            output = self.module(*row, *state, **extra, **kwargs)
            return output if state else (output, None)

        output, self.state = jax.vmap(one, out_axes=(0, None), axis_name=ROW_AXIS)(keys, args)
        self._calls += 1
        return output


def _row_keys(rng: Array, *, rows: int) -> Array:
    """One key a row, drawn instead of split.

    The engine's keys give a device its part of the one-device draw, and know a draw over rows by its leading dim. A key
    that is split off them would mistake a row's own draw for one if it has a dim of that size by chance, for example as
    many hidden units as the device has rows.
    """
    return jax.random.wrap_key_data(jax.random.bits(rng, (rows, 2), jnp.uint32), impl="threefry2x32")


def _built(build: Callable[[Array], Any], key: Array) -> Model:
    made = build(key)
    model = stateful_model(made)
    if model is None:
        raise model_error(made, wanted="an eqx.Module", fix=_FIX)
    return model
