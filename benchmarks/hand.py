"""Training loops without Paceline: jit over sharded arrays, pmap, and the one of the classic tutorial.

Each is the same mathematics as Paceline's step: the mean loss over all rows, its gradient, an optax update, the loss
returned. None has what Paceline's adds: the gradient norm, the finite check, counters and the mask of padded rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.measure import drive
from benchmarks.models import Model


class HandJit:
    """`jax.jit` over a replicated state and a row-split batch."""

    def __init__(self, model: Model, optimizer: optax.GradientTransformation, *, devices: int) -> None:
        mesh = Mesh(np.asarray(jax.devices()[:devices]), ("data",), axis_types=(AxisType.Auto,))
        whole, self._rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
        self.state = jax.device_put((model.params, optimizer.init(model.params)), whole)

        def step(state: Any, batch: Any) -> Any:
            params, opt_state = state
            loss, gradients = jax.value_and_grad(lambda p: model.row_loss(p, batch).mean())(params)
            updates, opt_state = optimizer.update(gradients, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), loss

        self._step = jax.jit(step, donate_argnums=(0,))

    def place(self, batch: Any) -> Any:
        return jax.device_put(batch, self._rows)

    def run(self, batches: Iterable[Any], *, steps: int, placed: bool) -> float:
        """Seconds a step; with `placed` the batches are on the devices already."""
        step = self._step if placed else lambda state, batch: self._step(state, self.place(batch))
        seconds, self.state = drive(step, self.state, batches=batches, steps=steps)
        return seconds


class HandPmap:
    """`jax.pmap` over a state and a batch with a leading device axis, gradients and loss by `pmean`."""

    def __init__(self, model: Model, optimizer: optax.GradientTransformation, *, devices: int) -> None:
        self._devices = devices
        mesh = Mesh(np.asarray(jax.devices()[:devices]), ("data",), axis_types=(AxisType.Auto,))
        self._rows = NamedSharding(mesh, PartitionSpec("data"))
        copies = jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (devices, *np.shape(leaf))), (model.params, optimizer.init(model.params))
        )
        self.state = jax.device_put(copies, self._rows)

        def step(state: Any, batch: Any) -> Any:
            params, opt_state = state
            loss, gradients = jax.value_and_grad(lambda p: model.row_loss(p, batch).mean())(params)
            gradients, loss = jax.lax.pmean((gradients, loss), "data")
            updates, opt_state = optimizer.update(gradients, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), loss

        self._step = jax.pmap(step, axis_name="data", devices=jax.devices()[:devices], donate_argnums=(0,))

    def place(self, batch: Any) -> Any:
        return jax.device_put(split_rows(batch, self._devices), self._rows)

    def run(self, batches: Iterable[Any], *, steps: int, placed: bool) -> float:
        """As `HandJit.run`."""
        step = self._step if placed else lambda state, batch: self._step(state, self.place(batch))
        seconds, self.state = drive(step, self.state, batches=batches, steps=steps)
        return seconds


class Tutorial:
    """The classic pmap tutorial's loop: parameters of replica 0 are taken out and replicated again for each step.

    It is plain SGD without optimizer state, as there; batches are split on the host and given to pmap as numpy.
    """

    def __init__(self, model: Model, *, devices: int, learning_rate: float) -> None:
        self._devices = devices
        mesh = Mesh(np.asarray(jax.devices()[:devices]), ("data",), axis_types=(AxisType.Auto,))
        self._rows = NamedSharding(mesh, PartitionSpec("data"))
        self.params = jax.tree.map(jax.numpy.asarray, model.params)

        def step(params: Any, batch: Any) -> Any:
            loss, gradients = jax.value_and_grad(lambda p: model.row_loss(p, batch).mean())(params)
            gradients, loss = jax.lax.pmean((gradients, loss), "data")
            return jax.tree.map(lambda leaf, gradient: leaf - learning_rate * gradient, params, gradients), loss

        self._step = jax.pmap(step, axis_name="data", devices=jax.devices()[:devices])

    def run(self, batches: Iterable[Any], *, steps: int) -> float:
        """Seconds a step."""

        def step(params: Any, batch: Any) -> Any:
            copies = jax.tree.map(lambda leaf: jax.numpy.stack([leaf] * self._devices), params)
            # As `jax_utils.replicate` did; pmap itself refuses what lives on one device only.
            copies = jax.device_put(copies, self._rows)
            copies, loss = self._step(copies, split_rows(batch, self._devices))
            return jax.tree.map(lambda leaf: leaf[0], copies), loss

        seconds, self.params = drive(step, self.params, batches=batches, steps=steps)
        return seconds


def split_rows(batch: Any, devices: int) -> Any:
    """``[B, ...]`` to ``[K, B/K, ...]``."""
    return jax.tree.map(lambda leaf: leaf.reshape(devices, len(leaf) // devices, *leaf.shape[1:]), batch)
