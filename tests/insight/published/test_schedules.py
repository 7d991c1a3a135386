"""Schedules of the frameworks, on three layers by pencil."""

from __future__ import annotations

import pytest

from paceline.insight.published.layers import Layer
from paceline.insight.published.schedules import after_backward, behind_barrier, data_parallel, fully_sharded
from paceline.insight.published.transports import Nccl1, ParameterServer, Transports
from paceline.insight.timeline import Collective, Done, Repeat, Start, Timeline, Work, each_collective, total_work

# 4, 0.5 and 2 MB of float32 gradients.
LAYERS = (Layer("a", 1e6, 10.0), Layer("b", 0.125e6, 20.0), Layer("c", 0.5e6, 30.0))
GB = 1e9


def order(timeline: Timeline) -> list[str]:
    """Works by layer, starts as +name, ends as -name."""
    said = {Work: lambda e: e.what, Start: lambda e: f"+{e.collective.name}", Done: lambda e: f"-{e.name}"}
    return [said[type(event)](event) for event in timeline]


def test_buckets_close_in_backward_order_and_all_are_awaited_before_the_update():
    """c and b make 2.5 MB, too little; with a they are 6.5 MB: one message behind a."""
    found = data_parallel(LAYERS, rows=2, group=8)
    assert order(found) == ["a", "b", "c", "c", "b", "a", "+a and behind", "-a and behind", "update"]
    assert [(c.kind, c.bytes) for c, _ in each_collective(found)] == [("all-reduce", 6_500_000)]


def test_a_step_is_three_forward_passes_of_arithmetic():
    """60 operations a row, two rows, three times; every schedule alike."""
    for schedule in (data_parallel, after_backward, behind_barrier):
        assert total_work(schedule(LAYERS, rows=2, group=8)).flops == {"float32": 360.0}
    sharded = fully_sharded(LAYERS, rows=2, microbatches=5, group=8, wire_bytes=2)
    assert total_work(sharded).flops == {"bfloat16": 5 * 360.0}


def test_after_backward_no_message_begins_before_the_last_work():
    """The same messages, behind all work but the update."""
    found = order(after_backward(LAYERS, rows=2, group=8))
    assert found == ["a", "b", "c", "c", "b", "a", "+a and behind", "-a and behind", "update"]
    vgg = (Layer("conv", 1e6, 10.0), Layer("dense", 1e8, 1.0))
    assert order(after_backward(vgg, rows=1, group=2))[:4] == ["conv", "dense", "dense", "conv"]


def test_behind_the_barrier_every_parameter_is_pulled_and_nothing_computes():
    """6.5 MB pushed, 6.5 MB pulled; the pull is blocking."""
    found = behind_barrier(LAYERS, rows=2, group=8)
    assert order(found)[-3:] == ["+pull", "-pull", "update"]
    assert [(c.kind, c.bytes) for c, _ in each_collective(found)] == [
        ("reduce-scatter", 6_500_000),
        ("all-gather", 6_500_000),
    ]


def test_sharded_layers_are_gathered_one_ahead_and_twice_a_microbatch():
    """Forward and backward gathers of 2-byte parameters, scatters in backward, in each of 3 trips."""
    found = fully_sharded(LAYERS, rows=2, microbatches=3, group=8, wire_bytes=2)
    loop = found[0]
    assert isinstance(loop, Repeat)
    assert order(loop.body)[:8] == [
        "+forward gather 0", "-forward gather 0", "+forward gather 1", "a",
        "-forward gather 1", "+forward gather 2", "b", "-forward gather 2",
    ]  # fmt: skip
    sizes: dict[str, float] = {}
    for collective, times in each_collective(found):
        sizes[collective.kind] = sizes.get(collective.kind, 0) + times * collective.bytes
    assert sizes == {"all-gather": 3 * 2 * 3_250_000, "reduce-scatter": 3 * 3_250_000}


TRANSPORTS = Transports(nccl1_bytes_per_s=10 * GB, host_copy_bytes_per_s=10 * GB, grpc_share=0.8, update_s=0.0)


def test_one_ring_of_nccl_1_moves_twice_the_bytes_less_one_share():
    """1 GB over 8 GPUs at 10 GB/s: 2 x 7/8 / 10 s, and 14 steps of 10 microseconds."""
    message = Collective("m", "all-reduce", 10**9, "float32", 8)
    assert Nccl1(TRANSPORTS)(message, 8) == pytest.approx(0.175 + 140e-6)


def test_a_parameter_server_is_as_fast_as_its_busiest_connection():
    """1 GB, 8 GPUs on 2 roots: 4 GPUs a root, 0.4 s. Over 8 nodes with 4 servers at 1 GB/s: 7/4 GB, 1.751 s."""
    cost = ParameterServer(TRANSPORTS, devices_per_node=8, roots=2, servers=4, network_bytes_per_s=1.25 * GB)
    pull = Collective("m", "all-gather", 10**9, "float32", 8)
    assert cost(pull, 8) == pytest.approx(0.4)
    assert cost(pull, 64) == pytest.approx(1.75 + 1e-3)
