"""The truncated step: what each device does by itself, without the collectives of the real one.

Owns: a program that runs the step of one device, with its share of the rows, on all devices at once.
Not here: the real step (`engine.step`).
Invariant: unless the barrier is asked for, no device waits for another; each has a state of its own, which drifts.

Shapes: state ``[K, ...]``, batch ``[B, ...]``, both split over the devices along their first dim.

The axis has a name of its own: a loss that sums over ``data`` then does what it does on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from paceline.engine.microbatch import sum_rows
from paceline.engine.rng import positional_key, step_key
from paceline.engine.state import TrainState, add_device_axis
from paceline.engine.update import StepSpec, apply_update
from paceline.engine.usercode import user_code, with_data_axis
from paceline.measure.scale.subject import Subject
from paceline.topology.mesh import data_mesh

_AXIS = "apart"

LocalCall = Callable[[Any, Any, Array, Array], tuple[Any, Array]]
"""``(state [K, ...], batch [B, ...], valid [B], barrier) -> (state, values [K, m])``; takes the state's memory."""


class LocalStep:
    """The truncated step on so many devices.

    Args:
      subject: of the real step; placement has no meaning here, every device updates all parameters.
    """

    def __init__(self, subject: Subject, devices: Sequence[jax.Device]) -> None:
        self._subject = subject
        self._mesh = Mesh(np.asarray(devices), (_AXIS,), axis_types=(AxisType.Auto,))
        self._split = NamedSharding(self._mesh, PartitionSpec(_AXIS))
        self._num_devices = len(devices)
        self._copies = jax.jit(add_device_axis, static_argnames="num_devices", out_shardings=self._split)

    def state(self, single: TrainState) -> Any:
        """A copy of a state of one device for each device."""
        placed = jax.device_put(single, NamedSharding(self._mesh, PartitionSpec()))
        return self._copies(placed, num_devices=self._num_devices)

    def batch(self, placed: Any) -> Any:
        """A batch split over the devices, as this program takes it."""
        return jax.device_put(placed, self._split)

    def compile(self, state: Any, batch: Any, valid: Array) -> LocalCall:
        """The program for these shapes."""
        specs = (PartitionSpec(_AXIS), PartitionSpec(_AXIS), PartitionSpec(_AXIS), PartitionSpec())
        spec = self._spec(state, batch)
        mapped = jax.shard_map(
            lambda *arguments: _step(spec, *arguments),
            mesh=self._mesh,
            in_specs=specs,
            out_specs=PartitionSpec(_AXIS),
            check_vma=False,
        )
        with user_code(f"the loss of task {spec.task.name!r}"):
            lowered = jax.jit(mapped, donate_argnums=0).lower(state, batch, valid, self.flag(False))
        return lowered.compile()

    def flag(self, value: bool) -> Array:
        """Whether devices wait for each other, as the program takes it."""
        return jax.device_put(jnp.asarray(value), NamedSharding(self._mesh, PartitionSpec()))

    def _spec(self, state: Any, batch: Any) -> StepSpec:
        """The task as one device runs it, with axis ``data`` bound if its loss names it."""
        subject, devices = self._subject, list(self._mesh.devices.flat)
        shapes = jax.eval_shape(lambda: (state.params, state.model_state))
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shapes)
        rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(self._share(leaf.shape), leaf.dtype), batch)
        task = with_data_axis(subject.task, *shapes, rows, jax.eval_shape(lambda: jax.random.key(0)), fields=("loss",))
        return StepSpec(task, subject.optimizer, subject.parallel, data_mesh(devices[:1]), subject.schedule)

    def _share(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] // self._num_devices, *shape[1:])


def _step(spec: StepSpec, state: TrainState, batch: Any, valid: Array, barrier: Array) -> tuple[Any, Array]:
    """One device's step; its state arrives and leaves with a leading dim of 1."""
    state = jax.tree.map(lambda leaf: leaf[0], state)
    count = spec.parallel.accumulation
    key = step_key(state.rng, state.step)

    def key_of(index: Array, rows: int) -> Array:
        return key if count == 1 else positional_key(key, rows=rows, start=index, stride=count)

    sums = sum_rows(spec.task, spec.parallel, state=state, batch=batch, valid=valid, key_of=key_of, parts=1)
    state, metrics = apply_update(spec, state=state, sums=sums)
    # The values hold the norm of the gradient, so this waits for all of backward, as the real reduction does.
    values = lax.cond(barrier, lambda own: lax.psum(own, _AXIS), lambda own: own, metrics.values)
    return jax.tree.map(lambda leaf: leaf[None], (state, values))
