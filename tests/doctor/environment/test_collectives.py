"""Known sums on eight simulated devices, and results that are wrong on purpose."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from paceline.doctor.environment import collectives
from paceline.doctor.environment.collectives import (
    LARGEST_K,
    collective_findings,
    compare,
    contribution,
    expected,
    expected_s,
    judge_speed,
    received,
)
from paceline.topology.mesh import data_mesh
from tests.doctor.environment.machines import levels, only


def test_the_devices_here_add_up_right():
    """Eight devices: three collectives exact, and a bandwidth that nothing is expected of."""
    found = collective_findings(jax.devices())
    assert levels(found) == {"ok"}
    assert found[0].what == "all-reduce, reduce-scatter, all-gather give exact sums on 8 devices"
    assert "bus bandwidth" in found[1].what and "nothing is expected of it" in found[1].what


def test_a_few_devices_in_another_order_add_up_right():
    """Device ids are not places in the mesh."""
    assert levels(collective_findings(jax.devices()[5:2:-1])) == {"ok"}


def test_one_device_sends_nothing():
    assert only(collective_findings(jax.devices()[:1]), "ok").what == "one device: nothing is sent"


def test_the_known_sums_are_those_of_the_pencil():
    """Two devices, four elements: device 0 has 1 2 3 4, device 1 has 2 3 4 5."""
    assert contribution(1, 4).tolist() == [2, 3, 4, 5]
    assert [part.tolist() for part in expected("all-reduce", 2, elements=4)] == [[3, 5, 7, 9]] * 2
    assert [part.tolist() for part in expected("reduce-scatter", 2, elements=4)] == [[3, 5], [7, 9]]
    assert [part.tolist() for part in expected("all-gather", 2, elements=4)] == [[1, 2, 3, 4, 2, 3, 4, 5]] * 2


def test_the_largest_sum_is_exact_in_float32():
    """For as many devices as are taken: a whole number below 2**24."""
    largest = sum(device + 1 + 30 for device in range(LARGEST_K))
    assert largest < 2**24 and int(np.float32(largest)) == largest


@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter", "all-gather"])
def test_one_wrong_bit_is_found_with_its_device(kind):
    """Device 2 of four, element 3: 1 more than it should be."""
    mesh = data_mesh(jax.devices()[:4])
    got = [part.copy() for part in received(kind, mesh, elements=64)]
    assert not list(compare(kind, got, elements=64))
    got[2][3] += 1
    found = only(list(compare(kind, got, elements=64)))
    assert (
        f"{kind} is wrong on 1 device (2): element 3 of device 2 is {got[2][3]:g}, not {got[2][3] - 1:g}" in found.what
    )
    assert "leave these devices out" in (found.fix or "") and "NCCL_P2P_DISABLE=1" in (found.fix or "")


def test_a_result_that_is_not_reduced_is_an_error(monkeypatch):
    """Each device keeps its own part: a collective that does nothing."""
    monkeypatch.setitem(collectives.KINDS, "all-reduce", lambda x: x)
    found = only(collective_findings(jax.devices()[:4]))
    assert "all-reduce is wrong on 4 devices (0, 1, 2, 3)" in found.what


def test_a_slow_link_is_a_warning():
    """More than twice what is expected."""
    assert judge_speed("x", 1.9e-3, expectation_s=1e-3).level == "ok"
    found = judge_speed("x", 2.1e-3, expectation_s=1e-3)
    assert found.level == "warning" and "1 ms expected" in found.what and "nvidia-smi topo -m" in (found.fix or "")
    unknown = judge_speed("x", 1.0, expectation_s=None)
    assert unknown.level == "ok" and "is not known" in unknown.what


def test_known_gpus_have_an_expectation_and_unknown_ones_none():
    """8 x H100: 67 MB over NVLink 4 at 450 GB/s a direction take 2 x 7/8 x 67 MB / 450 GB/s = 0.26 ms at best."""

    def gpus(kind, processes=1):
        return [SimpleNamespace(device_kind=kind, process_index=index % processes) for index in range(8)]

    time_s = expected_s(gpus("NVIDIA H100 80GB HBM3"), 64 * 1024**2)
    assert time_s is not None and 2e-4 < time_s < 1e-3
    assert expected_s(gpus("NVIDIA Q9 1TB"), 64 * 1024**2) is None
    assert expected_s(gpus("NVIDIA H100 80GB HBM3", processes=2), 64 * 1024**2) is None
