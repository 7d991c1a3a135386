"""`StepMetrics`: the numbers of one step, in one small device array.

Owns: packing on the device, fetching on the host.
Invariant: one transfer a step, and none before it is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("values", "leaf_norms"),
    meta_fields=("names", "leaf_names"),
)
@dataclass(frozen=True)
class StepMetrics:
    """Numbers of one step, still on the devices.

    Args:
      values: ``[m]``, float32 (float64 under x64), in the order of `names`.
      leaf_norms: ``[leaves]``, 2-norm of each leaf of the mean gradient; not finite where a gradient is not.
      names: what each value is: ``loss``, ``gradient_norm``, ..., then the task's metrics.
      leaf_names: dotted names of the parameters.
    """

    values: Array
    leaf_norms: Array
    names: tuple[str, ...]
    leaf_names: tuple[str, ...]

    def __getitem__(self, name: str) -> Array:
        """One value as a device scalar, for example ``metrics["loss"]``.

        Raises: KeyError: the step has no value of that name.
        """
        if name not in self.names:
            raise KeyError(f"{name!r}; this step has {', '.join(self.names)}")
        return self.values[self.names.index(name)]

    def is_ready(self) -> bool:
        """Whether the devices have finished the step, so that `fetch` does not wait."""
        return self.values.is_ready()  # pyright: ignore[reportAttributeAccessIssue]: Array has it; the stubs lack it

    def wait(self) -> None:
        """Return once the devices have finished the step."""
        self.values.block_until_ready()

    def fetch(self) -> dict[str, float]:
        """All values as numbers; waits for the step."""
        return dict(zip(self.names, np.asarray(self.values.addressable_data(0)).tolist(), strict=True))

    def bad_leaves(self) -> list[str]:
        """Names of the parameters whose gradient was not finite; waits for the step."""
        norms = np.asarray(self.leaf_norms.addressable_data(0))
        return [name for name, norm in zip(self.leaf_names, norms, strict=True) if not np.isfinite(norm)]


def pack(values: Mapping[str, Array], leaf_norms: Mapping[str, Array]) -> StepMetrics:
    """Pack scalars into a `StepMetrics`. Traceable."""
    dtype = jnp.result_type(jnp.float32, *(value.dtype for value in values.values() if value.dtype.kind == "f"))
    vector = jnp.stack([value.astype(dtype) for value in values.values()])
    return StepMetrics(vector, jnp.stack(list(leaf_norms.values())), tuple(values), tuple(leaf_norms))
