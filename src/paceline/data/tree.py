"""Trees of host arrays: names of leaves, the one check that leaves are rows, conversion to numpy.

Owns: what a leaf is called in an error, which leaves and which integers no device can hold.
Not here: divisibility (`batch`), reading rows (`source`).
Invariant: a (nested) list of plain numbers is one array, never a tree of scalars; so ``{"y": [0, 1, 1]}`` has 3 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import tree_util

from paceline.base.errors import DataError

Tree: TypeAlias = Any
"""Any nesting of dicts, tuples, lists and registered nodes with arrays at the leaves."""


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """The same tree with `function` applied to each leaf."""
    return tree_util.tree_map(function, tree, is_leaf=is_number_list)


def named_leaves(tree: Tree) -> list[tuple[str, Any]]:
    """Pairs such as ``("inputs.tokens", leaf)``; a tree that is one array has the name ``""``."""
    pairs, _ = tree_util.tree_flatten_with_path(tree, is_leaf=is_number_list)
    return [(tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in pairs]


def label(name: str, noun: str) -> str:
    """How an error speaks of a leaf: ``batch leaf 'image'``, or ``the batch`` when the tree is one array."""
    return f"{noun} leaf '{name}'" if name else f"the {noun}"


def to_host(tree: Tree, *, noun: str) -> Tree:
    """The tree with numpy leaves; memory-mapped arrays stay mapped, arrays on a device are copied once.

    Raises: DataError: a leaf is no array, or of a type that no device holds.
    """
    _, treedef = tree_util.tree_flatten(tree, is_leaf=is_number_list)
    return tree_util.tree_unflatten(
        treedef, [_host_array(leaf, subject=label(name, noun)) for name, leaf in named_leaves(tree)]
    )


def count_rows(tree: Tree, *, noun: str) -> int:
    """The number of rows that all leaves share. Reads shapes only: arrays on a device stay there.

    Raises: DataError: no leaf, a scalar leaf, leaves with different numbers of rows, no rows, a type no device holds.
    """
    sizes = [(name, _leading_size(leaf, subject=label(name, noun))) for name, leaf in named_leaves(tree)]
    if not sizes:
        raise DataError(
            what=f"the {noun} holds no array",
            why="without a leaf there are no rows to train on",
            fix='pass arrays, such as {"image": images, "label": labels}',
        )
    first, rows = sizes[0]
    for name, size in sizes[1:]:
        if size != rows:
            raise DataError(
                what=f"{label(name, noun)} has {size} rows, but {label(first, noun)} has {rows}",
                why="row i of every leaf must belong to the same sample",
                fix=f"give both leaves the same leading dim; {min(size, rows)} rows are in both",
            )
    if rows == 0:
        raise DataError(
            what=f"{label(first, noun)} has 0 rows",
            why="the mean of no rows is not defined",
            fix="check the path or the filter that made the data",
        )
    return rows


def check_integers(tree: Tree, *, noun: str) -> None:
    """Refuse integers that would wrap on the way to a device: without x64, JAX keeps the low 32 bits in silence.

    Call it where the batch is placed and under the same x64 setting, which JAX keeps per thread. Only 64-bit integers
    in host memory are read; those on a device have their type already.

    Raises: DataError: an int64 leaf leaves the range of int32, or a uint64 leaf that of uint32.
    """
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]: set at run time by JAX
        return
    for name, leaf in named_leaves(tree):
        if isinstance(leaf, np.ndarray) and leaf.dtype in (np.int64, np.uint64) and leaf.size:
            narrow = np.iinfo(np.int32 if leaf.dtype == np.int64 else np.uint32)
            for value in (int(leaf.min()), int(leaf.max())):
                if not narrow.min <= value <= narrow.max:
                    raise _wide_error(label(name, noun), value, wide=str(leaf.dtype), narrow=str(narrow.dtype))


def _wide_error(subject: str, value: int, *, wide: str, narrow: str) -> DataError:
    return DataError(
        what=f"{subject} is {wide} and holds {value}, which does not fit {narrow}",
        why=f"without x64 JAX computes with {narrow}, where the value would wrap to another one in silence",
        fix=f"use ids below 2**{31 if narrow == 'int32' else 32}, split the value in two int32 leaves, "
        "or enable x64 (jax.config.update('jax_enable_x64', True))",
    )


def _leading_size(leaf: Any, *, subject: str) -> int:
    shaped = isinstance(getattr(leaf, "dtype", None), np.dtype) and hasattr(leaf, "shape")
    array = leaf if shaped else _host_array(leaf, subject=subject)
    _check_dtype(array.dtype, subject=subject)
    if not array.shape:
        raise DataError(
            what=f"{subject} is a scalar, which has no rows",
            why="the leading dim of every leaf is split over the devices",
            fix="repeat the value once a row (np.full), or close over it in the loss",
        )
    return int(array.shape[0])


def _host_array(leaf: Any, *, subject: str) -> np.ndarray:
    if isinstance(leaf, np.memmap):
        return leaf
    try:
        array = np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            what=f"{subject} is a {type(leaf).__name__} that does not become an array: {str(error).splitlines()[0]}",
            why="devices hold arrays of one shape and one type",
            fix="pad or cut nested lists to one length; move tensors to host memory; leave other columns out",
        ) from error
    _check_dtype(array.dtype, subject=subject)
    return array


def _check_dtype(dtype: np.dtype, *, subject: str) -> None:
    # bfloat16 and its kin have kind "V" too, but are no np.void.
    if dtype.kind in "OSUTMm" or issubclass(dtype.type, np.void):
        raise DataError(
            what=f"{subject} is of type {dtype}",
            why="a device holds numbers and booleans only",
            fix="encode the values as numbers (text as token ids), or leave this leaf out",
        )


def is_number_list(node: Any) -> bool:
    """True for ``[1, 2]`` and ``[[1, 2], [3, 4]]``; False for a list that holds an array, which is structure."""
    if not isinstance(node, list) or not node:
        return False
    return all(isinstance(item, (int, float, complex, np.number, np.bool_)) or is_number_list(item) for item in node)
