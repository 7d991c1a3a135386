"""Bytes of a training state by arithmetic, beside which the compiler's numbers are printed.

Owns: what one device holds of each field of the state, of the batch and of the gradients, for any placement and
precision.
Not here: the rule by which leaves are split (`engine.placement`), activations, which only the compiler knows.
Invariant: the sum over the arguments is exactly the compiler's, for a program that uses all of them.

For M float32 parameters, an optimizer that keeps s numbers a parameter and K devices (Rajbhandari et al. 2020, "ZeRO",
section 3 and figure 1, with float32 masters in place of their float16 parameters; here every leaf that K does not
divide stays whole):

    replicated  4 M + 4 s M + 4 M              parameters + optimizer state + gradients
    zero1       4 M + 4 s M / K + gradients
    fsdp        4 M / K + 4 s M / K + gradients
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from paceline.engine.parallel import Parallel
from paceline.engine.placement import split_dim
from paceline.engine.precision import is_float
from paceline.engine.state import TrainState, new_state

FIELDS = {
    "params": "parameters",
    "opt_state": "optimizer state",
    "ema": "moving average",
    "model_state": "model state",
}
"""Fields of `TrainState` and their names for people; the rest are counters, the key and the loss scale."""

_SPLIT = {"replicated": (), "zero1": ("opt_state", "ema"), "fsdp": ("params", "opt_state", "ema")}


@dataclass(frozen=True)
class Accounting:
    """Bytes of one device.

    Args:
      params, opt_state, ema, model_state: as the state holds them between steps.
      counters: steps, the key, the loss scale.
      batch: the rows of one step and their mask.
      gradients: float32, what of them the device has at once when backward ends.
      compute_params: the copy in the compute type that a lower precision works on; 0 for float32.
    """

    params: int
    opt_state: int
    ema: int
    model_state: int
    counters: int
    batch: int
    gradients: int
    compute_params: int

    @property
    def state(self) -> int:
        """What stays from step to step."""
        return self.params + self.opt_state + self.ema + self.model_state + self.counters

    @property
    def arguments(self) -> int:
        """What a step is given."""
        return self.state + self.batch


def account(
    params: Any, *, model_state: Any = None, optimizer: optax.GradientTransformation, parallel: Parallel,
    num_devices: int, batch: Any = None, rows: int = 0,
) -> Accounting:  # fmt: skip
    """The bytes of a run, from shapes alone.

    Args:
      params, model_state: as one device would have them, arrays or shapes.
      optimizer: asked for the state that it keeps.
      batch: tree of host arrays or shapes with rows in front; None for the state alone.
      rows: B of the global batch, a multiple of K.
    """
    state = jax.eval_shape(
        lambda: new_state(
            optimizer, parallel, params=_zeros(params), model_state=_zeros({} if model_state is None else model_state),
            seed=0,
        )
    )  # fmt: skip
    return account_state(state, parallel=parallel, num_devices=num_devices, batch=batch, rows=rows)


def account_state(
    state: TrainState, *, parallel: Parallel, num_devices: int, batch: Any = None, rows: int = 0
) -> Accounting:
    """As `account`, from a state without device axis whose fields are arrays or shapes."""
    split = _SPLIT[parallel.placement]
    sizes = {name: _held(getattr(state, name), num_devices if name in split else 1) for name in FIELDS}
    rest = dataclasses.replace(state, **dict.fromkeys(FIELDS))
    share = rows // num_devices
    floats = [leaf for leaf in jax.tree.leaves(state.params) if is_float(leaf)]
    compute = 0 if parallel.precision == "float32" else jnp.dtype(parallel.precision).itemsize
    return Accounting(
        **sizes,
        counters=tree_bytes(rest),
        batch=0 if batch is None else share * (_row_bytes(batch) + 1),  # a byte of mask a row
        gradients=_gradients(state.params, parallel, num_devices),
        compute_params=compute * sum(math.prod(leaf.shape) for leaf in floats),
    )


def _gradients(params: Any, parallel: Parallel, num_devices: int) -> int:
    """Under `global_view` the compiler reduces each gradient to the part that is updated; else all wait for the end."""
    parts = num_devices if parallel.placement != "replicated" and parallel.scheme == "global_view" else 1
    return _held(params, parts)


def tree_bytes(tree: Any) -> int:
    """Bytes of all leaves, whole."""
    return sum(_leaf_bytes(leaf) for leaf in jax.tree.leaves(tree))


def device_bytes(tree: Any) -> int:
    """Bytes that one device holds of a tree of abstract arrays with shardings; a leaf without one counts whole."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
        total += math.prod(shape) * leaf.dtype.itemsize
    return total


def _held(tree: Any, parts: int) -> int:
    """Bytes a device holds if each leaf that the rule of the engine can split over so many devices is split."""
    return sum(
        _leaf_bytes(leaf) // (parts if parts > 1 and split_dim(leaf, num_devices=parts) is not None else 1)
        for leaf in jax.tree.leaves(tree)
    )


def _leaf_bytes(leaf: Any) -> int:
    return math.prod(np.shape(leaf)) * jnp.result_type(leaf).itemsize


def _row_bytes(batch: Any) -> int:
    """Of one row, in the dtypes that the leaves have on a device."""
    leaves = [(np.shape(leaf)[1:], jax.dtypes.canonicalize_dtype(leaf.dtype)) for leaf in jax.tree.leaves(batch)]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in leaves)


def _zeros(tree: Any) -> Any:
    """Inside `eval_shape`: stands for the tree, and takes no memory."""
    return jax.tree.map(lambda leaf: jnp.zeros(np.shape(leaf), jax.dtypes.canonicalize_dtype(leaf.dtype)), tree)
