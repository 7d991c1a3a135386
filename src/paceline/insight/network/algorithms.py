"""What each algorithm of a collective costs: latency of its steps plus bytes over bandwidth.

Owns: the formulas of ring, double binary tree, additions in switches, and the hierarchical scheme.
Not here: which of them a library picks (`network.cost`), Gloo (`network.gloo`), the tables (`network.protocols`).
Invariant: a time never falls when the message or the group grows in nodes; one device costs nothing.

S = bytes of the whole value, n = devices of the group, N = nodes, g = devices of the group on a node, B = bus bandwidth
between devices of a node, W = bandwidth that collectives reach between a node and the network.

    ring         all-reduce 2(n-1) steps, 2S(n-1)/n bytes through each connection; reduce-scatter, all-gather half
                 (Patarasuk & Yuan 2009; Thakur, Rabenseifner & Gropp 2005)
    tree         2((g-1) + log2 N) steps; a node sends 2S, over two nodes S (Sanders, Speck & Träff 2009)
    hierarchical reduce-scatter in the node, all-reduce of S/g between nodes, all-gather in the node, in that order
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.insight.hardware.links import Link, Network
from paceline.insight.network.protocols import (
    IN_SWITCH_FILL_S,
    IN_SWITCH_NET_S,
    IN_SWITCH_S,
    Protocol,
    bus_limit,
    protocols,
)


@dataclass(frozen=True)
class Group:
    """Devices that exchange, filled node by node.

    Args:
      devices: n, at least 2.
      on_node: g of the fullest node.
      nodes: N that take part.
      link: between devices of a node; None if g is 1.
      network: between nodes; None if N is 1.
    """

    devices: int
    on_node: int
    nodes: int
    link: Link | None
    network: Network | None

    @property
    def medium(self) -> str:
        """Whose latency a step within a node has."""
        return self.link.medium if self.link else "net"

    def bus(self) -> float:
        """Bus bandwidth [bytes/s] of a ring with large messages."""
        inside = self.link.bus(self.on_node) if self.link else math.inf
        return min(inside, self.network.bus_bytes_per_s if self.network else math.inf)


@dataclass(frozen=True)
class Way:
    """One way to run a collective."""

    algorithm: str
    protocol: str
    time_s: float


STEPS = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1, "broadcast": 1}
"""How often a ring passes everything around."""


def bus_factor(kind: str, devices: int) -> float:
    """Bytes through each connection of a ring, over those of the whole value (nccl-tests, doc/PERFORMANCE.md)."""
    share = (devices - 1) / devices
    return {"all-reduce": 2 * share, "broadcast": 1.0, "collective-permute": 1.0}.get(kind, share)


def ring(kind: str, size: int | float, *, group: Group) -> Iterator[Way]:
    """One around all devices, in every protocol."""
    passes = STEPS[kind]
    steps = passes * (group.devices - 1)
    between = passes * (group.nodes - 1)
    for protocol in protocols("ring", group.link):
        bus = min(group.bus() * protocol.share, bus_limit(protocol, group.link, nodes=group.nodes))
        inside_s = protocol.hop_s[group.medium]
        if group.nodes > 1:
            inside_s = max(inside_s, 3e-6 if protocol.flushes else 1e-6)
        latency_s = protocol.base_s + (steps - between) * inside_s + between * _net_s(protocol, group)
        yield Way("ring", protocol.name, latency_s + size * bus_factor(kind, group.devices) / bus)


def tree(size: int | float, group: Group) -> Iterator[Way]:
    """All-reduce up and down two binary trees between nodes, chains within."""
    levels = math.ceil(math.log2(group.nodes)) if group.nodes > 1 else 0
    inside = group.link.bus(group.on_node) / 2 if group.link else math.inf
    between = group.network.bus_bytes_per_s / min(group.nodes - 1, 2) if group.network else math.inf
    for protocol in protocols("tree", group.link):
        share = protocol.share if group.nodes == 1 else protocol.net_share
        rate = min(min(inside, between) * share, bus_limit(protocol, group.link, nodes=group.nodes) / 2)
        hop_s = protocol.hop_s[group.medium]
        latency_s = protocol.base_s + 2 * ((group.on_node - 1) * hop_s + levels * _net_s(protocol, group))
        yield Way("tree", protocol.name, latency_s + size / rate)


def in_switch(size: int | float, group: Group) -> Iterator[Way]:
    """All-reduce added up by the switches of each node, over a tree between nodes."""
    if group.link is None or group.link.in_switch_bytes_per_s is None or group.on_node < 2:
        return
    rate = group.link.in_switch_bytes_per_s
    latency_s = IN_SWITCH_S
    name = "in-switch"
    if group.network is not None:
        rate = min(rate, group.network.bus_bytes_per_s / min(group.nodes - 1, 2))
        latency_s += 2 * math.ceil(math.log2(group.nodes)) * (IN_SWITCH_NET_S + group.network.latency_s)
        name = "in-switch tree"
    yield Way(name, "Simple", latency_s + size * (1 + math.sqrt(rate * IN_SWITCH_FILL_S / size)) / rate)


def hierarchical(kind: str, size: int | float, *, group: Group) -> Iterator[Way]:
    """Node by node first: what one phase leaves is all that the next one moves."""
    if group.nodes < 2 or group.on_node < 2:
        return
    inner = Group(group.on_node, group.on_node, 1, group.link, None)
    outer = Group(group.nodes, 1, group.nodes, None, group.network)
    phases = {"all-reduce": ("reduce-scatter", "all-reduce", "all-gather")}.get(kind, (kind, kind))
    # Between nodes every device moves its own g-th part, all of them at once: together S at the node's rate.
    times = [best(ring(phase, size, group=outer if i == 1 else inner)).time_s for i, phase in enumerate(phases)]
    yield Way("hierarchical", "", sum(times))


def all_to_all(size: int | float, group: Group) -> Iterator[Way]:
    """Every device sends each other one its n-th part directly."""
    n, g = group.devices, group.on_node
    inside_s = size * (g - 1) / n / group.link.bus(g) if group.link else 0.0
    between_s = g * size * (n - g) / n / group.network.bus_bytes_per_s if group.network else 0.0
    simple = protocols("ring", group.link)[-1]
    yield Way("direct", simple.name, _first_s(simple, group) + max(inside_s, between_s))


def permute(size: int | float, group: Group) -> Iterator[Way]:
    """Every device sends to one other: at worst over the network, with its share of the node's adapters."""
    simple = protocols("ring", group.link)[-1]
    rate = group.link.bus(2) if group.link else math.inf
    if group.network is not None:
        rate = min(rate, group.network.bus_bytes_per_s / group.on_node)
    yield Way("direct", simple.name, _first_s(simple, group) + size / rate)


def best(ways: Iterator[Way] | list[Way]) -> Way:
    """The fastest."""
    return min(ways, key=lambda way: way.time_s)


def _first_s(protocol: Protocol, group: Group) -> float:
    hop_s = _net_s(protocol, group) if group.nodes > 1 else protocol.hop_s[group.medium]
    return protocol.base_s + hop_s


def _net_s(protocol: Protocol, group: Group) -> float:
    """One step over the network [s]."""
    if group.network is None:
        return 0.0
    return protocol.hop_s["net"] + group.network.latency_s * (2 if protocol.flushes else 1)
