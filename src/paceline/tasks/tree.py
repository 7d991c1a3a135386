"""Names of the leaves of a pytree, as users write them: ``conv1.kernel``, ``layers.0.bias``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def leaf_name(path: tuple[Any, ...]) -> str:
    """The dotted name of a tree path; ``(whole)`` for a tree that is one leaf."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or "(whole)"


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf with its dotted name, in tree order."""
    return [(leaf_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def signature(tree: Any) -> Any:
    """Structure, shapes and dtypes of a tree of arrays, hashable: what a program compiled for it depends on."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def map_named(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """The tree with ``function(name, leaf)`` in place of each leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(leaf_name(path), leaf), tree)
