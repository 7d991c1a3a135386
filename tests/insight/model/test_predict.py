"""Predicted steps: by pencil, and what must hold for any program."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.base.errors import DeviceError
from paceline.insight.hardware.machine import parse_machine
from paceline.insight.model.costs import MachineCost
from paceline.insight.model.parameters import Parameters, interval
from paceline.insight.model.predict import efficiency_curve, predict, predicted_efficiency
from paceline.insight.model.roofline import achieved
from paceline.insight.model.step import HOST_DEVICE_S, HOST_STEP_S
from paceline.insight.network.curves import Curve, NetworkCurves
from paceline.insight.timeline import Collective, Done, Kind, Repeat, Start, Timeline, Work

QUIET = Parameters(contention=0.0, slowdown=1.0, spread=0.0, interruption_s=0.0, interruptions_per_s=0.0)
NODES = parse_machine("8xA100", nodes=2, network="8x200Gb InfiniBand")


def training(*, flops: float = 312e12, size: int = 1_000_000_000, group: int = 8) -> Timeline:
    """Half the work, a gradient, the other half, in bfloat16; by default a second at peak of an A100."""
    gradient = Collective("gradient", "all-reduce", size, "float32", group, asynchronous=True, leaves=("params.w",))
    half = Work({"bfloat16": flops / 2})
    return (half, Start(gradient), half, Done("gradient"), Work({}, 0.0, 1))


def test_one_device_has_no_communication_and_an_efficiency_of_one():
    """K = 1 of an eight-device program."""
    found = predict(training(), NODES, devices=1)
    assert (found.efficiency, found.efficiency_low, found.efficiency_high) == (1.0, 1.0, 1.0)
    assert found.terms["exposed_s"] == found.terms["hidden_s"] == found.terms["jitter_s"] == 0.0
    assert found.step_s == found.one_device_step_s


def test_terms_are_those_worked_out_by_hand():
    """Work of 1/0.7 s in halves, a collective of 3 s beside the second: 3 - 0.714 exposed, 0.714 hidden."""
    found = predict(training(), NODES, devices=8, parameters=QUIET, cost=lambda collective, group: 3.0)
    work = 1 / achieved(NODES.device).matrix
    assert found.terms["compute_s"] == pytest.approx(work, rel=1e-4)
    assert found.terms["exposed_s"] == pytest.approx(3 - work / 2, rel=1e-4)
    assert found.terms["hidden_s"] == pytest.approx(work / 2, rel=1e-4)
    assert found.efficiency == pytest.approx(work / (work / 2 + 3), rel=1e-4)
    assert found.waits_s == {"gradient": pytest.approx(3 - work / 2, rel=1e-4)}


def test_a_collective_takes_longer_within_a_step_than_alone():
    """3 s alone, twice as long here: 6 s less the 0.714 s of work beside it."""
    found = predict(training(), NODES, devices=8, parameters=replace(QUIET, slowdown=2.0), cost=lambda c, group: 3.0)
    assert found.terms["exposed_s"] == pytest.approx(6 - 0.5 / 0.7, rel=1e-3)


def test_jitter_is_the_spread_of_chips_and_the_longest_interruption():
    """Spread 1 % of 1 s times 1.42 for eight; interruptions of 2 ms, certain: 2 ms times (H_8 - 1 = 1.718)."""
    noisy = replace(QUIET, spread=0.01, interruption_s=0.002, interruptions_per_s=1e6)
    found = predict((Work({"bfloat16": 312e12 * 0.7}),), NODES, devices=8, parameters=noisy)
    assert found.terms["jitter_s"] == pytest.approx(0.0142 + 0.002 * 1.7179, rel=0.01)


def test_a_collective_over_all_devices_spans_k_and_a_smaller_one_stays():
    """A program of eight with a group of eight and one of two, asked for 16: groups of 16 and two."""
    asked: list[tuple[str, int]] = []
    pair = Collective("pair", "all-gather", 10, "float32", 2)
    timeline = (*training(), Start(pair), Done("pair"))

    def cost(collective: Collective, group: int) -> float:
        asked.append((collective.name, group))
        return 0.0

    predict(timeline, NODES, devices=16, cost=cost)
    assert set(asked) == {("gradient", 16), ("pair", 2)}


def test_a_measured_step_scales_the_compute_to_it():
    """3 s measured on one device; communication stays what it was."""
    found = predict(training(), NODES, devices=8, measured_step_s=3.0, parameters=QUIET)
    assert found.one_device_step_s == pytest.approx(3.0)
    assert found.terms["compute_s"] == pytest.approx(3.0)
    assert found.terms["exposed_s"] == 0.0


def test_a_measured_step_narrows_the_interval():
    """Where communication is exposed, not knowing the compute's time costs precision."""
    big = training(size=300_000_000_000)
    loose, tight = (predict(big, NODES, devices=8, measured_step_s=step) for step in (None, 1 / 0.7))
    assert tight.efficiency == pytest.approx(loose.efficiency, rel=1e-3)
    assert tight.efficiency_high - tight.efficiency_low < loose.efficiency_high - loose.efficiency_low


def test_the_devices_of_a_node_share_its_input():
    """0.25 s for the rows of one device, eight share: 2 s, less the step's 1.43."""
    found = predict(training(size=1), NODES, devices=8, input_s=0.25, parameters=QUIET)
    assert found.terms["input_s"] == pytest.approx(2.0 - 1 / 0.7, rel=1e-3)
    assert found.step_s == pytest.approx(2.0, rel=1e-3)
    assert found.one_device_step_s == pytest.approx(1 / 0.7, rel=1e-3)


def test_a_step_shorter_than_the_hosts_work_waits_for_the_host():
    """One kernel of 3 microseconds on four devices of one process."""
    found = predict((Work({}, 0.0, 1),), NODES, devices=4, parameters=QUIET)
    assert found.step_s == pytest.approx(HOST_STEP_S + 3 * HOST_DEVICE_S)
    assert found.binding.startswith("the host")


def test_several_nodes_without_a_known_network_are_refused():
    """A device for which no network is usual."""
    machine = replace(NODES, nodes=1, network=None, device=replace(NODES.device, network=None))
    with pytest.raises(DeviceError) as caught:
        predict(training(), machine, devices=16)
    assert "--network" in caught.value.fix


@pytest.mark.parametrize(
    ("timeline", "options", "words"),
    [
        (training(size=10**12), {}, "all-reduce of params.w over 8 x 200 Gb/s InfiniBand a node: "),
        (training(size=1), {}, "waiting for the slowest of 16 devices: "),
        (training(size=1), {"parameters": QUIET}, "compute, most of it bound by arithmetic"),
        ((Work({"bfloat16": 1.0}, 1e12),), {"parameters": QUIET}, "compute, most of it bound by memory bandwidth"),
        (training(size=1), {"input_s": 1.0}, "the input: rows come more slowly"),
        (
            training(size=2 * 10**10),
            {"parameters": replace(QUIET, contention=5.0)},
            "compute slowed by communication in flight",
        ),
    ],
)
def test_what_binds_is_said_in_words(timeline, options, words):
    """The largest loss, or the compute where nothing is lost."""
    assert predict(timeline, NODES, devices=16, **options).binding.startswith(words)


def test_types_without_matrix_units_are_weighed_at_the_fraction_that_they_reach():
    """A V100: 15.7 Tflop/s at 0.75 are 11.8; 900 GB/s at 0.8 are 720: 1 s of arithmetic is more than 0.9 of memory.

    At the 0.55 of its matrix units the arithmetic would seem longer still where memory is 1.2 s.
    """
    machine = parse_machine("4xV100")
    for bytes_s, side in ((0.9, "arithmetic"), (1.2, "memory bandwidth")):
        work = Work({"float32": 15.7e12 * 0.75}, bytes_s * 900e9 * 0.8)
        assert predict((work,), machine, parameters=QUIET).binding.startswith(f"compute, most of it bound by {side}")


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("machine", [NODES, parse_machine("4xA100"), parse_machine("2xcpu", nodes=2, network="1GbE")])
def test_every_kind_of_collective_has_a_cost(kind, machine):
    """Whatever the reader of programs may name: in a node, between nodes, on CPUs."""
    assert MachineCost(machine)(Collective("c", kind, 10**6, "float32", 4), machine.num_devices) > 0


def test_measured_collectives_come_before_published_rates():
    """An all-reduce of 4 MB over 8 devices was measured at half a second, in this file: a blocking one is exposed."""
    curves = NetworkCurves((Curve("all-reduce", 8, 1, (1e3, 4e6), (0.1, 0.5)),), "NVIDIA A100-SXM4-80GB", "nccl")
    gradient = Collective("gradient", "all-reduce", 4_000_000, "float32", 8)
    timeline = (Work({"bfloat16": 312e12}), Start(gradient), Done("gradient"))
    machine = parse_machine("8xA100")
    found = predict(timeline, machine, parameters=QUIET, curves=curves)
    assert found.terms["exposed_s"] == pytest.approx(0.5)
    assert efficiency_curve(timeline, machine, counts=[8], curves=curves)[0].terms["exposed_s"] > 0.4
    slow, fast = (predicted_efficiency(timeline, machine, curves=given) for given in (curves, None))
    assert slow < fast - 0.1


def test_the_interval_of_an_efficiency_above_one_holds_it():
    """A placement that splits the update: 1.2 is between its ends, and no end is above it."""
    low, high = interval(1.2, slopes={}, log_sd={})
    assert low < 1.2 <= high == 1.2
    assert interval(0.99, slopes={}, log_sd={})[1] == 1.0


def test_the_exposed_share_in_words_is_that_of_the_numbers():
    """A blocking collective hides nothing."""
    gradient = Collective("gradient", "all-reduce", 10**11, "float32", 8)
    found = predict((Work({"bfloat16": 312e12}), Start(gradient), Done("gradient")), NODES, devices=8)
    assert found.binding.startswith("all-reduce over NVLink3: 100% of the communication is not hidden behind compute")


programs = st.lists(
    st.tuples(st.floats(1e9, 1e14), st.floats(0, 1e12), st.integers(1, 2**33), st.integers(1, 3)),
    min_size=1,
    max_size=5,
).map(
    lambda parts: tuple(
        Repeat(
            times,
            (
                Start(Collective(f"c{i}", "all-reduce", size, "float32", 8)),
                Work({"bfloat16": flops}, moved),
                Done(f"c{i}"),
            ),
        )
        for i, (flops, moved, size, times) in enumerate(parts)
    )
)
machines = st.sampled_from(["8xA100", "8xH100", "4xV100", "8xMI300X", "4xL4"]).map(
    lambda name: parse_machine(name, nodes=2, network="100Gb RoCE")
)


@settings(max_examples=15, deadline=None)
@given(timeline=programs, machine=machines, devices=st.integers(1, 600))
def test_terms_sum_to_the_step_and_the_interval_holds_the_prediction(timeline, machine, devices):
    """Any program, any machine, any K (rtol 1e-9)."""
    found = predict(timeline, machine, devices=devices)
    parts = sum(value for name, value in found.terms.items() if name != "hidden_s")
    assert parts == pytest.approx(found.step_s, rel=1e-9)
    assert found.efficiency == pytest.approx(found.one_device_step_s / found.step_s, rel=1e-9)
    assert 0 <= found.efficiency_low <= found.efficiency <= 1
    assert found.efficiency <= found.efficiency_high <= 1


@settings(max_examples=12, deadline=None)
@given(timeline=programs, machine=machines, devices=st.integers(9, 600), factor=st.floats(1.1, 8))
def test_more_bandwidth_is_never_slower(timeline, machine, devices, factor):
    """Links and network faster by one factor."""
    assert machine.link is not None
    assert machine.network is not None
    link = replace(machine.link, bus_bytes_per_s=factor * machine.link.bus_bytes_per_s, smaller={})
    slow_link = replace(machine.link, smaller={})
    network = replace(machine.network, bus_bytes_per_s=factor * machine.network.bus_bytes_per_s)
    slow = predict(timeline, replace(machine, link=slow_link), devices=devices)
    fast = predict(timeline, replace(machine, link=link, network=network), devices=devices)
    assert fast.step_s <= slow.step_s * (1 + 1e-9)


def test_the_curve_falls_to_thousands_of_devices_from_one_program():
    """1 to 4096 without another compilation; each further node costs something."""
    curve = efficiency_curve(training(), NODES, counts=[2**power for power in range(13)])
    efficiencies = [point.efficiency for point in curve]
    assert efficiencies[0] == 1.0
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert [point.devices for point in curve][-1] == 4096


def test_a_machine_grows_for_k_and_its_own_size_is_the_default():
    """16 devices without being asked."""
    assert predict(training(), NODES).devices == 16
