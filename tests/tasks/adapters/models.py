"""One small network in three libraries, and one step of it on K devices.

Owns: a network as a list of layers, built by each library's own layers; its weights under one set of names.
Not here: what the adapters must do with it (`test_contract`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from paceline.engine.parallel import Parallel
from paceline.engine.state import drop_device_axis, new_state, place_state
from paceline.engine.step import StepFunction
from paceline.engine.update import StepSpec
from paceline.tasks.adapters.equinox import from_equinox
from paceline.tasks.adapters.linen import from_linen
from paceline.tasks.adapters.nnx import from_nnx
from paceline.tasks.task import Task
from paceline.tasks.tree import named_leaves
from paceline.topology.mesh import data_mesh, split_rows


@dataclass(frozen=True)
class Net:
    """Layers by name: ``("first", 4)`` is linear, of width 4; ``norm``, ``relu`` and ``dropout`` are what they say."""

    inputs: int
    layers: tuple[tuple[str, int | str], ...]
    momentum: float = 0.9
    rate: float = 0.5
    axis_name: str | None = None
    mode: str = "batch"

    def widths(self) -> dict[str, tuple[int, int]]:
        """Width before and after each layer."""
        widths, width = {}, self.inputs
        for name, kind in self.layers:
            after = kind if isinstance(kind, int) else width
            widths[name], width = (width, after), after
        return widths


class NnxNet(nnx.Module):
    def __init__(self, net: Net, rngs: nnx.Rngs) -> None:
        self.net = net
        for name, kind in net.layers:
            before, after = net.widths()[name]
            if isinstance(kind, int):
                setattr(self, name, nnx.Linear(before, after, rngs=rngs))
            elif kind == "norm":
                norm = nnx.BatchNorm(before, momentum=net.momentum, axis_name=net.axis_name, rngs=rngs)
                setattr(self, name, norm)
            elif kind == "dropout":
                setattr(self, name, nnx.Dropout(net.rate, rngs=rngs))

    def __call__(self, x):
        for name, kind in self.net.layers:
            x = nnx.relu(x) if kind == "relu" else getattr(self, name)(x)
        return x


class LinenNet(nn.Module):
    net: Net

    @nn.compact
    def __call__(self, x, train: bool):
        for name, kind in self.net.layers:
            if isinstance(kind, int):
                x = nn.Dense(kind, name=name)(x)
            elif kind == "norm":
                axis_name = self.net.axis_name
                x = nn.BatchNorm(not train, momentum=self.net.momentum, axis_name=axis_name, name=name)(x)
            elif kind == "dropout":
                x = nn.Dropout(self.net.rate, deterministic=not train, name=name)(x)
            else:
                x = nn.relu(x)
        return x


class EquinoxNet(eqx.Module):
    net: Net = eqx.field(static=True)
    layers: dict[str, Any]

    def __init__(self, net: Net, key) -> None:
        self.net = net
        self.layers = {}
        for number, (name, kind) in enumerate(net.layers):
            before, after = net.widths()[name]
            if isinstance(kind, int):
                self.layers[name] = eqx.nn.Linear(before, after, key=jax.random.fold_in(key, number))
            elif kind == "norm":
                axes = "batch" if net.axis_name is None else ("batch", net.axis_name)
                self.layers[name] = eqx.nn.BatchNorm(before, axes, momentum=net.momentum, mode=net.mode)  # pyright: ignore[reportArgumentType]: one of its two modes
            elif kind == "dropout":
                self.layers[name] = eqx.nn.Dropout(net.rate)

    def __call__(self, x, state, *, key):
        for name, kind in self.net.layers:
            if kind == "norm":
                x, state = self.layers[name](x, state)
            elif kind == "relu":
                x = jax.nn.relu(x)
            else:
                x = self.layers[name](x, key=key)
        return x, state


def _nnx_task(net: Net, loss: Callable[..., Any], example: Any) -> Task:
    return from_nnx(lambda rngs: NnxNet(net, rngs), loss)


def _linen_task(net: Net, loss: Callable[..., Any], example: Any) -> Task:
    return from_linen(LinenNet(net), loss, example=example)


def _equinox_task(net: Net, loss: Callable[..., Any], example: Any) -> Task:
    return from_equinox(lambda key: eqx.nn.make_with_state(EquinoxNet)(net, key), loss)


@dataclass(frozen=True)
class Library:
    """A model library: how it makes a task, and what it calls the leaves of a layer.

    Args:
      task: ``task(net, loss, example)``.
      params, state: what comes before the name of a layer, in parameters and in model state.
      kernel, scale, variance: names of leaves; ``bias`` and ``mean`` are called so by all.
      counts: whether a BatchNorm counts its updates.
    """

    task: Callable[[Net, Callable[..., Any], Any], Task]
    params: str = ""
    state: str = ""
    kernel: str = "kernel"
    scale: str = "scale"
    variance: str = "var"
    counts: bool = False

    def statistics(self, model_state: Any, layer: str = "bn") -> tuple[np.ndarray, np.ndarray]:
        """Running mean and variance of a BatchNorm."""
        leaves = dict(named_leaves(model_state))
        return leaves[f"{self.state}{layer}.mean"], leaves[f"{self.state}{layer}.{self.variance}"]

    def linear(self, params: Any, layer: str) -> tuple[np.ndarray, np.ndarray]:
        """Kernel ``[in, out]`` and bias of a linear layer."""
        leaves = dict(named_leaves(params))
        kernel = leaves[f"{self.params}{layer}.{self.kernel}"]
        return kernel.T if self.kernel == "weight" else kernel, leaves[f"{self.params}{layer}.bias"]

    def affine(self, params: Any, layer: str = "bn") -> tuple[np.ndarray, np.ndarray]:
        """Scale and bias of a BatchNorm."""
        leaves = dict(named_leaves(params))
        return leaves[f"{self.params}{layer}.{self.scale}"], leaves[f"{self.params}{layer}.bias"]


LIBRARIES = {
    "nnx": Library(_nnx_task),
    "linen": Library(_linen_task, state="batch_stats."),
    "equinox": Library(
        _equinox_task,
        params="layers.",
        state="layers.",
        kernel="weight",
        scale="weight",
        variance="variance",
        counts=True,
    ),
}


class Ran(NamedTuple):
    """What some steps left: parameters and model state of one device, and the values of each step."""

    params: Any
    model_state: Any
    metrics: list[dict[str, float]]


def take_steps(
    task: Task, parallel: Parallel, batch: Mapping[str, np.ndarray], *, devices: int, steps: int = 1, rate: float = 0.1,
    dtype: Any = None,
) -> Ran:  # fmt: skip
    """Train on one batch from seed 0; `dtype` casts the first parameters and model state."""
    mesh = data_mesh(jax.devices()[:devices])
    step = StepFunction(StepSpec(task, optax.sgd(rate), parallel, mesh))
    params, model_state = jax.tree.map(lambda leaf: _cast(leaf, dtype), jax.jit(task.init)(jax.random.key(0)))
    state = new_state(step.spec.optimizer, parallel, params=params, model_state=model_state, seed=0)
    state = place_state(state, parallel=parallel, mesh=mesh)
    valid = np.ones(len(batch["x"]), bool)
    placed = jax.device_put(_with_device_axis((dict(batch), valid), parallel, devices), split_rows(mesh))
    metrics = []
    for _ in range(steps):
        state, values = step(state, *placed)
        metrics.append(values.fetch())
    state = drop_device_axis(state, parallel=parallel, mesh=mesh)
    return Ran(jax.device_get(state.params), jax.device_get(state.model_state), metrics)


def _cast(leaf: Any, dtype: Any) -> Any:
    return leaf if dtype is None or not jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.astype(dtype)


def _with_device_axis(tree: Any, parallel: Parallel, devices: int) -> Any:
    if parallel.scheme != "pmap":
        return tree
    return jax.tree.map(lambda leaf: leaf.reshape(devices, len(leaf) // devices, *leaf.shape[1:]), tree)
