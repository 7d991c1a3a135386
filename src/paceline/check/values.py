"""What the abstract interpreter knows of a value: labels, a token and a site.

Owns: the labels that have a meaning, and their algebra.

Labels: any strings. Two have a meaning. ``@axis`` (see `varies`): the devices along a mesh axis may hold different
values. `SPLIT`, outside of a `shard_map`: an array that holds one part a device; inside, where its spec names an axis,
it becomes ``@axis``.
Tokens: two values with equal tokens are equal, since they come from equal inputs by equal operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.check.places import Site

Labels = frozenset[str]

SPLIT = "split"
NONE: Labels = frozenset()


def varies(axis: Any) -> str:
    """The label of a value that may differ between the devices along `axis`."""
    return f"@{axis}"


def differs(labels: Labels) -> bool:
    """Whether the devices along some axis may hold different values."""
    return any(label.startswith("@") for label in labels)


class Value(NamedTuple):
    """What is known of one value.

    Args:
      labels: what it depends on.
      token: equal tokens, equal values.
      site: the equation that made it, as long as it differs between devices.
    """

    labels: Labels = NONE
    token: int = -1
    site: Site | None = None


@dataclass(frozen=True)
class Draw:
    """One drawing of random numbers.

    Args:
      shape: of what is drawn; under `vmap` with the mapped dims in front.
      labels: of the key.
      key: token of the key.
      where: the user's ``file:line``, if there is one.
      backward: drawn while gradients are computed: a repetition of the forward pass.
      branches: which branch of which conditional, outside in.
      axes: the mesh axes bound where it is drawn; empty where the program sees all devices as one.
    """

    shape: tuple[int, ...]
    labels: Labels
    key: int
    where: str | None
    backward: bool
    branches: tuple[tuple[int, int], ...]
    axes: tuple[Any, ...]


def union(values: Iterable[Value]) -> Labels:
    """All labels of some values."""
    return NONE.union(*(value.labels for value in values))


def first_site(values: Iterable[Value]) -> Site | None:
    """The site of the first value that has one."""
    return next((value.site for value in values if value.site is not None), None)
