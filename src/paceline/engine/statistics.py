"""Model state that every device changed on its own rows, merged to one.

Owns: the running mean and variance of the union of all devices' rows (law of total variance).
Invariant: after a merge every device holds the same model state; with declared statistics it is that of one device
which normalised by local statistics but saw all rows.

With momentum m, microbatches j = 0..n-1 and devices d, a running value after the update is
``m**n r + sum_j m**(n-1-j) (1-m) s_j``. A mean is linear in the rows, so averaging over devices is exact. The variance
of the union is ``s_j = mean_d v_dj + var_d(u_dj)`` with local means u_dj, so averaging leaves out the second term; it
is added here. Local means are recovered from the running mean before and after the microbatch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from paceline.base.errors import StateError
from paceline.engine.precision import is_key
from paceline.engine.reduce import mean_packed
from paceline.tasks.task import RunningStatistics
from paceline.tasks.tree import map_named, named_leaves

_VARIANCE_NAME = re.compile(r"(^|[._])var(iance)?$")


def check_statistics(statistics: Sequence[RunningStatistics], model_state: Any) -> None:
    """Raise StateError for a declared leaf that is not there, and for an undeclared running variance."""
    names = [name for name, _ in named_leaves(model_state)]
    for entry in statistics:
        for path in (entry.mean, entry.variance):
            if path not in names:
                raise StateError(
                    what=f"the task declares running statistics at {path!r}, which the model state does not have",
                    why="statistics that are not found would not be merged over devices",
                    fix="use one of " + ", ".join(names),
                )
    declared = {entry.variance for entry in statistics}
    for name in names:
        if _VARIANCE_NAME.search(name) and name not in declared:
            raise StateError(
                what=f"model state leaf {name!r} looks like a running variance that the task does not declare",
                why="the mean of the devices' variances is smaller than the variance of all rows",
                fix="use batch_norm='synced' or scheme='global_view'; or, if it normalises by its batch, declare "
                f"paceline.RunningStatistics(mean=..., variance={name!r}, momentum=...)",
            )


def batch_means(statistics: Sequence[RunningStatistics], *, first: Any, before: Any, after: Any) -> list[Array]:
    """Local mean of one microbatch, for each declared statistic, minus the running mean before the update.

    Args:
      first: model state before the update, the same on every device (the reference keeps the squares small).
      before, after: model state before and after the microbatch.
    """
    if not statistics:
        return []
    at_first, old, new = (dict(named_leaves(tree)) for tree in (first, before, after))
    return [
        (new[entry.mean] - entry.momentum * old[entry.mean]) / (1 - entry.momentum) - at_first[entry.mean]
        for entry in statistics
    ]


def merge_model_state(local: Any, means: Sequence[Array], *, statistics: Sequence[RunningStatistics], axis: str) -> Any:
    """The model state of all devices' rows together.

    Args:
      local: this device's model state after all microbatches. Undeclared floating-point and complex leaves are
        averaged, the largest is taken of all others (counters and keys advance alike).
      means: for each statistic ``[n, ...]``, the `batch_means` of every microbatch.
    """
    leaves = dict(named_leaves(local))
    floats = {name: leaf for name, leaf in leaves.items() if jnp.issubdtype(leaf.dtype, jnp.floating)}
    others = {name: _agreed(leaf, axis) for name, leaf in leaves.items() if name not in floats}
    merged, first, second = mean_packed((floats, list(means), [mean**2 for mean in means]), axis)
    for entry, average, square in zip(statistics, first, second, strict=True):
        spread = jnp.maximum(square - average**2, 0)
        merged[entry.variance] += _weigh(spread, entry.momentum).astype(merged[entry.variance].dtype)
    merged |= others
    return map_named(lambda name, leaf: merged[name], local)


def _agreed(leaf: Array, axis: str) -> Array:
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return lax.pmean(leaf, axis)
    if is_key(leaf):
        words = lax.pmax(jax.random.key_data(leaf), axis)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    return lax.pmax(leaf, axis)


def _weigh(spread: Array, momentum: float) -> Array:
    """``sum_j m**(n-1-j) (1-m) spread_j`` over the leading microbatch dim."""
    count = spread.shape[0]
    weights = (1 - momentum) * momentum ** jnp.arange(count - 1, -1, -1, dtype=spread.dtype)
    return jnp.tensordot(weights, spread, axes=1)


def same_types(new: Any, old: Any) -> Any:
    """`new` with the dtypes of `old`.

    Raises: StateError: the trees or shapes differ, so the next step could not take the state.
    """
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise StateError(
            what=f"the loss returned a model state {jax.tree.structure(new)} for {jax.tree.structure(old)}",
            why="every step must return the tree that it was given",
            fix="return the whole model state in Outcome(model_state=...), changed or not",
        )
    for (name, before), (_, after) in zip(named_leaves(old), named_leaves(new), strict=True):
        if jnp.shape(before) != jnp.shape(after):
            raise StateError(
                what=f"model state leaf {name!r} changed its shape from {jnp.shape(before)} to {jnp.shape(after)}",
                why="every step must return the shapes that it was given",
                fix="keep the leaf's shape, or reduce the value over the batch first",
            )
        kinds = [leaf.dtype for leaf in (before, after) if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)]
        if kinds and jnp.result_type(before) != jnp.result_type(after):
            raise StateError(
                what=f"model state leaf {name!r} changed its type from {before.dtype} to {jnp.result_type(after)}",
                why="every step must return the types that it was given, and no key turns into one of another kind",
                fix="keep a key of its own kind: split or fold_in the key that the model state holds, not the step's",
            )
    return jax.tree.map(lambda after, before: jnp.asarray(after).astype(before.dtype), new, old)
