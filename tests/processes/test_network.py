"""A network that is slow, loses packets or is cut, between two machines that train together.

Owns: the command line over two namespaces. Not here: the monitor alone (`topology/test_peers`).
Invariant: expected parameters come from this process, with two simulated devices and no network.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.processes.environment import CHILD, TRAIN
from tests.processes.mlp import SCHEMES, assert_same, restored, trained
from tests.processes.run import free_port, start

MLP = str(Path(__file__).with_name("mlp.py"))


def training(network, run: Path, *options: str, steps: int, delay_s: float = 0.0, port: int | None = None):
    """The network of `mlp.py`, one process on each side."""
    shared = ["--batch", "16", "--steps", str(steps), "--run", str(run), "--progress", "plain", *options]
    return start(
        [*TRAIN[1:], MLP, *shared],
        coordinator=f"{network.addresses[0]}:{port or free_port()}",
        command=network.command,
        env=CHILD | {"DELAY_S": str(delay_s)},
    )


def steps_in(run: Path, process: int) -> int:
    """Steps that a process has recorded."""
    path = run / f"events-{process}.jsonl"
    return path.read_text().count('"step"') if path.exists() else 0


@pytest.mark.clock(reason="ends at its time limit, not much later")
@pytest.mark.slow(reason="twice two processes, and as long as a loss must last to be one: only a cut network shows it")
def test_a_cut_network_ends_both_sides_and_the_run_goes_on(network, tmp_path):
    """Both end within the time limit with exit code 75 and name the other; resumed, the run is the one never cut."""
    run, timeout_s = tmp_path / "run", 5.0
    options = ["--checkpoint-every", "4", "--peer-timeout", f"{timeout_s:g}", "--resume", "auto"]
    with training(network, run, *options, steps=400, delay_s=0.005) as running:
        running.printed("step ", only=[])
        end_s = time.monotonic() + 90
        while not list((run / "checkpoints").glob("[1-9]*")) or steps_in(run, 1) < 8:
            assert time.monotonic() < end_s and running.running() == [0, 1], running._all_output()
            time.sleep(0.05)
        network.partition()
        start_s = time.monotonic()
        ended = running.wait(timeout_s + 5)
        took_s = time.monotonic() - start_s
    assert [process.returncode for process in ended] == [75, 75], ended
    assert timeout_s - 1.5 < took_s < timeout_s + 2
    for process in ended:
        other = 1 - process.index
        (error,) = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
        assert error.startswith(f"error: process {process.index} on {network.names[process.index]} has not heard from")
        assert f"process {other} ({network.names[other]} (pid " in error
        assert "check that machine and the network" in process.stderr and "--resume" in process.stderr
        assert "Traceback" not in process.stderr
    network.heal()
    done = max(int(child.name) for child in (run / "checkpoints").iterdir() if child.name.isdigit())
    with training(network, run, *options, steps=done + 6) as running:
        ended = running.wait(120)
    assert [process.returncode for process in ended] == [0, 0], ended
    report = json.loads((run / "report.json").read_text())
    assert report["resumed_at"] >= 4 and report["last_step"] == done + 6
    assert_same(restored(run), trained(SCHEMES["global_view"], steps=done + 6))


@pytest.mark.once(reason="what mends a bad network is TCP, below Python and jax; both ends train over a cut one above")
@pytest.mark.slow(reason="two real processes on a bad network, twice")
@pytest.mark.parametrize("trouble", ["loss", "bandwidth"])
def test_training_goes_on_in_a_bad_network(network, tmp_path, trouble):
    """Every fifth packet lost, or 100 Mbit/s: the same parameters as without a network, bit for bit."""
    if trouble == "loss":
        network.loss(20)
    else:
        network.bandwidth(100)
    run = tmp_path / "run"
    # Each packet that is lost again doubles TCP's wait for the next try: half a minute of silence is no broken network.
    options = ["--checkpoint-every", "end", "--peer-timeout", "120"]
    with training(network, run, *options, steps=5) as running:
        ended = running.wait(240)
    assert [process.returncode for process in ended] == [0, 0], ended
    assert trouble != "loss" or (network.lost(0) > 0 and network.lost(1) > 0)
    assert_same(restored(run), trained(SCHEMES["global_view"], steps=5))
