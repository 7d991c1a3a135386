"""Latencies and shares of bandwidth of NCCL's protocols, as NCCL itself assumes them.

Owns: the table that NCCL's own choice of algorithm uses, and which protocols a link has.
Not here: how algorithms use them (`network.algorithms`), rates of links (`hardware.links`).
Invariant: the figures are NCCL's, in seconds and as shares; none is fitted here.

A protocol trades latency for bandwidth: LL sends a flag with every four bytes, LL128 one with every 120, Simple waits
for whole chunks. Taking the fastest of them at each size gives the bandwidth curve that nccl-tests show.

Source: NCCL, src/graph/tuning.cc of 2026 (latencies, shares, largest LL rates); explained in Hu et al., "Demystifying
NCCL", arXiv 2507.04786, 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from paceline.insight.hardware.links import Link

US = 1e-6
GB = 1e9


@dataclass(frozen=True)
class Protocol:
    """Of ring or tree.

    Args:
      name: ``LL``, ``LL128`` or ``Simple``.
      base_s: of every collective, launch included.
      hop_s: of one step, by medium: ``nvlink``, ``pcie``, ``net``.
      share: of the bus bandwidth that remains within one node.
      net_share: the same where several nodes take part.
      flushes: whether a step over a network costs the network's latency twice.
    """

    name: str
    base_s: float
    hop_s: Mapping[str, float]
    share: float
    net_share: float
    flushes: bool = False


def _hops(nvlink: float, pcie: float, net: float) -> dict[str, float]:
    return {"nvlink": nvlink * US, "pcie": pcie * US, "net": net * US}


RING: tuple[Protocol, ...] = (
    Protocol("LL", 6.6 * US, _hops(0.6, 1.0, 2.7), 0.5, 0.5),
    Protocol("LL128", 14.0 * US, _hops(1.9, 2.5, 4.0), 0.92, 0.92),
    Protocol("Simple", 8.4 * US, _hops(3.4, 5.7, 14.0), 1.0, 1.0, flushes=True),
)
TREE: tuple[Protocol, ...] = (
    Protocol("LL", 6.8 * US, _hops(0.6, 1.0, 5.0), 0.92 / 3.8, 0.92 / 3.8),
    Protocol("LL128", 14.0 * US, _hops(1.25, 1.9, 8.5), 0.92 * 7 / 9, 0.92 * 120 / 128),
    Protocol("Simple", 8.4 * US, _hops(4.0, 4.0, 14.0), 0.92, 0.92, flushes=True),
)
TABLES: Mapping[Literal["ring", "tree"], tuple[Protocol, ...]] = {"ring": RING, "tree": TREE}

IN_SWITCH_S = 25 * US
"""Latency of an all-reduce whose additions the switches of a node make (NVLS)."""
IN_SWITCH_NET_S = 20.9 * US
"""Of one level of a tree between nodes above it."""
IN_SWITCH_FILL_S = 22 * US
"""An all-reduce in the switches reaches B / (1 + sqrt(B * this / S)) of its bandwidth B with a message of S bytes.

Fitted here, to the one published table found, nccl-tests on 8 GPUs with NVLink 4 switches
(github.com/kvcache-ai/Mooncake pull 3484): 4 to 32 MiB within 10 %. NCCL's own model has no such term.
"""

_LL_BYTES_PER_S = {
    "NVLink1": 39 * GB,
    "NVLink2": 39 * GB,
    "NVLink3": 87.7 * GB,
    "NVLink4": 141 * GB,
    "NVLink5": 282 * GB,
}
_LL_OTHER = 39 * GB
_LL_NODES = {2: 39 * GB, 3: 20.4 * GB}
_WITH_LL128 = frozenset({"NVLink2", "NVLink3", "NVLink4", "NVLink5"})


def protocols(algorithm: Literal["ring", "tree"], link: Link | None) -> tuple[Protocol, ...]:
    """Those that NCCL enables by default on this link: LL128 needs NVLink and a GPU that stores 128 bytes at once."""
    table = TABLES[algorithm]
    if link is None or link.name in _WITH_LL128:
        return table
    return tuple(protocol for protocol in table if protocol.name != "LL128")


def bus_limit(protocol: Protocol, link: Link | None, *, nodes: int) -> float:
    """Bus bandwidth [bytes/s] that a protocol cannot exceed: that of the flags of LL; infinite for the others."""
    if protocol.name != "LL":
        return float("inf")
    if nodes > 1:
        return _LL_NODES[min(nodes, 3)]
    return _LL_BYTES_PER_S.get(link.name, _LL_OTHER) if link else _LL_OTHER
