"""Links between the devices of a node and networks between nodes: nominal rates, and what collectives reach on them.

Owns: the two tables with their sources, the reading of a network's name ("8x400Gb InfiniBand", "400Gb per GPU").
Not here: what a collective costs on them (`insight.network`), which device has which (`hardware.catalog`).
Invariant: a nominal rate and an achieved one are never mixed up; where no published figure was found, the source says
"estimate"; an unknown name is an error.

Rates are bytes a second in one direction: of one device for a link, of a whole node for a network. "Bus bandwidth" is
what nccl-tests define (doc/PERFORMANCE.md): bytes that the slowest connection must carry over the time taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from paceline.base.errors import DeviceError, nearest

Medium = Literal["nvlink", "pcie", "memory"]
GB = 1e9
GBIT = 1e9 / 8


@dataclass(frozen=True)
class Link:
    """What joins the devices of a node.

    Args:
      name: as `Device.link` has it.
      medium: which latencies apply (`insight.network.protocols`).
      bytes_per_s: nominal, one device, one direction, all its links together.
      bus_bytes_per_s: what a ring over the usual number of devices reaches with large messages.
      latency_s: of one step of a collective with large messages (NCCL's Simple protocol).
      source: of the nominal rate.
      bus_source: of the achieved one.
      in_switch_bytes_per_s: bytes of an all-reduce over its time where switches add (NVLink SHARP); None where not.
      smaller: bus bandwidth of groups of fewer devices, where links are not switched.
    """

    name: str
    medium: Medium
    bytes_per_s: float
    bus_bytes_per_s: float
    latency_s: float
    source: str
    bus_source: str
    in_switch_bytes_per_s: float | None = None
    smaller: Mapping[int, float] = field(default_factory=dict)

    def bus(self, devices: int) -> float:
        """Achieved bus bandwidth [bytes/s] of a ring over so many devices of one node."""
        fitting = [size for size in self.smaller if size >= devices]
        return self.smaller[min(fitting)] if fitting else self.bus_bytes_per_s


@dataclass(frozen=True)
class Network:
    """What joins nodes.

    Args:
      name: what it was taken for, in words.
      bytes_per_s: nominal, a whole node, one direction.
      bus_bytes_per_s: what collectives reach of it.
      latency_s: from node to node, beside what a library adds to each step.
      rdma: whether adapters write to the other node's memory themselves.
      source: of the achieved share.
      burst_bytes: what a traffic shaper lets through at once after a pause; 0 where nothing shapes.
    """

    name: str
    bytes_per_s: float
    bus_bytes_per_s: float
    latency_s: float
    rdma: bool
    source: str
    burst_bytes: float = 0.0


_WHITE_PAPER = "NVIDIA {} architecture white paper, {}"

LINKS: tuple[Link, ...] = (
    Link(
        "NVLink1", "nvlink", 80 * GB, 62 * GB, 3.4e-6,
        _WHITE_PAPER.format("Pascal", 2016) + ": four links of 20 GB/s",
        "S. Jeaugey, NCCL 2.0, GTC 2017 (S7155): DGX-1, 8 GPUs; fewer: rings over the links that such a group has",
        smaller={2: 16 * GB, 4: 47 * GB},
    ),
    Link(
        "NVLink2", "nvlink", 150 * GB, 130 * GB, 3.4e-6,
        _WHITE_PAPER.format("Volta", 2017) + ": six links of 25 GB/s",
        "S. Jeaugey, NCCL, GTC 2018 (S8462): DGX-1V, hybrid cube mesh; fewer: rings over the links of such a group",
        smaller={2: 22 * GB, 4: 87 * GB},
    ),
    Link(
        "NVLink3", "nvlink", 300 * GB, 230 * GB, 3.4e-6,
        _WHITE_PAPER.format("Ampere", 2020) + ": twelve links of 25 GB/s, switched",
        "nccl-tests on 8 A100 SXM: 200 (github.com/NVIDIA/nccl-tests issue 149) to 235 GB/s",
    ),
    Link(
        "NVLink4", "nvlink", 450 * GB, 370 * GB, 3.4e-6,
        _WHITE_PAPER.format("Hopper", 2022) + ": eighteen links of 25 GB/s, switched",
        "S. Jeaugey, github.com/NVIDIA/nccl-tests issue 212: ring 370, all-reduce in the switches 480 on 8 H100",
        in_switch_bytes_per_s=480 * GB / 1.75,
    ),
    Link(
        "NVLink5", "nvlink", 900 * GB, 720 * GB, 3.4e-6,
        "NVIDIA DGX B200 data sheet, 2024: 14.4 TB/s over 8 GPUs and both directions",
        "in the switches: 425 GB/s of message on 72 GB200 (github.com/coreweave/nccl-tests pull 43); "
        "ring: estimate, 0.8 of nominal as on NVLink4",
        in_switch_bytes_per_s=425 * GB,
    ),
    Link(
        "PCIe3", "pcie", 15.75 * GB, 10 * GB, 5.7e-6,
        "PCI Express 3.0, 16 lanes",
        "estimate: 0.65 of nominal, through switches and both processors",
    ),
    Link(
        "PCIe4", "pcie", 31.5 * GB, 20 * GB, 5.7e-6,
        "PCI Express 4.0, 16 lanes",
        "between pairs of 8 A100 without a switch: github.com/NVIDIA/nccl-tests issue 178",
    ),
    Link(
        "PCIe4 host", "pcie", 31.5 * GB, 14 * GB, 5.7e-6,
        "PCI Express 4.0, 16 lanes, no peer-to-peer",
        "estimate: every byte crosses the host's memory twice",
    ),
    Link(
        "PCIe5", "pcie", 63 * GB, 40 * GB, 5.7e-6,
        "PCI Express 5.0, 16 lanes",
        "nccl-tests on 8 H100 PCIe: 35 to 45 GB/s (docs.alayanew.com, NCCL-tests in practice)",
    ),
    Link(
        "xGMI2", "nvlink", 400 * GB, 100 * GB, 3.4e-6,
        "AMD CDNA 2 white paper, 2021: eight links of 50 GB/s a die, unevenly spread (arXiv 2302.14827)",
        "estimate: two links of 50 GB/s along the ring",
        smaller={2: 150 * GB},
    ),
    Link(
        "xGMI3", "nvlink", 448 * GB, 315 * GB, 3.4e-6,
        "AMD CDNA 3 white paper, 2023: seven links of 64 GB/s, one to each peer",
        "AMD ROCm blog, RCCL and xGMI on MI300X, 2025: 48 GB/s a link usable; a group of n uses n - 1 links",
        smaller={2: 45 * GB, 3: 90 * GB, 4: 135 * GB, 5: 180 * GB, 6: 225 * GB, 7: 270 * GB},
    ),
    Link(
        "memory", "memory", 10 * GB, 10 * GB, 60e-6,
        "the machine's memory; its rate is that of `Device.memory_bytes_per_s`",
        "not used: `insight.network.gloo` counts copies through memory",
    ),
)  # fmt: skip

_KINDS: Mapping[str, tuple[float, float, bool, str]] = {
    "InfiniBand": (
        0.94, 2e-6, True,
        "46 to 48 of 50 GB/s an adapter (github.com/NVIDIA/nccl-tests issue 290), 96 of 100 (issue 119)",
    ),
    "RoCE": (0.94, 3e-6, True, "as InfiniBand; latency of an Ethernet switch added"),
    "RDMA": (0.94, 2e-6, True, "taken for RoCE or InfiniBand, since the name says neither"),
    "EFA": (0.80, 15e-6, True, "estimate: about 40 of 50 GB/s on p4d"),
    "Slingshot": (0.85, 3e-6, True, "estimate"),
    "Ethernet": (
        1448 / (1514 + 66 / 2), 25e-6, False,
        "TCP: 1448 of 1514 bytes are data, and data in the other direction costs 66 bytes of acknowledgement for each "
        "two packets; at most 5 GB/s an adapter (4 to 6: github.com/NVIDIA/nccl issue 450)",
    ),
}  # fmt: skip
_TCP_BYTES_PER_S = 5 * GB
_GENERATIONS = {"FDR": 56, "EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}
_SPELLED = {"ib": "InfiniBand", "infiniband": "InfiniBand", "roce": "RoCE", "rocev2": "RoCE", "efa": "EFA",
            "slingshot": "Slingshot", "ethernet": "Ethernet", "tcp": "Ethernet", "rdma": "RDMA"}  # fmt: skip
_RATE = re.compile(
    r"^(?:(?P<count>\d+)\s*x\s*)?(?P<rate>\d+(?:\.\d+)?)\s*"
    r"(?P<unit>[gm])(?:bit/s|bps|bits|bit|be|b)?(?P<ethernet>e)?(?:/s)?$"
)
_BYTES = re.compile(r"(?P<rate>\d+(?:\.\d+)?)\s*(?P<unit>[gGmM])(?:i?B(?![A-Za-z])|Bps\b|[bB]ytes?)")
"""A capital B that begins no BE: 100GB/s, 100 GBps; in bits it is small: 100Gb/s."""


def find_link(name: str) -> Link:
    """The link of that name.

    Raises: DeviceError: no such link.
    """
    for link in LINKS:
        if _plain(link.name) == _plain(name):
            return link
    raise DeviceError(
        what=f"unknown link {name!r}{nearest(name, [link.name for link in LINKS])}",
        why="what devices reach over it is not known",
        fix=f"use one of {', '.join(link.name for link in LINKS)}",
    )


def parse_network(name: str, *, devices_per_node: int) -> Network:
    """What a network's name says: ``10GbE``, ``25Gb RoCE``, ``8x200Gb InfiniBand``, ``400Gb per GPU``, ``NDR``.

    ``GbE`` and ``Ethernet`` mean TCP; ``Gb`` without a kind is taken for RDMA, and the result's name says so. A rate is
    of a node unless it says ``per GPU``; a generation of InfiniBand is one adapter a node unless a count stands before.

    Raises: DeviceError: the name says no rate or an unknown kind; the rate is in bytes, by a capital B.
    """
    if found := _BYTES.search(name):
        raise _in_bytes(name, number=float(found["rate"]), unit=found["unit"].upper())
    text = re.sub(r"\s+", " ", name.strip().lower())
    text, per_device = re.subn(r" ?(per|a|/) ?(gpu|device)$", "", text)
    text = re.sub(r" ?(per|a|/) ?node$", "", text)
    count, gbit, kind = _rate_and_kind(text, name)
    adapters = count * (devices_per_node if per_device else 1)
    share, latency_s, rdma, source = _KINDS[kind]
    nominal = gbit * GBIT
    achieved = nominal * share if rdma else min(nominal * share, _TCP_BYTES_PER_S)
    each = f"{gbit:g} Gb/s {kind}" if adapters == 1 else f"{adapters} x {gbit:g} Gb/s {kind}"
    return Network(f"{each} a node", adapters * nominal, adapters * achieved, latency_s, rdma, source)


def _rate_and_kind(text: str, name: str) -> tuple[int, float, str]:
    """Adapters, Gbit/s of each, kind."""
    count, gbit, kind, ethernet = 1, None, None, False
    for word in re.sub(r"(\d)\s+([gm]b)", r"\1\2", re.sub(r"(\d+)\s*x\s*(\w)", r"\1x\2", text)).split():
        times, generation = _counted(word)
        if match := _RATE.match(word):
            count = int(match["count"] or 1)
            gbit = float(match["rate"]) / (1 if match["unit"] == "g" else 1000)
            ethernet = word.endswith("be")
        elif generation.upper() in _GENERATIONS:
            count, gbit, kind = max(count, times), float(gbit or _GENERATIONS[generation.upper()]), "InfiniBand"
        elif word in _SPELLED:
            kind = _SPELLED[word]
        else:
            raise _unknown(name)
    if gbit is None or gbit <= 0 or count < 1:
        raise _unknown(name)
    return count, gbit, kind or ("Ethernet" if ethernet else "RDMA")


def _counted(word: str) -> tuple[int, str]:
    count, _, rest = word.rpartition("x")
    return (int(count), rest) if count.isdigit() else (1, word)


def _in_bytes(name: str, *, number: float, unit: str) -> DeviceError:
    return DeviceError(
        what=f"network {name!r} has a rate in bytes",
        why="rates of networks are in bits, as vendors name them, and eight times as large",
        fix=f"say {8 * number:g}{unit}b, or {number:g}{unit}b if bits were meant",
    )


def _unknown(name: str) -> DeviceError:
    return DeviceError(
        what=f"unknown network {name!r}",
        why="what nodes reach over it is not known, and another network's rate would give wrong answers",
        fix="say its rate and kind, such as 10GbE, 100GbE, '8x200Gb InfiniBand', '400Gb per GPU' or '4xNDR'"
        + ("; a file of measured curves goes to --curves" if name.lower().endswith(".json") else ""),
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
