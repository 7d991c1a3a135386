"""State and batch of a step as shapes, so that a program can be made of what is nowhere held.

Owns: the abstract arguments of a step, placed as its scheme takes them.
Not here: an example of the data (`data.example`), compiling (`engine.step`, `insight.compiling`).
Invariant: no array is made and no device is asked, so the mesh may be one of devices that this machine has not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.engine.placement import state_shardings
from paceline.engine.state import TrainState, add_device_axis, initial, new_state
from paceline.engine.update import StepSpec
from paceline.engine.usercode import user_code
from paceline.topology.mesh import split_rows


@dataclass(frozen=True)
class Arguments:
    """What a step is called with, as `jax.ShapeDtypeStruct` with shardings.

    Args:
      state: with the leading device axis under `pmap`.
      batch: leaves ``[B@data, ...]``; under `pmap` ``[K@data, B/K, ...]``.
      valid: bool, ``[B@data]`` or ``[K@data, B/K]``.
    """

    state: TrainState
    batch: Any
    valid: jax.ShapeDtypeStruct


def abstract_arguments(spec: StepSpec, structure: Any, *, rows: int) -> Arguments:
    """The arguments of a step for a batch of so many rows.

    Args:
      structure: a tree of host arrays or shapes; the first dim of each leaf is replaced by the rows.
      rows: B, a multiple of K.
    Raises: TaskError: the task has no init, or it cannot be traced. StateError: it makes what cannot be trained.
    """
    return Arguments(abstract_state(spec), *abstract_batch(spec, structure, rows=rows))


def abstract_batch(spec: StepSpec, structure: Any, *, rows: int) -> tuple[Any, jax.ShapeDtypeStruct]:
    """Batch and mask of `Arguments` for so many rows."""
    classic = spec.parallel.scheme == "pmap"
    lead = (spec.mesh.size, rows // spec.mesh.size) if classic else (rows,)
    split = split_rows(spec.mesh)

    def of_batch(leaf: Any) -> jax.ShapeDtypeStruct:
        return shape_of((*lead, *np.shape(leaf)[1:]), leaf.dtype, sharding=split)

    return jax.tree.map(of_batch, structure), shape_of(lead, jnp.bool_, sharding=split)


def abstract_state(spec: StepSpec) -> TrainState:
    """The first state of a run, as shapes where the scheme keeps them. Raises: as `abstract_arguments`."""

    def made() -> TrainState:
        state = new_state(spec.optimizer, spec.parallel, **initial(spec.task, 0)._asdict(), seed=0)
        return add_device_axis(state, num_devices=spec.mesh.size) if spec.parallel.scheme == "pmap" else state

    with user_code(f"the init of task {spec.task.name!r}", when="to trace it"):
        state = jax.eval_shape(made)
    places = state_shardings(state, parallel=spec.parallel, mesh=spec.mesh)
    return jax.tree.map(lambda leaf, place: shape_of(leaf.shape, leaf.dtype, sharding=place), state, places)


def without_device_axis(tree: Any, spec: StepSpec) -> Any:
    """A state or batch of shapes as one device has it, whatever the scheme; without shardings."""
    lead = 1 if spec.parallel.scheme == "pmap" else 0
    return jax.tree.map(lambda leaf: shape_of(leaf.shape[lead:], leaf.dtype), tree)


def shape_of(shape: tuple[int, ...], dtype: Any, *, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """With the dtype that the array has on a device: float32 for float64 without x64."""
    return jax.ShapeDtypeStruct(shape, device_dtype(dtype), sharding=sharding)


def device_dtype(dtype: Any) -> Any:
    """What a host array of that dtype becomes on a device. Extended dtypes, such as keys, stay."""
    return jax.dtypes.canonicalize_dtype(dtype) if isinstance(dtype, np.dtype) else dtype
