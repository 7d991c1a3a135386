"""Numbers of the host to where a state keeps them, whatever the number of devices and the placement.

Owns: what is asked of each leaf (`Target`), the arrays on the devices.
Not here: where the numbers come from (`checkpoint.reading`, `checkpoint.foreign`).
Invariant: every device holds its part. CPU devices may share the memory of a numpy array as it is; JAX makes a copy
before a step reuses memory that is not its own, which a test sees to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Sharding, SingleDeviceSharding

from paceline.checkpoint.bits import from_written, host_from_written, named_dtype, written_dtype
from paceline.checkpoint.snapshot import Leaf, describe, unique_leaves


@dataclass(frozen=True)
class Target:
    """What a restored leaf is to be.

    Args:
      leaf: shape and dtype.
      sharding: where it goes; None: a numpy array.
    """

    leaf: Leaf
    sharding: Sharding | None

    @property
    def shape(self) -> jax.ShapeDtypeStruct:
        """As JAX says it. Key dtypes have no name there, so an array of keys is shown by an example."""
        name = self.leaf.dtype
        dtype = named_dtype(name) or jax.eval_shape(lambda: jax.random.key(0, impl=name[4:-1])).dtype
        return jax.ShapeDtypeStruct(self.leaf.shape, dtype, sharding=self.sharding)

    @property
    def is_split(self) -> bool:
        """Whether this process takes a part of it only."""
        return self.sharding is not None and not (
            self.sharding.is_fully_addressable or self.sharding.is_fully_replicated
        )


def targets(like: Any) -> dict[str, Target]:
    """By name, what each leaf is to be. Shapes without a sharding go to the first device, numpy stays numpy.

    Raises: CheckpointError: two leaves have one name.
    """
    return {name: Target(describe(leaf), _sharding(leaf)) for name, leaf in unique_leaves(like).items()}


def _sharding(leaf: Any) -> Sharding | None:
    if not isinstance(leaf, Array | jax.ShapeDtypeStruct):
        return None
    return leaf.sharding if leaf.sharding is not None else SingleDeviceSharding(jax.local_devices()[0])


def place(data: np.ndarray, target: Target) -> Any:
    """A leaf in its written form, placed. `data` is whole, and nobody writes into it afterwards."""
    if target.sharding is None:
        return np.array(host_from_written(data, name=target.leaf.dtype))
    return finish(jax.make_array_from_callback(data.shape, target.sharding, lambda index: data[index]), target)


def finish(written: Array, target: Target) -> Array:
    """The leaf of an array in written form."""
    name = target.leaf.dtype
    if written_dtype(name).name == name:
        return written
    return jax.jit(from_written, static_argnames="name", out_shardings=target.sharding)(written, name=name)


def empty(target: Target) -> Any:
    """A leaf without numbers."""
    shape, dtype = target.leaf.written
    return place(np.zeros(shape, dtype), target)
