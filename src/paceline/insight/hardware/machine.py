"""Machines: so many devices of a kind in a node, so many nodes, and what joins them.

Owns: reading ``8xH100``, what is assumed where nothing was said, and saying so.
Not here: the numbers of devices, links and networks (`hardware.catalog`, `hardware.links`).
Invariant: everything that was assumed stands in `Machine.notes`; nothing unknown is replaced by something known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from paceline.base.errors import DeviceError
from paceline.insight.hardware.catalog import Device
from paceline.insight.hardware.devices import find_device, meaning
from paceline.insight.hardware.links import Link, Network, find_link, parse_network

CPU_ALIASES = ("cpu",)
"""Of the CPU at hand, which is measured and in no table."""

_NAMES_RDMA = re.compile(r"(?i)rdma|roce|infiniband|\bib\b|[enhsqx]dr|efa|slingshot|omni")
_FORM = re.compile(r"^\s*(?:(\d+)\s*[x×*]\s*)?(.+?)\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Machine:
    """Where a run takes place.

    Args:
      device: one of its devices.
      devices_per_node: at least 1.
      nodes: at least 1.
      link: between devices of a node; None where a node has one.
      network: between nodes; None where there is one.
      notes: what was assumed or is unusual, as sentences.
    """

    device: Device
    devices_per_node: int = 1
    nodes: int = 1
    link: Link | None = None
    network: Network | None = None
    notes: tuple[str, ...] = ()

    @property
    def num_devices(self) -> int:
        """K of the whole machine."""
        return self.devices_per_node * self.nodes

    @property
    def name(self) -> str:
        """``8 x H100 SXM 80 GB``, or ``4 nodes of 8 x ...``."""
        node = f"{self.devices_per_node} x {self.device.name}"
        return node if self.nodes == 1 else f"{self.nodes} nodes of {node}"

    def with_devices(self, count: int) -> Machine:
        """The same kind of machine with exactly enough nodes for `count` devices; fewer than a node's are one node.

        Raises: DeviceError: no network is given and none is usual for the device; `count` is below 1.
        """
        if count < 1:
            raise _not_a_machine(f"{count} devices", "use 1 or more")
        nodes = -(-count // self.devices_per_node)
        if nodes > 1 and self.network is None:
            network, note = _usual_network(self.device, self.devices_per_node)
            return replace(self, nodes=nodes, network=network, notes=(*self.notes, note))
        return replace(self, nodes=nodes)


def parse_machine(text: str, *, nodes: int = 1, network: str | None = None, link: str | None = None) -> Machine:
    """The machine that ``8xH100``, ``H100`` or ``4 x A100-40`` names.

    Args:
      text: devices a node and their name; without a number, one.
      nodes: how many such nodes.
      network: what joins them, such as ``400Gb per GPU`` (`links.parse_network`); None: the device's usual one in
        clouds, and `Machine.notes` says which.
      link: what joins devices of a node, None: the device's usual one.
    Raises: DeviceError: unknown device, link or network; no devices, no nodes; several nodes of a device without a
      usual network, and none given.
    """
    match = _FORM.match(text)
    if match is None:
        raise _not_a_machine(repr(text), "name a device, such as 8xH100")
    per_node = int(match[1] or 1)
    if per_node < 1 or nodes < 1:
        raise _not_a_machine(f"{per_node} devices a node on {nodes} nodes", "use 1 or more of each")
    device = find_device(match[2])
    notes = [note for note in [meaning(match[2])] if note]
    if per_node > device.devices_per_node:
        notes.append(f"usual nodes hold at most {device.devices_per_node} x {device.name}; {per_node} are assumed here")
    joined = _join(device, link) if per_node > 1 else None
    if link is not None and joined is None:
        notes.append(f"the link {find_link(link).name} joins nothing: a node has one device")
    between = None
    if nodes > 1 and network is None:
        between, note = _usual_network(device, per_node)
        notes.append(note)
    elif network is not None:
        between = parse_network(network, devices_per_node=per_node)
        if between.rdma and not _NAMES_RDMA.search(network):
            notes.append(f"the network {network!r} is taken for {between.name}; write 100GbE for Ethernet with TCP")
    if device.aliases == CPU_ALIASES and per_node > 1:
        device = _shared(device, per_node)
        notes.append(f"{per_node} devices share the CPU: each has 1/{per_node} of its rates and of the memory")
    return Machine(device, per_node, nodes, joined, between, tuple(notes))


def _shared(device: Device, count: int) -> Device:
    """A CPU's part where so many devices share it."""
    rates = {dtype: rate / count for dtype, rate in device.peak_flops_per_s.items()}
    return replace(
        device, peak_flops_per_s=rates, memory_bytes=device.memory_bytes // count,
        memory_bytes_per_s=device.memory_bytes_per_s / count, note="",
    )  # fmt: skip


def _join(device: Device, link: str | None) -> Link:
    name = link or device.link
    if name is None:
        raise DeviceError(
            what=f"no usual link between devices {device.name} of one node is known",
            why="the cost of their collectives depends on it",
            fix="name it with --link, such as PCIe4",
        )
    return find_link(name)


def _usual_network(device: Device, per_node: int) -> tuple[Network, str]:
    if device.network is None:
        raise DeviceError(
            what=f"several nodes of {device.name}, but no network between them is given and none is usual",
            why="the cost of collectives between nodes depends on it",
            fix="name it with --network, such as 100GbE or '400Gb per GPU'",
        )
    network = parse_network(device.network, devices_per_node=per_node)
    return network, f"no network was given: {network.name} is assumed ({device.sources.get('network', 'usual')})"


def _not_a_machine(what: str, fix: str) -> DeviceError:
    return DeviceError(what=f"{what} is no machine", why="a run needs at least one device", fix=fix)
