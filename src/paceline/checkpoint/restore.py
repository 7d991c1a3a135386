"""`paceline.restore`: the state of a checkpoint, in the form in which the given state is.

Owns: the leading device axis of the `pmap` scheme, which checkpoints do not have.
Not here: everything else (`checkpoint.reading`).
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from paceline.checkpoint.reading import Restored
from paceline.checkpoint.reading import restore as read
from paceline.engine.state import TrainState, add_device_axis
from paceline.topology.mesh import data_mesh, replicated, split_rows


def restore(path: str | os.PathLike[str], like: Any, *, step: int | None = None) -> Any:
    """The state that a checkpoint holds, where and how `like` has its own.

    The number of devices, the scheme and the placement may be others than those of the run that saved it.

    Args:
      path: the folder of a run, of its checkpoints, or of one step; or an Orbax checkpoint of other code, also in the
        classic form with a leading device axis.
      like: a state from `Trainer.init`, of any scheme, or only its ``params``. Its numbers are not used.
      step: which one; None: the latest that is sound.
    Returns: a new state; `like` is left as it is.
    Raises: CheckpointError: no checkpoint, a damaged one, or one of another model, with the leaves named.
    """
    return restore_kept(path, like=like, step=step).state


def restore_kept(path: str | os.PathLike[str], *, like: Any, **options: Any) -> Restored:
    """As `checkpoint.reading.restore`, whose options it takes, for a state as any scheme keeps it."""
    if not (isinstance(like, TrainState) and np.ndim(like.step) == 1):
        return read(path, like=like, **options)
    mesh = _mesh(like.step)
    single = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=replicated(mesh)), like
    )
    found = read(path, like=single, **options)
    add_axis = jax.jit(add_device_axis, static_argnames="num_devices", out_shardings=split_rows(mesh))
    return dataclasses.replace(found, state=add_axis(found.state, num_devices=mesh.size))


def _mesh(counter: Any) -> Mesh:
    """The mesh of a state with device axis, from its counter ``[K]``: the devices in the order of the axis."""
    if not isinstance(counter, Array):
        return data_mesh(jax.devices()[: counter.shape[0]])
    indices = counter.sharding.devices_indices_map(counter.shape)
    return data_mesh(sorted(indices, key=lambda device: indices[device][0].start or 0))
