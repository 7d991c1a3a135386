"""Predicted against measured communication, over a cable of known rate between two network namespaces.

    python benchmarks/network_model.py [--quick]

Hardware: one machine with two free cores, as root (namespaces and `tc`). Time: 3 minutes, with --quick 1.

Prints two tables at each rate: all-reduce from 64 KiB to 64 MiB, and E_2 of perceptrons. Predictions know the cable's
rate and burst, TCP's headers, and a step's time on one device; the bar is 15 % for the first, 5 points for the second.
"cores" says how much of a core two computing threads got: below 0.9 the machine is busy, and then times are also those
of waiting for a core.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from paceline.base.units import format_bytes, format_duration  # noqa: E402 - needs the path above
from paceline.insight.hardware.machine import Machine  # noqa: E402 - needs the path above
from paceline.insight.network.cost import collective_cost  # noqa: E402 - needs the path above
from tests.processes.network import two_namespaces  # noqa: E402 - needs the path above
from tests.processes.test_network_model import cable, timed  # noqa: E402 - needs the path above

RATES_MBIT = (1000, 100)
SIZES = [2**power for power in range(16, 27, 2)]
MODELS = ["256x4x512", "256x4x2048", "512x4x256", "512x4x1024", "1024x2x512", "1024x4x256"]


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


def measure(mbit: int, *, quick: bool) -> None:
    """Both tables at one rate."""
    machine = cable(mbit)
    sizes = SIZES[: 4 if quick else None]
    models = MODELS[: 3 if quick else None]
    before = share_of_cores()
    with two_namespaces() as network:
        network.bandwidth(mbit)
        sums, *steps = timed(network, "7", f"sums={','.join(map(str, sizes))}", f"steps={','.join(models)}")
    print(f"\n{mbit} Mbit/s, cores {before:.2f} before and {share_of_cores():.2f} after\n")
    print("| all-reduce | predicted | measured | predicted is off by |\n|---|---|---|---|")
    for size, taken_s in zip(sums["bytes"], sums["seconds"], strict=True):
        print(_sum_row(size, taken_s, machine))
    print("\n| model, rows a device | gradient | t_1 | t_2 | E_2 predicted | E_2 measured |\n|---|---|---|---|---|---|")
    for step in steps:
        print(_step_row(step, machine))


def _sum_row(size: float, taken_s: float, machine: Machine) -> str:
    predicted_s = collective_cost("all-reduce", size, machine=machine, devices=2).time_s
    words = (format_bytes(size), format_duration(predicted_s), format_duration(taken_s))
    return f"| {' | '.join(words)} | {predicted_s / taken_s - 1:+.1%} |"


def _step_row(step: dict, machine: Machine) -> str:
    alone_s, both_s = median(step["alone"]), median(step["both"])
    exchange_s = collective_cost("all-reduce", step["gradient_bytes"], machine=machine, devices=2).time_s
    times = f"{format_duration(alone_s)} | {format_duration(both_s)}"
    efficiencies = f"{alone_s / (alone_s + exchange_s):.1%} | {alone_s / both_s:.1%}"
    return f"| {step['model']}, {step['rows']} | {format_bytes(step['gradient_bytes'])} | {times} | {efficiencies} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and models")
    options = parser.parse_args()
    for rate in RATES_MBIT:
        measure(rate, quick=options.quick)
