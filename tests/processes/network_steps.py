"""Two processes that time collectives and training steps over whatever joins them.

Owns: the programs that `test_network_model` and `benchmarks/network_model.py` start on the two sides of a cable.
Not here: the cable, predictions, assertions; the caller reads one JSON object a line from process 0.
Invariant: both processes run the same programs in the same order; a training step alone and the same step over both are
timed in turn, in the same process, so that a busy machine slows both.

Usage: network_steps.py REPEATS sums=BYTES,BYTES,... steps=WIDTHxLAYERSxROWS,...        rows are per device
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import paceline
from paceline.engine.state import new_state
from paceline.engine.step import StepFunction
from paceline.engine.update import StepSpec
from paceline.insight.network.measured import measure_network
from paceline.topology import processes
from paceline.topology.mesh import data_mesh, put, replicated, split_rows


def sums(sizes: list[int], repeats: int) -> None:
    """All-reduces, by the measurement that users call: its medians, the shaper's bucket full before each."""
    curves = measure_network(sizes_bytes=sizes, kinds=("all-reduce",), repeats=repeats, limit_s=30.0, pause_s=0.005)
    say({"bytes": curves.curves[0].sizes_bytes, "seconds": curves.curves[0].times_s})


def steps(width: int, layers: int, rows: int, *, repeats: int) -> None:
    """A multi-layer perceptron: seconds of its step on this process's device alone, and over both."""
    alone = _stepper(jax.local_devices(), width, layers, rows)
    both = _stepper(jax.devices(), width, layers, 2 * rows)
    times: dict[str, list[float]] = {"alone": [], "both": []}
    for repeat in range(repeats + 1):
        for name, run in (("alone", alone), ("both", both)):
            _together()
            begin_s = time.perf_counter()
            run()
            _together()  # alone, too, a step has ended when both processes have: a late one is not the network's fault
            if repeat:
                times[name].append(time.perf_counter() - begin_s)
    parameters = layers * (width * width + width)
    say({"model": f"{width}x{layers}", "rows": rows, "gradient_bytes": 4 * parameters, **times})


def _stepper(devices: list[jax.Device], width: int, layers: int, rows: int) -> Callable[[], None]:
    """One update of the engine's own step, waited for."""
    mesh = data_mesh(devices)
    parallel = paceline.Parallel(scheme="per_device")
    task = paceline.task(_loss)
    optimizer = optax.sgd(1e-3)
    weights = {f"{i}": {"w": np.eye(width, dtype=np.float32), "b": np.zeros(width, np.float32)} for i in range(layers)}
    placed = put(weights, jax.tree.map(lambda _: replicated(mesh), weights))
    make = jax.jit(
        lambda params: new_state(optimizer, parallel, params=params, model_state={}, seed=0),
        out_shardings=replicated(mesh),
    )
    step = StepFunction(StepSpec(task, optimizer, parallel, mesh))
    x = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    batch, valid = (
        put(tree, jax.tree.map(lambda _: split_rows(mesh), tree)) for tree in ({"x": x}, np.ones(rows, bool))
    )
    states = [make(placed)]

    def run() -> None:
        state, metrics = step(states.pop(), batch, valid)
        metrics.wait()
        jax.block_until_ready(state)
        states.append(state)

    return run


def _loss(params, batch):
    hidden = batch["x"]
    for layer in params.values():
        hidden = jnp.tanh(hidden @ layer["w"] + layer["b"])
    return jnp.sum(hidden**2, axis=1)


_TOGETHER: list[Callable[[], object]] = []


def _together() -> None:
    """Both processes come from here at the same time."""
    if not _TOGETHER:
        mesh = data_mesh(jax.devices())
        one = put(np.ones(mesh.size, np.float32), split_rows(mesh))
        total = jax.jit(jnp.sum, out_shardings=replicated(mesh))
        _TOGETHER.append(lambda: jax.block_until_ready(total(one)))
    _TOGETHER[0]()


def say(line: dict) -> None:
    """Of process 0 only."""
    if jax.process_index() == 0:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    processes.initialize()
    for part in sys.argv[2:]:
        what, _, cases = part.partition("=")
        if what == "sums":
            sums([int(case) for case in cases.split(",")], int(sys.argv[1]))
        for case in cases.split(",") if what == "steps" else []:
            steps(*map(int, case.split("x")), repeats=int(sys.argv[1]))
    processes.leave(0)
