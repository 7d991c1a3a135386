"""One of two processes that train together; started by `test_two_processes`, prints what it found as JSON."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

import paceline
from paceline.checkpoint.files import steps
from paceline.topology.processes import initialize, processes
from paceline.train.checkpoints import Checkpoints

STEPS, READ_S, CALL_S = 24, 0.05, 0.04


class Rows:
    """128 rows; a read takes a while."""

    def __init__(self, read_s=0.0):
        draw = np.random.default_rng(0)
        self.read_s = read_s
        self.data = {"x": draw.normal(size=(128, 8)).astype(np.float32), "id": np.arange(128, dtype=np.float32)}

    def __len__(self):
        return 128

    def read(self, indices):
        time.sleep(self.read_s)
        return {name: leaf[indices] for name, leaf in self.data.items()}


def loss(params, batch):
    error = (batch["x"] * params["w"]).sum(axis=1) + params["b"] - batch["x"][:, 0]
    return error**2, {"id": batch["id"]}


@functools.cache
def trainer(**parallel):
    return paceline.Trainer(paceline.task(loss), optax.adam(0.1), parallel=paceline.Parallel(**parallel))


def start(own):
    return own.init({"w": np.ones(8, np.float32), "b": np.zeros((), np.float32)})


def fit(own, data=None, *, steps=STEPS, **options):
    return own.fit(start(own), data or Rows(), batch=16, steps=steps, **options)


def params(own, state):
    return {name: np.asarray(leaf).tolist() for name, leaf in own.single(state).params.items()}


def stragglers(folder):
    """The same run fast, with slow rows in process 1, with slow callbacks in process 0."""
    own, index = trainer(), processes().index

    def slowly(step, values):
        time.sleep(CALL_S if index == 0 else 0.0)

    fit(own, steps=2)  # compiles
    fast = fit(own)[1]
    rows = fit(own, Rows(READ_S if index == 1 else 0.0))[1]
    calls = fit(own, callbacks=[slowly])[1]
    return [
        {"stragglers": report.as_dict()["stragglers"], "lines": report.lines(), "total_s": report.total_s}
        for report in (fast, rows, calls)
    ]


def values(folder):
    """What a step and an evaluation say of rows and parameters that lie with both processes."""
    found = {}
    for scheme in ("global_view", "per_device"):
        own = trainer(scheme=scheme, placement="fsdp")
        logged = []
        state, report = fit(
            own, steps=3, evaluation=Rows().data, run=folder / scheme, shuffle=False,
            callbacks=[lambda step, values, logged=logged: logged.append(values)],
        )  # fmt: skip
        whole = state.params["w"]
        found[scheme] = {
            "ids": [entry["train/id"] for entry in logged if "train/id" in entry],
            "evaluated": report.evaluation["evaluate/id"],
            "w": params(own, state)["w"],
            "here": int(whole.addressable_data(0).size),
            "sum": float(jnp.sum(own.single(state).params["w"])),
        }
    return found


def terminated(folder):
    """SIGTERM to process 1 alone: both stop; gone on with, both end as an unbroken run does."""
    own, index, saving = trainer(scheme="per_device", placement="fsdp"), processes().index, Checkpoints(every=1000)

    def send(step, values):
        if step == 5 and index == 1:
            signal.raise_signal(signal.SIGTERM)

    try:
        fit(own, Rows(0.005), steps=500, run=folder / "term", checkpoints=saving, callbacks=[send])
    except paceline.Terminated as error:
        last, code = error.report.last_step, error.code
    state, report = fit(own, steps=last + 5, run=folder / "term", checkpoints=saving, resume=True)
    whole, _ = fit(own, steps=last + 5)
    return {
        "last": last, "code": code, "resumed_at": report.resumed_at, "saved": steps(folder / "term"),
        "equal": params(own, state) == params(own, whole),
    }  # fmt: skip


def damaged(folder):
    """The newest checkpoint has a wrong byte: both go on from the one before it."""
    own, run = trainer(scheme="global_view", placement="fsdp"), folder / "damaged"
    fit(own, steps=6, run=run, checkpoints=Checkpoints(every=2, keep=9))
    processes().exchange("saved", "")
    if processes().index == 0:
        files = [file for file in (run / "checkpoints" / "6").rglob("*") if file.is_file()]
        largest = max(files, key=lambda file: file.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    processes().exchange("damaged", "")
    state, report = fit(own, steps=8, run=run, checkpoints=Checkpoints(every=2), resume=True)
    whole, _ = fit(own, steps=8)
    return {
        "resumed_at": report.resumed_at, "notices": report.notices, "equal": params(own, state) == params(own, whole)
    }  # fmt: skip


def main():
    initialize()
    folder = Path(sys.argv[1])
    found = {}
    for task in (stragglers, values, terminated, damaged):
        found[task.__name__] = task(folder)
    print(json.dumps(found), flush=True)
    sys.exit(found["terminated"]["code"])


if __name__ == "__main__":
    assert "PACELINE_PROCESS_INDEX" in os.environ
    main()
