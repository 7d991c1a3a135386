"""Measured curves: what was measured comes back, and everything else says that it was extrapolated."""

from __future__ import annotations

import json
from itertools import pairwise

import jax
import pytest

from paceline.base.errors import DeviceError, OptionError
from paceline.insight.hardware.machine import parse_machine
from paceline.insight.network.cost import collective_cost
from paceline.insight.network.curves import Curve, NetworkCurves, load_curves
from paceline.insight.network.measured import measure_network, network_lines

SIZES = (4096.0, 65536.0, 1048576.0, 16777216.0)


def straight(devices: int, *, alpha_s: float = 1e-5, bytes_per_s: float = 1e10, nodes: int = 1) -> Curve:
    """A ring by pencil: 2(n-1) alpha + 2S(n-1)/n over the bandwidth."""
    share = 2 * (devices - 1) / devices
    times = tuple(2 * (devices - 1) * alpha_s + size * share / bytes_per_s for size in SIZES)
    return Curve("all-reduce", devices, nodes, SIZES, times)


def test_measured_points_come_back_exactly():
    """At the measured sizes the time is the measured one, also through `collective_cost`."""
    curves = NetworkCurves((straight(8),), "test", "gloo")
    for size, taken in zip(curves.curves[0].sizes_bytes, curves.curves[0].times_s, strict=True):
        cost = collective_cost("all-reduce", size, machine=parse_machine("8xH100"), devices=8, curves=curves)
        assert cost.algorithm == "measured" and cost.time_s == pytest.approx(taken)


def test_between_points_the_curve_is_straight_in_logarithms():
    """The geometric mean of two sizes takes the geometric mean of their times."""
    curve = Curve("all-reduce", 2, 1, (1e4, 1e6), (1e-4, 4e-3))
    assert curve.time_s(1e5) == pytest.approx((1e-4 * 4e-3) ** 0.5)


def test_beyond_the_points_latency_and_bandwidth_hold():
    """Below the smallest its time, above the largest the fitted bandwidth (here exactly 10 GB/s over 7/4)."""
    curve = straight(8)
    assert curve.time_s(1.0) == pytest.approx(curve.times_s[0])
    assert curve.time_s(4 * SIZES[-1]) == pytest.approx(2 * 7 * 1e-5 + 4 * SIZES[-1] * 1.75 / 1e10, rel=1e-3)


@pytest.mark.parametrize("devices", [2, 4, 32, 256])
def test_another_size_of_group_follows_the_ring(devices):
    """A ring's steps and bytes at n = 8 give every other n within 3 %, and the answer says how it came about."""
    curves = NetworkCurves((straight(8),), "test", "gloo")
    truth = straight(devices)
    for size in SIZES:
        taken, how = curves.lookup("all-reduce", size, devices=devices, nodes=1)
        assert how == "measured, other size of group"
        assert taken == pytest.approx(truth.time_s(size), rel=0.03)


def test_a_curve_within_a_node_says_nothing_of_a_network():
    """Two nodes asked, one measured: the formula answers, and the other way round."""
    inside = NetworkCurves((straight(8),), "test", "nccl")
    machine = parse_machine("8xH100", nodes=2)
    asked = collective_cost("all-reduce", 1e6, machine=machine, devices=16, curves=inside)
    assert asked == collective_cost("all-reduce", 1e6, machine=machine, devices=16)
    assert NetworkCurves((straight(16, nodes=2),), "t", "nccl").lookup("all-reduce", 1e6, devices=8, nodes=1) is None


def test_curves_survive_their_file(tmp_path):
    """Saved and loaded they are equal; the keys are those of the documentation."""
    curves = NetworkCurves((straight(2), straight(4, nodes=2)), "TFRT_CPU_0", "gloo")
    curves.save(tmp_path / "network.json")
    assert load_curves(tmp_path / "network.json") == curves
    document = json.loads((tmp_path / "network.json").read_text())
    assert document.keys() == {"version", "device", "library", "curves"}
    assert document["curves"][0].keys() == {"kind", "devices", "nodes", "bytes", "seconds"}


def test_the_file_of_a_scaling_study_holds_them(tmp_path):
    """`paceline scale --network --json` writes them under its key ``network``; without --network there are none."""
    curves = NetworkCurves((straight(2),), "cpu", "memory")
    (tmp_path / "scale.json").write_text(json.dumps({"points": [], "network": curves.as_dict()}))
    assert load_curves(tmp_path / "scale.json") == curves
    (tmp_path / "scale.json").write_text(json.dumps({"points": [], "network": None}))
    with pytest.raises(OptionError, match=r"holds no measured network \(it was written without --network\)"):
        load_curves(tmp_path / "scale.json")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "no json",
        "[]",
        '{"version": 2, "device": "", "library": "", "curves": []}',
        '{"version": 1, "device": "", "library": "", "curves": '
        '[{"kind": "all-reduce", "devices": 2, "nodes": 1, "bytes": [2, 1], "seconds": [1, 1]}]}',
        '{"version": 1, "device": "", "library": "", "curves": '
        '[{"kind": "all-reduce", "devices": 2, "nodes": 1, "bytes": [1], "seconds": [0]}]}',
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, text):
    """Not there, no JSON, another version, sizes that fall, a time of nothing."""
    path = tmp_path / "network.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OptionError, match=r"network\.json holds no measured network") as raised:
        load_curves(path)
    assert "scale TASK --network" in raised.value.fix


@pytest.fixture(scope="module")
def measured() -> NetworkCurves:
    """Four simulated devices, three sizes, once. So many rounds, and sizes so far apart, that the medians of a busy
    machine are in order too: 1 kB takes 0.3 ms here, 16 MiB 4 to 7 ms."""
    return measure_network(4, sizes_bytes=(1000, 65536, 2**24), repeats=15)


def test_collectives_of_the_devices_at_hand_are_measured(measured):
    """Every kind over every size, rounded up to a float32 for each of the four devices; more bytes take longer."""
    assert [curve.kind for curve in measured.curves] == ["all-reduce", "reduce-scatter", "all-gather"]
    assert (measured.library, measured.device) == ("memory", jax.devices()[0].device_kind)
    for curve in measured.curves:
        assert (curve.devices, curve.nodes, curve.sizes_bytes) == (4, 1, (1008.0, 65536.0, 2.0**24))
        assert 0 < curve.times_s[0] < curve.times_s[2] < 10


def test_the_table_has_both_bandwidths(measured):
    """One line a point with size, time, S/t and bus bandwidth, then what it was measured on."""
    lines = network_lines(measured)
    assert lines[0].split() == ["collective", "size", "time", "algbw", "busbw"]
    assert len(lines) == 1 + 9 + 1
    assert lines[-1].startswith("4 devices (") and lines[-1].endswith("one process, memory, float32")
    known = NetworkCurves((Curve("all-reduce", 4, 2, (3e9,), (1.0,)),), "x", "gloo")
    assert network_lines(known)[1].split() == ["all-reduce", "3.0", "GB", "1", "s", "3.0", "GB/s", "4.5", "GB/s"]


def test_measured_curves_rise_through_the_whole_cost(measured):
    """`collective_cost` on this machine with the curves: sizes between and beyond the measured ones are in order."""
    machine = parse_machine("8xcpu")
    sizes = [10.0**power for power in range(2, 10)]
    for devices in (4, 8):
        costs = [collective_cost("all-gather", s, machine=machine, devices=devices, curves=measured) for s in sizes]
        assert all(a.time_s <= b.time_s * 1.0001 for a, b in pairwise(costs)) or not _rising(measured)
        assert all(cost.algorithm.startswith("measured") for cost in costs)


def _rising(curves: NetworkCurves) -> bool:
    """Whether the measurement itself is in order: on a busy machine short messages may not be."""
    return all(a <= b for curve in curves.curves for a, b in pairwise(curve.times_s))


def test_one_device_has_no_network():
    """The fix says how to get more."""
    with pytest.raises(DeviceError, match="no network to measure") as raised:
        measure_network(1)
    assert "--simulate 2" in raised.value.fix
