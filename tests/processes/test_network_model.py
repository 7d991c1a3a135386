"""Predicted communication beside measured: two processes on a cable of known rate.

Owns: all-reduce times and E_2 of training steps over two namespaces, against `insight.network` with the cable's own
numbers: its rate, its shaper's burst, and TCP's headers.
Not here: the programs that are timed (`network_steps.py`); larger sizes, more models (`benchmarks/network_model.py`).
Invariant: a prediction knows no time that was measured over the cable. Two constants of Gloo (a base and a step of
latency) were once fitted to 64 KiB at 1 Gbit/s; nothing at 100 Mbit/s was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from paceline.insight.hardware.machine import Machine, parse_machine
from paceline.insight.network.cost import collective_cost
from tests.processes.environment import CHILD
from tests.processes.network import Network, two_namespaces
from tests.processes.run import free_port, run

PROGRAM = Path(__file__).with_name("network_steps.py")
BURST_BYTES = 32 * 1024
"""Of the token bucket that `Network.bandwidth` makes."""
FIRST = ("sh", "-c", 'echo -20 2>/dev/null > /proc/self/autogroup; exec "$@"', "sh")
"""Before other work of this machine, as far as it is allowed: the cable is measured, not the queue for its cores."""
LEAST_SHARE = 0.9
"""Of a core that each of two threads must get, or the machine is busy with something else."""
MOST_LOAD = 1.2
"""Processes that may run already when the test begins. With several test workers more do; run this file alone."""


def cable(mbit: int) -> Machine:
    """Two machines with one CPU device each and the cable between them, as `parse_machine` reads them."""
    machine = parse_machine("cpu", nodes=2, network=f"{mbit}Mb Ethernet")
    shaped = dataclasses.replace(machine.network, burst_bytes=BURST_BYTES)
    return dataclasses.replace(machine, network=shaped)


def timed(network: Network, *arguments: str) -> list[dict]:
    """Lines of process 0 of the program, one process on each side."""
    ended = run(
        [PROGRAM, *arguments],
        timeout_s=200,
        coordinator=f"{network.addresses[0]}:{free_port()}",
        command=lambda side, command: network.command(side, [*FIRST, *command]),
        env=CHILD | {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
    )
    assert [process.returncode for process in ended] == [0, 0], ended
    return [json.loads(line) for line in ended[0].stdout.splitlines() if line.startswith("{")]


@contextmanager
def on_a_quiet_machine(share: float) -> Iterator[None]:
    """Turns a failed comparison into a skip if the cores were busy with other work: then times are not the cable's."""
    try:
        yield
    except AssertionError as error:
        if share >= LEAST_SHARE:
            raise
        pytest.skip(
            f"two threads got {share:.0%} of a core each, or others ran, so times say nothing of the cable: {error}"
        )


def share_of_cores() -> float:
    """Processor time over wall time of the worse of two threads that only compute, for 0.2 s."""
    with ThreadPoolExecutor(2) as pool:
        return min(pool.map(_spin, range(2)))


def _spin(_: int) -> float:
    block = bytes(1_000_000)
    begin_s, used_s = time.perf_counter(), time.thread_time()
    while time.perf_counter() < begin_s + 0.2:
        hashlib.sha256(block)  # without Python's lock
    return (time.thread_time() - used_s) / (time.perf_counter() - begin_s)


SIZES = {1000: [2**16, 2**18, 2**20, 2**22, 2**24], 100: [2**16, 2**18, 2**20, 2**22]}
MODELS = {1000: ["1024x2x512"], 100: ["256x4x1024", "256x4x4096", "512x4x1024"]}
"""At 1 Gbit/s a large gradient only: an exchange within a step then takes 3 to 15 ms more than one alone, since four
threads of two processes share two cores (docs/design/013-network.md)."""


@pytest.fixture(scope="module")
def free_cores() -> None:
    """Looked at once, before this file loads the machine itself."""
    if os.getloadavg()[0] > MOST_LOAD:
        pytest.skip(
            f"needs two free cores, and the load is {os.getloadavg()[0]:.1f}: times would say nothing of the cable"
        )


@pytest.fixture(scope="module", params=[1000, 100], ids="{}-mbit".format)
def measured(request, free_cores) -> tuple[int, list[dict], float]:
    """Rate of the cable, the program's lines, and how free the cores were before and after."""
    mbit = request.param
    before = share_of_cores()
    with two_namespaces() as network:
        network.bandwidth(mbit)
        lines = timed(network, "7", f"sums={','.join(map(str, SIZES[mbit]))}", f"steps={','.join(MODELS[mbit])}")
    return mbit, lines, min(before, share_of_cores())


def test_an_all_reduce_over_a_cable_takes_what_is_predicted(measured):
    """64 KiB to 4 MiB (16 MiB at 1 Gbit/s), medians, each within 15 %."""
    mbit, (sums, *_), share = measured
    with on_a_quiet_machine(share):
        for size, taken_s in zip(sums["bytes"], sums["seconds"], strict=True):
            predicted_s = collective_cost("all-reduce", size, machine=cable(mbit), devices=2).time_s
            assert predicted_s == pytest.approx(taken_s, rel=0.15), f"{size:.0f} bytes at {mbit} Mbit/s"


def test_the_efficiency_of_two_is_the_predicted_one(measured):
    """E_2 of perceptrons and batches from S_1 and the bytes of the gradient alone, within 5 points.

    CPU collectives block, so E_2 = t_1 / (t_1 + t_all-reduce); t_1 is the slower process's of a step without exchange.
    """
    mbit, (_, *steps), share = measured
    assert len(steps) == len(MODELS[mbit])
    with on_a_quiet_machine(share):
        for step in steps:
            alone_s, both_s = median(step["alone"]), median(step["both"])
            exchange_s = collective_cost("all-reduce", step["gradient_bytes"], machine=cable(mbit), devices=2).time_s
            predicted, found = alone_s / (alone_s + exchange_s), alone_s / both_s
            which = f"{step['model']}, {step['rows']} rows at {mbit} Mbit/s"
            assert abs(predicted - found) < 0.05, f"{which}: predicted {predicted:.3f}, measured {found:.3f}"
