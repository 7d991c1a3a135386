"""The replica audit: whether devices that should hold the same bytes do.

Owns: `replicas` and `start`, the comparison of fingerprints, who is the odd one out, the words of the result.
Not here: the hash (`check.fingerprint`), who should hold the same (`check.layout`), the remedy (`check.rebroadcast`),
when a run audits (`train.audit`).
Invariant: `ok` means that something was compared, nothing differed, and no leaf that may hold copies was left out; what
was not compared is listed with the reason.

The module is not called after its function `paceline.check.replicas`: importing it would hide the function.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from paceline.base.errors import OptionError
from paceline.check.fingerprint import fingerprints
from paceline.check.layout import UNDECIDED, Layout, layouts
from paceline.tasks.tree import named_leaves

_SHOWN_DEVICES = 8


@dataclass(frozen=True)
class Divergence:
    """Replicas of one leaf that are not equal.

    Args:
      leaf: its dotted name.
      devices: ids of the odd ones; of all replicas if there is no majority.
      processes: the process of each of these devices.
      replicas: how many devices should hold the same bytes.
      odd: True if most replicas are equal, so that `devices` can be told to be wrong; False if none can.
    """

    leaf: str
    devices: tuple[int, ...]
    processes: tuple[int, ...]
    replicas: int
    odd: bool

    def __str__(self) -> str:
        where = f"{self.leaf} on {_devices_text(self.devices)} ({_processes_text(self.processes)})"
        if self.odd:
            equal = self.replicas - len(self.devices)
            return f"{where} is unlike the other {equal} replicas, which are equal"
        return f"{where} differs, and no majority of the {self.replicas} replicas is equal, so none can be told right"


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Args:
      leaves_compared: leaves that have replicas.
      num_devices: devices that hold them.
      excluded: leaves that were not compared, by name, with the reason.
      divergences: what differs, in tree order.
    """

    leaves_compared: int
    num_devices: int
    excluded: Mapping[str, str] = field(default_factory=dict)
    divergences: tuple[Divergence, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether replicas were compared, all are equal, bit for bit, and no leaf that may hold some was left out."""
        return self.leaves_compared > 0 and not self.divergences and UNDECIDED not in self.excluded.values()

    def lines(self) -> list[str]:
        """The result as people read it."""
        compared = f"{self.leaves_compared:,} {'leaf' if self.leaves_compared == 1 else 'leaves'}"
        if not self.leaves_compared:
            verdict = "nothing was compared: no leaf has replicas"
        elif self.divergences:
            differing = len({divergence.leaf for divergence in self.divergences})
            verdict = f"{compared} compared over {self.num_devices} devices, {differing} not equal"
        else:
            verdict = f"{compared} compared over {self.num_devices} devices: equal, bit for bit"
        skipped = [f"not compared: {name}: {reason}" for name, reason in self.excluded.items()]
        return [verdict, *(str(divergence) for divergence in self.divergences), *skipped]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data: `ok` and the fields."""
        return {"ok": self.ok, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class _Part:
    """The leaves on one mesh and their fingerprints ``[K, leaves, 2]``."""

    mesh: Mesh
    layouts: Mapping[str, Layout]
    found: Array


@dataclass(frozen=True)
class PendingAudit:
    """An audit that the devices may still be computing. It needs the tree's arrays no longer: they may be donated."""

    parts: tuple[_Part, ...]
    excluded: Mapping[str, str]

    def is_ready(self) -> bool:
        """Whether `result` would not wait."""
        return all(part.found.is_ready() for part in self.parts)  # pyright: ignore[reportAttributeAccessIssue]: Array has it; the stubs lack it

    def result(self) -> Audit:
        """What was found; waits for the devices."""
        divergences = [divergence for part in self.parts for divergence in _compare(part)]
        return Audit(
            leaves_compared=sum(len(part.layouts) for part in self.parts),
            num_devices=max((part.mesh.size for part in self.parts), default=0),
            excluded=self.excluded,
            divergences=tuple(divergences),
        )


def replicas(tree: Any, *, device_axis: bool | None = None) -> Audit:
    """Compare the bytes that devices hold of a tree, where they should hold the same.

    Never looks at `is_fully_replicated`: `shard_map(check_vma=False, out_specs=P())` sets it whatever the devices hold.

    Args:
      tree: any pytree of arrays. Leaves without replicas (of the host, on one device, split over all) are excluded.
      device_axis: True: leaves are ``[K, ...]`` with one copy a device, as `jax.pmap` returns them. False: leaves split
        along their first dim are parts of one array. None: True if every leaf that is on several devices has that form;
        say False for parameters split by rows that are no copies. In a mixed tree such leaves are not compared, and
        the result is not ok.
    Returns: what differs, on which device of which process; with three or more replicas, which is the odd one out.
    Raises: StateError: a leaf that was donated, or a call inside jit. OptionError: `device_axis` is no bool.
    """
    if device_axis not in (None, True, False):
        raise OptionError(
            what=f"device_axis={device_axis!r}",
            why="it says whether the first dim of the leaves counts devices",
            fix="use device_axis=True or False, or leave it out",
        )
    return start(tree, device_axis=device_axis).result()


def start(tree: Any, *, device_axis: bool | None = None) -> PendingAudit:
    """Dispatch an audit, as `replicas` does, without waiting for it. Arguments and errors as there."""
    named = named_leaves(tree)
    found, excluded = layouts(named, device_axis=device_axis)
    leaves = {name: leaf for name, leaf in named if name in found}
    parts = tuple(_dispatch(mesh, members, leaves) for mesh, members in by_mesh(found).items())
    return PendingAudit(parts, excluded)


def by_mesh(found: Mapping[str, Layout]) -> dict[Mesh, dict[str, Layout]]:
    """Layouts grouped by mesh: one program serves the leaves of one mesh."""
    groups: dict[Mesh, dict[str, Layout]] = {}
    for name, layout in found.items():
        groups.setdefault(layout.mesh, {})[name] = layout
    return groups


def _dispatch(mesh: Mesh, members: dict[str, Layout], leaves: Mapping[str, Array]) -> _Part:
    specs = tuple(layout.spec for layout in members.values())
    with jax.set_mesh(mesh):  # another one may be set around the call
        return _Part(mesh, members, fingerprints(tuple(leaves[name] for name in members), mesh=mesh, specs=specs))


def _compare(part: _Part) -> list[Divergence]:
    found = np.asarray(part.found.addressable_data(0))
    devices = list(part.mesh.devices.flat)
    divergences = []
    for number, (name, layout) in enumerate(part.layouts.items()):
        column = found[:, number]
        if (column == column[0]).all():
            continue
        for group in layout.groups:
            divergences += _judge(name, column, group=[(place, devices[place]) for place in group])
    return divergences


def _judge(name: str, column: np.ndarray, *, group: list[tuple[int, jax.Device]]) -> list[Divergence]:
    """The divergence of one group of replicas in a list, or an empty one; `column` is ``[K, 2]``."""
    values = [tuple(column[place]) for place, _ in group]
    commonest, count = Counter(values).most_common(1)[0]
    if count == len(group):
        return []
    odd = 2 * count > len(group)
    told = [device for (_, device), value in zip(group, values, strict=True) if not odd or value != commonest]
    ids, processes = tuple(device.id for device in told), tuple(device.process_index for device in told)
    return [Divergence(name, ids, processes, len(group), odd)]


def _devices_text(devices: tuple[int, ...]) -> str:
    shown = ", ".join(str(device) for device in devices[:_SHOWN_DEVICES])
    more = f" and {len(devices) - _SHOWN_DEVICES} more" if len(devices) > _SHOWN_DEVICES else ""
    return f"device{'s' if len(devices) > 1 else ''} {shown}{more}"


def _processes_text(processes: tuple[int, ...]) -> str:
    shown = sorted(set(processes))
    return f"process{'es' if len(shown) > 1 else ''} {', '.join(str(process) for process in shown[:_SHOWN_DEVICES])}"
