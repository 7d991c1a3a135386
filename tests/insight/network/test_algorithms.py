"""Costs of collectives against pencil, published tables, and each other."""

from __future__ import annotations

import dataclasses
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.base.errors import DeviceError
from paceline.insight.hardware.machine import parse_machine
from paceline.insight.network.algorithms import bus_factor
from paceline.insight.network.cost import KINDS, collective_cost

MIB = 2**20
EIGHT = parse_machine("8xH100")
MANY = parse_machine("8xH100", nodes=512, network="400Gb per GPU")
PAIR = parse_machine("1xH100", nodes=2, network="NDR")

# nccl-tests, all-reduce on 8 GPUs behind NVLink 4 switches, out of place: bytes, microseconds
# (github.com/kvcache-ai/Mooncake pull 3484).
EIGHT_MEASURED = {
    2**18: 19.54, 2**19: 20.39, 2**20: 27.76, 2**21: 40.66, 2**22: 53.24, 2**23: 81.16, 2**24: 121.33, 2**25: 195.40,
}  # fmt: skip
# NCCL_ALGO=Tree, two nodes of one H100 with one 400 Gbit/s adapter in use (github.com/NVIDIA/nccl-tests issue 232).
PAIR_MEASURED = {2**22: 154.4, 2**23: 231.4, 2**24: 420.5, 2**25: 812.3}


@pytest.mark.parametrize(("size", "taken"), EIGHT_MEASURED.items())
def test_all_reduce_in_a_node_takes_what_was_published(size, taken):
    """256 KiB to 32 MiB, each within 15 %; latencies are NCCL's own, one constant was fitted to the last four."""
    assert collective_cost("all-reduce", size, machine=EIGHT, devices=8).time_s * 1e6 == pytest.approx(taken, rel=0.15)


@pytest.mark.parametrize(("size", "taken"), PAIR_MEASURED.items())
def test_all_reduce_between_two_nodes_takes_what_was_published(size, taken):
    """4 to 32 MiB over one InfiniBand adapter, within 15 %; nothing was fitted to it."""
    cost = collective_cost("all-reduce", size, machine=PAIR, devices=2, choose=("tree",))
    assert cost.time_s * 1e6 == pytest.approx(taken, rel=0.15)


@pytest.mark.parametrize(
    ("machine", "nodes", "devices", "low", "high"),
    [
        ("8xH100", 1, 8, 440, 480),  # 476: nccl-tests issue 290; 480 at most: issue 212
        ("8xA100", 1, 8, 200, 235),  # 200 to 250: nccl-tests issue 149
        ("8xV100", 1, 8, 120, 130),  # Jeaugey, GTC 2018
        ("8xP100", 1, 8, 56, 62),  # Jeaugey, GTC 2017
        ("8xMI300X", 1, 8, 290, 330),  # AMD ROCm blog, 2025
        ("8xH100", 32, 256, 306, 374),  # 340: nccl issue 1218
    ],
)
def test_bus_bandwidth_of_large_messages_is_the_published_one(machine, nodes, devices, low, high):
    """All-reduce of 2 GiB, GB/s between the bounds."""
    found = parse_machine(machine, nodes=nodes)
    bus = collective_cost("all-reduce", 2**31, machine=found, devices=devices).bus_bytes_per_s / 1e9
    assert low <= bus <= high


def test_bus_bandwidth_is_that_of_nccl_tests():
    """All-reduce S/t * 2(n-1)/n, the others S/t * (n-1)/n, broadcast and permute S/t (PERFORMANCE.md)."""
    assert bus_factor("all-reduce", 4) == 1.5
    assert bus_factor("reduce-scatter", 4) == bus_factor("all-gather", 4) == bus_factor("all-to-all", 4) == 0.75
    assert bus_factor("broadcast", 4) == bus_factor("collective-permute", 4) == 1.0
    cost = collective_cost("all-reduce", 1e6, machine=EIGHT, devices=4)
    assert cost.bus_bytes_per_s == pytest.approx(1e6 / cost.time_s * 1.5)


def test_a_ring_is_its_steps_and_its_bytes():
    """8 A100, 1 GiB in Simple: 8.4 us + 14 steps of 3.4 us + 2 * 7/8 * S / 230 GB/s, by pencil."""
    cost = collective_cost("all-reduce", 2**30, machine=parse_machine("8xA100"), devices=8, choose=("ring",))
    assert (cost.algorithm, cost.protocol) == ("ring", "Simple")
    assert cost.time_s == pytest.approx(8.4e-6 + 14 * 3.4e-6 + 1.75 * 2**30 / 230e9)


def test_an_all_reduce_by_ring_is_a_reduce_scatter_and_an_all_gather():
    """Both halves take half of the bytes and steps; only the base of 8.4 us counts once more."""
    whole = collective_cost("all-reduce", 2**30, machine=MANY, devices=64, choose=("ring",)).time_s
    halves = [
        collective_cost(kind, 2**30, machine=MANY, devices=64, choose=("ring",)).time_s
        for kind in ("reduce-scatter", "all-gather")
    ]
    assert sum(halves) == pytest.approx(whole + 8.4e-6)


def test_a_hierarchical_all_reduce_is_its_three_phases():
    """4 nodes of 8 A100: reduce-scatter and all-gather within, all-reduce of S over the nodes' network between."""
    machine = parse_machine("8xA100", nodes=4, network="8x200Gb InfiniBand")
    inside = parse_machine("8xA100")
    phases = [
        collective_cost(kind, 2**30, machine=inside, devices=8, choose=("ring",)).time_s
        for kind in ("reduce-scatter", "all-gather")
    ]
    between = 2 * 3 / 4 * 2**30 / 188e9
    found = collective_cost("all-reduce", 2**30, machine=machine, devices=32, choose=("hierarchical",))
    assert found.time_s == pytest.approx(sum(phases) + between, rel=0.02)


def test_a_tree_wins_short_messages_over_many_nodes():
    """Latency grows with the logarithm, not with K: 64 kB over 1024 devices."""
    ring = collective_cost("all-reduce", 65536, machine=MANY, devices=1024, choose=("ring",))
    best = collective_cost("all-reduce", 65536, machine=MANY, devices=1024)
    assert best.algorithm != "ring" and best.time_s < ring.time_s / 5


def test_a_ring_wins_long_ones_on_a_node_without_adding_switches():
    """1 GiB on 8 A100."""
    assert collective_cost("all-reduce", 2**30, machine=parse_machine("8xA100"), devices=8).algorithm == "ring"


def test_two_nodes_go_beyond_what_their_network_carries():
    """A tree over two nodes sends every byte once: bus bandwidth up to twice the network's (nccl-tests issue 196)."""
    machine = parse_machine("8xA100", nodes=2, network="100Gb InfiniBand")
    bus = collective_cost("all-reduce", 2**30, machine=machine, devices=16).bus_bytes_per_s
    assert 1.5 < bus / machine.network.bus_bytes_per_s < 2


@pytest.mark.parametrize("kind", KINDS)
def test_one_device_costs_nothing_and_nothing_costs_nothing(kind):
    """No time, no algorithm."""
    for devices, size in ((1, 1e6), (8, 0)):
        cost = collective_cost(kind, size, machine=EIGHT, devices=devices)
        assert (cost.time_s, cost.algorithm, cost.bus_bytes_per_s) == (0.0, "none", 0.0)


@given(
    kind=st.sampled_from(KINDS),
    size=st.floats(1, 1e10),
    devices=st.sampled_from([2, 4, 8, 16, 64, 512, 4096]),
    times=st.floats(1.0, 100.0),
)
def test_more_bytes_never_take_less_time(kind, size, devices, times):
    """For every collective and group; and no bus bandwidth exceeds twice what the network or the link is sold as."""
    small = collective_cost(kind, size, machine=MANY, devices=devices)
    large = collective_cost(kind, size * times, machine=MANY, devices=devices)
    assert 0 < small.time_s <= large.time_s * (1 + 1e-12)
    assert large.bus_bytes_per_s <= 2 * 450e9 and math.isfinite(large.time_s)


@given(size=st.floats(1e3, 1e10), nodes=st.integers(3, 256))
def test_more_nodes_never_take_less_time(size, nodes):
    """All-reduce over N and N + 1 nodes."""
    few, more = (collective_cost("all-reduce", size, machine=MANY, devices=8 * n).time_s for n in (nodes, nodes + 1))
    assert few <= more * (1 + 1e-9)


def test_four_thousand_devices_are_as_cheap_to_ask_about_as_eight():
    """A sweep over K must not cost K: processor time of the same questions, the least of five, within a factor 4."""

    def least_s(devices: int) -> float:
        taken = []
        for _ in range(5):
            begin_s = time.process_time()
            for size in range(1, 51):
                collective_cost("all-reduce", 1000 * size, machine=MANY, devices=devices)
            taken.append(time.process_time() - begin_s)
        return min(taken)

    assert least_s(4096) < 4 * least_s(8)


def test_a_group_that_the_machine_lacks_is_refused():
    """16 devices on 8: the fix says how many there are."""
    with pytest.raises(DeviceError, match="16 devices on a machine of 8") as raised:
        collective_cost("all-reduce", 1e6, machine=EIGHT, devices=16)
    assert "at most 8" in raised.value.fix and "--nodes" in raised.value.fix


def test_an_unknown_collective_is_our_own_mistake():
    """A name that no program has."""
    with pytest.raises(ValueError, match="unknown collective 'gossip'"):
        collective_cost("gossip", 1e6, machine=EIGHT, devices=8)


def test_gloo_between_two_machines_is_the_rate_of_the_cable():
    """64 MiB at 1 Gbit/s: S bytes each way, 66 of 1514 are headers, acknowledgements 33 more, and 0.3 ms of latency."""
    machine = _cable("1Gb Ethernet")
    cost = collective_cost("all-reduce", 64 * MIB, machine=machine, devices=2)
    assert cost.algorithm == "gloo ring"
    assert cost.time_s == pytest.approx(64 * MIB * 1547 / 1448 / 125e6 + 0.3e-3, rel=1e-6)


def test_a_shaper_lets_its_burst_through_at_once():
    """A bucket of 32 KiB saves its own time, and a message below it takes latency alone."""
    slow, shaped = _cable("100Mb Ethernet"), _cable("100Mb Ethernet", burst_bytes=32768)
    without, within = (collective_cost("all-reduce", MIB, machine=m, devices=2).time_s for m in (slow, shaped))
    assert without - within == pytest.approx(32768 * 8 / 100e6)
    assert collective_cost("all-reduce", 16384, machine=shaped, devices=2).time_s < 1e-3


def test_gloo_halves_and_gathers_half_of_an_all_reduce():
    """Reduce-scatter and all-gather of two send S/2 each; four processes send 3/2 S in an all-reduce."""
    machine = _cable("1Gb Ethernet", nodes=4)
    two = {kind: collective_cost(kind, 64 * MIB, machine=machine, devices=2).time_s for kind in KINDS[:3]}
    assert two["reduce-scatter"] == pytest.approx(two["all-reduce"] / 2, rel=0.01)
    assert two["all-gather"] == pytest.approx(two["all-reduce"] / 2, rel=0.01)
    four = collective_cost("all-reduce", 64 * MIB, machine=machine, devices=4).time_s
    assert four == pytest.approx(1.5 * two["all-reduce"], rel=0.01)


def test_simulated_devices_exchange_through_memory():
    """No network: twice the bytes, twice the time, at the rate that this CPU was measured to have."""
    machine = parse_machine("4xcpu")
    cost = collective_cost("all-reduce", 64 * MIB, machine=machine, devices=4)
    assert cost.algorithm == "memory"
    assert cost.time_s == pytest.approx(60e-6 + 4 / 3 * 4 * 64 * MIB / machine.device.memory_bytes_per_s)


def _cable(network: str, *, nodes: int = 2, burst_bytes: float = 0.0):
    machine = parse_machine("cpu", nodes=nodes, network=network)
    return dataclasses.replace(machine, network=dataclasses.replace(machine.network, burst_bytes=burst_bytes))
