"""What a device sends in a step, so that programs that exchange the same in other ways can be compared.

Owns: the bytes that a collective makes each device send, if it goes round the devices in a ring.
Not here: what a collective takes in time (`insight.network`, which a page may not import), the payload.
Invariant: nothing is guessed: a kind or a group that is not known gives no number.

S is the whole value, as ``program.json`` and plans have it: the operand of an all-reduce, a reduce-scatter or an
all-to-all on one device, the result of an all-gather. On n devices a ring passes n - 1 parts of S/n on, twice for an
all-reduce, which is a reduce-scatter and an all-gather (Patarasuk & Yuan 2009; nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_PARTS = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1, "all-to-all": 1}
"""How often a device passes n - 1 of n parts on."""
_WHOLE = ("collective-permute", "collective-broadcast")
"""Those in which it passes the whole value on."""


class Use(NamedTuple):
    """A collective of a step.

    Args:
      size_bytes: S.
      devices: n of a group.
      times: how often it runs a step.
    """

    kind: str
    size_bytes: int | float
    devices: int
    times: int | float


def sent_bytes(uses: Iterable[Use]) -> float | None:
    """Bytes that each device sends in a step; None if the kind or the group of one is not known."""
    total = 0.0
    for use in uses:
        if use.devices < 1 or use.kind not in (*_PARTS, *_WHOLE):
            return None
        share = (use.devices - 1) / use.devices
        factor = _PARTS[use.kind] * share if use.kind in _PARTS else float(use.devices > 1)
        total += use.times * factor * use.size_bytes
    return total
