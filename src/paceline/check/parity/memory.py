"""Whether a problem fits into this machine at all, before anything is allocated.

Owns: the bytes of parameters, optimizer state and gradients in float64, times the devices that share the memory.
Not here: the exact memory of a compiled step (`doctor`).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax

from paceline.base.errors import DeviceError
from paceline.base.units import format_bytes
from paceline.engine.precision import is_float
from paceline.engine.state import initial
from paceline.engine.usercode import user_code
from paceline.tasks.task import Task
from paceline.topology.devices import machine_memory

_COPIES_BESIDE = 2
"""Gradients and the next parameters stand beside the state during an update."""


def start_bytes(task: Task, optimizer: optax.GradientTransformation, *, params: Any) -> int:
    """Bytes of one device's state and gradients in float64, from abstract values."""
    if params is None:
        if task.init is None:
            return 0  # refused where the problem is made
        with user_code(f"the init of task {task.name!r}", when="to trace it"):
            params = jax.eval_shape(lambda: initial(task, 0)).params
    shapes = jax.eval_shape(lambda: jax.tree.map(jax.numpy.asarray, params)) if _is_concrete(params) else params
    return _wide_bytes(jax.eval_shape(optimizer.init, shapes)) + (1 + _COPIES_BESIDE) * _wide_bytes(shapes)


def memory_bytes(device: jax.Device) -> int:
    """Memory of a device; of this machine for simulated ones, which share it."""
    stats = None if device.platform == "cpu" else device.memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return machine_memory()


def most_devices(task: Task, optimizer: optax.GradientTransformation, *, params: Any, device: jax.Device) -> int:
    """How many devices fit beside the one-device run.

    Raises: DeviceError: not even one.
    """
    needed, there = start_bytes(task, optimizer, params=params), memory_bytes(device)
    if needed > there:
        raise DeviceError(
            what=f"the state and gradients of task {task.name!r} take {format_bytes(needed)} in float64, and the "
            f"machine has {format_bytes(there)}",
            why="verify computes every update on one device too",
            fix="verify a smaller model of the same form: what is proven does not depend on its width or depth",
        )
    return 1 << 30 if device.platform != "cpu" or not needed else there // needed - 1


def _is_concrete(tree: Any) -> bool:
    return not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(tree))


def _wide_bytes(tree: Any) -> int:
    return sum(leaf.size * (8 if is_float(leaf) else np.dtype(np.int64).itemsize) for leaf in jax.tree.leaves(tree))
