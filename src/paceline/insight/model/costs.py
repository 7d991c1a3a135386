"""The cost of a timeline's collectives on a machine.

Owns: asking `insight.network` for a collective's seconds, once for each kind, size and group.
Not here: the cost itself (`insight.network.cost`).
Invariant: the same collective on the same group always costs the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.insight.hardware.machine import Machine
from paceline.insight.network.cost import NCCL, collective_cost
from paceline.insight.network.curves import NetworkCurves
from paceline.insight.timeline import Collective

# What XLA calls otherwise than NCCL.
_NAMES = {"collective-broadcast": "broadcast"}

# Seconds of a collective among so many devices.
CollectiveCost = Callable[[Collective, int], float]


class MachineCost:
    """Seconds of collectives on a machine; call it with a collective and the size of its group.

    Args:
      curves: measured on a machine like this one, used where they fit.
      choose: algorithms to pick the fastest of.
    """

    def __init__(self, machine: Machine, *, curves: NetworkCurves | None = None, choose: Sequence[str] = NCCL) -> None:
        self._machine = machine
        self._curves = curves
        self._choose = choose
        self._known: dict[tuple[str, int, int], float] = {}

    def __call__(self, collective: Collective, group: int) -> float:
        key = (collective.kind, collective.bytes, group)
        if key not in self._known:
            size = float(collective.bytes)
            cost = collective_cost(
                _NAMES.get(collective.kind, collective.kind),
                size,
                machine=self._machine,
                devices=group,
                curves=self._curves,
                choose=self._choose,
            )
            self._known[key] = cost.time_s
        return self._known[key]
