"""What ``8xH100`` means, and that what was assumed is said."""

from __future__ import annotations

import pytest

from paceline.base.errors import DeviceError
from paceline.insight.hardware.links import LINKS, find_link, parse_network
from paceline.insight.hardware.machine import parse_machine

GBIT = 1e9 / 8


@pytest.mark.parametrize(
    ("text", "devices", "name"),
    [("8xH100", 8, "8 x H100 SXM 80 GB"), ("H100", 1, "1 x H100 SXM 80 GB"), ("4 x A100-40", 4, "4 x A100 SXM 40 GB")],
)
def test_a_machine_is_a_number_and_a_device(text, devices, name):
    """Without a number there is one; one device has no link."""
    machine = parse_machine(text)
    assert (machine.num_devices, machine.name) == (devices, name)
    assert (machine.link is None) == (devices == 1) and machine.network is None


def test_nodes_are_counted_as_nodes():
    """``8xH100`` on 4 nodes are 32 devices, 8 a node, joined by the network that was named."""
    machine = parse_machine("8xH100", nodes=4, network="8x200Gb InfiniBand")
    assert (machine.num_devices, machine.devices_per_node, machine.nodes) == (32, 8, 4)
    assert machine.network.bytes_per_s == pytest.approx(1600 * GBIT)
    assert not [note for note in machine.notes if "network" in note]


def test_a_network_that_nobody_named_is_assumed_aloud():
    """The device's usual one, in the notes with its source."""
    (said,) = [note for note in parse_machine("8xH100", nodes=2).notes if "network" in note]
    assert "8 x 400 Gb/s RDMA a node is assumed" in said


def test_several_nodes_without_a_usual_network_are_refused():
    """Nothing is guessed for cards that no cloud joins."""
    with pytest.raises(DeviceError) as raised:
        parse_machine("8xRTX 4090", nodes=2)
    assert "--network" in raised.value.fix


def test_more_devices_than_a_node_holds_is_said():
    """Sixteen H100 in a node do not exist as usual nodes; they are allowed with a note."""
    assert any("at most 8" in note for note in parse_machine("16xH100").notes)
    assert not any("at most" in note for note in parse_machine("16xA100-40").notes)


@pytest.mark.parametrize(("text", "nodes"), [("0xH100", 1), ("8xH100", 0), ("", 1)])
def test_no_devices_are_no_machine(text, nodes):
    """Zero of anything, or nothing at all."""
    with pytest.raises(DeviceError, match="no machine") as raised:
        parse_machine(text, nodes=nodes)
    assert "use 1 or more" in raised.value.fix or "8xH100" in raised.value.fix


def test_a_machine_grows_by_whole_nodes():
    """4096 devices in eights are 512 nodes; 3 of 8 are one node."""
    machine = parse_machine("8xH100")
    assert machine.with_devices(4096).nodes == 512
    assert machine.with_devices(3).nodes == 1
    assert machine.with_devices(9).network is not None
    with pytest.raises(DeviceError):
        machine.with_devices(0)


@pytest.mark.parametrize(
    ("name", "gbit", "rdma"),
    [
        ("10GbE", 10, False),
        ("50GbE", 50, False),
        ("25Gb RoCE", 25, True),
        ("1600Gb RoCE per node", 1600, True),
        ("400Gb per GPU", 3200, True),
        ("8x200Gb InfiniBand", 1600, True),
        ("4xEDR", 400, True),
        ("InfiniBand HDR", 200, True),
        ("100 Gbit/s", 100, True),
        ("100Mb Ethernet", 0.1, False),
        ("1Gb Ethernet", 1, False),
    ],
)
def test_a_network_is_read_from_its_name(name, gbit, rdma):
    """Rate of a node in each direction, in the units of the name; GbE is TCP."""
    network = parse_network(name, devices_per_node=8)
    assert network.bytes_per_s == pytest.approx(gbit * GBIT)
    assert network.rdma is rdma
    assert 0 < network.bus_bytes_per_s < network.bytes_per_s


@pytest.mark.parametrize("name", ["fast", "InfiniBand", "0Gb Ethernet", "10GbE carrier-pigeon", ""])
def test_an_unknown_network_is_unknown(name):
    """A kind without a rate, a rate of nothing, a kind that is none."""
    with pytest.raises(DeviceError, match="unknown network") as raised:
        parse_network(name, devices_per_node=8)
    assert "10GbE" in raised.value.fix and "--curves" not in raised.value.fix


def test_a_file_taken_for_a_network_is_told_where_it_goes():
    """`scale --network --json FILE` writes curves; the plan's option for them has another name."""
    with pytest.raises(DeviceError, match="unknown network") as raised:
        parse_network("runs/scale.json", devices_per_node=8)
    assert raised.value.fix.endswith("a file of measured curves goes to --curves")


@pytest.mark.parametrize(
    ("name", "bits"), [("100GB/s", "800Gb"), ("100 GBps", "800Gb"), ("8x50GB InfiniBand", "400Gb"), ("12.5GB", "100Gb")]
)
def test_a_rate_in_bytes_is_refused_with_the_bits(name, bits):
    """A capital B is a byte, eight times a bit; GBE is Ethernet however it is spelled."""
    with pytest.raises(DeviceError, match="in bytes") as raised:
        parse_network(name, devices_per_node=8)
    assert f"say {bits}" in raised.value.fix
    assert parse_network("10GBE", devices_per_node=8) == parse_network("10GbE", devices_per_node=8)
    assert parse_network("100GBit/s", devices_per_node=8).bytes_per_s == pytest.approx(100 * GBIT)


@pytest.mark.parametrize(
    ("name", "gbit", "full", "gbit_of_node"),
    [("A100", 200, 8, 1600), ("MI250X", 100, 8, 800), ("MI250X card", 200, 4, 800), ("P100", 50, 8, 400)],
)
def test_a_node_with_one_device_has_the_adapter_of_one(name, gbit, full, gbit_of_node):
    """DGX A100: 8 adapters of 200 Gbit/s for 8; Frontier: 4 for 8 dies or 4 cards; DGX-1: 4 of 100 for 8."""
    alone, whole = (parse_machine(f"{count}x{name}", nodes=2).network for count in (1, full))
    assert alone.bytes_per_s == pytest.approx(gbit * GBIT)
    assert whole.bytes_per_s == pytest.approx(gbit_of_node * GBIT)


def test_a_link_that_joins_nothing_is_checked_and_said():
    """One device a node: an unknown link is refused all the same, a known one is named in the notes."""
    with pytest.raises(DeviceError, match="unknown link") as raised:
        parse_machine("H100", link="nonsense")
    assert "PCIe3" in raised.value.fix
    assert "the link PCIe4 joins nothing: a node has one device" in parse_machine("H100", link="pcie4").notes


def test_tcp_over_fast_ethernet_does_not_reach_its_rate():
    """NCCL over sockets at 100 Gbit/s: 4 to 6 GB/s were published, not 12.5."""
    assert 4e9 <= parse_network("100GbE", devices_per_node=8).bus_bytes_per_s <= 6e9


def test_an_unknown_link_is_unknown():
    """The nearest is named."""
    with pytest.raises(DeviceError, match="perhaps 'NVLink4'") as raised:
        find_link("NVLink44")
    assert "PCIe3" in raised.value.fix
    assert find_link("nvlink 4").name == "NVLink4"


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_what_a_link_reaches_is_less_than_it_is_sold_as(link):
    """Achieved at most nominal, both with a source; smaller groups over meshes reach no more than the whole."""
    assert link.bus_bytes_per_s <= link.bytes_per_s
    assert link.source and link.bus_source and link.latency_s > 0
    assert all(rate <= link.bytes_per_s for rate in link.smaller.values())


def test_links_that_are_not_switched_are_slower_in_small_groups():
    """On a DGX-1 two neighbours share one or two of six links; behind a switch every pair has all of them."""
    assert find_link("NVLink2").bus(2) < find_link("NVLink2").bus(4) < find_link("NVLink2").bus(8)
    assert find_link("NVLink4").bus(2) == find_link("NVLink4").bus(8)
