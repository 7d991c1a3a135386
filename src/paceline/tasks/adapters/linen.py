"""`from_linen`: a task from a Flax Linen module.

Owns: the model callable that fills in variables, keys and mode flags, so that a loss calls it like a function.
Invariant: parameters are the collection ``params``; the model state holds every other collection, under its name.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
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
from paceline.tasks.losses import Outcome
from paceline.tasks.task import Initial, RunningStatistics, Task
from paceline.tasks.tree import named_leaves

_TRAINING_FLAGS = {"train": True, "training": True, "deterministic": False, "use_running_average": False}


def from_linen(
    module: Any,
    loss: Callable[..., Any],
    *,
    example: Any,
    rng_streams: Sequence[str] = ("dropout",),
    statistics: Sequence[RunningStatistics] = (),
    name: str | None = None,
) -> Task:
    """Make a `Task` from a Linen module and a loss written for one device.

    Args:
      module: an unbound `nn.Module`.
      loss: ``f(model, batch)`` or ``f(model, batch, rng)``; returns a loss in one of the three forms,
        ``(loss, metrics)`` or an `Outcome`. The model is called like the module, without variables, keys or mode
        (see `LinenModel`).
      example: a batch, as arrays or `jax.ShapeDtypeStruct`; initialisation runs the loss on it. Its rows do not matter.
      rng_streams: names of the random streams that the module draws from.
      statistics: running statistics beside those of `nn.BatchNorm`, which are found.
      name: default: the name of the loss.
    Raises: TaskError: no module, or one without parameters; `loss` takes another number of arguments.
    """
    function = model_loss(loss)
    if not isinstance(module, nn.Module):
        raise model_error(module, wanted="an instance of nn.Module", fix="pass the module itself, for example Net()")

    def run(params: Any, model_state: Any, batch: Any, rng: Array, *, training: bool, axis: str | None) -> Outcome:
        variables = {"params": params, **model_state}
        keys = {stream: named_key(rng, stream) for stream in rng_streams}
        model = LinenModel(module, variables=variables, keys=keys, training=training)
        with _reducing_over(axis):
            outcome = function(model, batch, rng)
        return Outcome(outcome.loss, outcome.metrics, {kind: model.variables[kind] for kind in model_state})

    def init(rng: Array) -> Initial:
        keys = {stream: named_key(rng, stream) for stream in rng_streams}
        model = LinenModel(module, variables={}, keys={"params": rng, **keys}, training=True, initializing=True)
        function(model, jax.tree.map(_concrete, example), rng)
        state = {kind: tree for kind, tree in model.variables.items() if kind != "params"}
        return strongly_typed(check_initial(Initial(model.variables.get("params", {}), state)))

    return adapted(run, init=init, statistics=(*_statistics(init), *statistics), name=loss_name(loss, name))


class LinenModel:
    """A module with its variables: call it like the module.

    It fills in ``train``, ``training``, ``deterministic`` and ``use_running_average`` where the called method has a
    parameter of that name which the call leaves out, gives each call its own keys, and carries the collections from
    call to call. ``method=`` calls another method. `variables` are the collections as they are now.
    """

    def __init__(
        self, module: nn.Module, *, variables: dict[str, Any], keys: dict[str, Array], training: bool,
        initializing: bool = False,
    ) -> None:  # fmt: skip
        self.variables = variables
        self._module = module
        self._keys = keys
        self._training = training
        self._initializing = initializing
        self._calls = 0

    def __call__(self, *args: Any, method: Callable[..., Any] | str | None = None, **kwargs: Any) -> Any:
        """The output of the module, or of one of its methods."""
        kwargs = self._with_flags(method, args, kwargs)
        if self._initializing:
            output, made = self._module.init_with_output(self._keys, *args, method=method, **kwargs)
            self.variables = _merged(self.variables, nn.unbox(made))
            return output
        keys = {stream: jax.random.fold_in(key, self._calls) for stream, key in self._keys.items()}
        mutable = [kind for kind in self.variables if kind != "params"] if self._training else []
        output, changed = self._module.apply(
            self.variables, *args, rngs=keys, mutable=mutable, method=method, **kwargs
        )  # fmt: skip
        self.variables = {**self.variables, **changed}
        self._calls += 1
        return output

    def _with_flags(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        name = method if isinstance(method, str) else "__call__"
        called = functools.partial(method, self._module) if callable(method) else getattr(self._module, name)
        signature = inspect.signature(called)
        given = signature.bind_partial(*args, **kwargs).arguments
        missing = {flag for flag in _TRAINING_FLAGS if flag in signature.parameters and flag not in given}
        return kwargs | {flag: _TRAINING_FLAGS[flag] == self._training for flag in missing}


def _concrete(leaf: Any) -> Any:
    return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf


def _merged(first: Any, second: Any) -> Any:
    """Both trees of nested dicts in one; where they meet, the leaf of the first."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return first
    shared = {name: _merged(first[name], second[name]) for name in first if name in second}
    return {**second, **first, **shared}


@contextlib.contextmanager
def _reducing_over(axis: str | None) -> Iterator[None]:
    """Inside, every `nn.BatchNorm` that names no axis reduces its statistics over `axis`."""

    def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        module = context.module
        if axis is None or not isinstance(module, nn.BatchNorm) or module.axis_name is not None:
            return call(*args, **kwargs)
        # A bound module is a frozen copy that lives for this call; it is put back in case the user holds it.
        object.__setattr__(module, "axis_name", axis)
        try:
            return call(*args, **kwargs)
        finally:
            object.__setattr__(module, "axis_name", None)

    with nn.intercept_methods(intercept):
        yield


def _statistics(init: Callable[[Array], Initial]) -> list[RunningStatistics]:
    """Running statistics of every `nn.BatchNorm` that an abstract initialisation calls."""
    found: dict[str, float] = {}

    def record(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        if isinstance(context.module, nn.BatchNorm):
            found[".".join(["batch_stats", *context.module.path])] = context.module.momentum
        return call(*args, **kwargs)

    with nn.intercept_methods(record):
        initial = jax.eval_shape(init, jax.random.key(0))
    names = {name for name, _ in named_leaves(initial.model_state)}
    entries = [RunningStatistics(f"{path}.mean", f"{path}.var", momentum) for path, momentum in found.items()]
    return [entry for entry in entries if {entry.mean, entry.variance} <= names]
