"""Two processes that differ in one thing after another; each prints what its Trainer says of it.

Usage: disagreeing.py: one JSON line a case: `case`, `error` (class), `text`, `seconds`. All in one pair of processes,
since a start costs seconds; after an error that all processes raise they are at the same place.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import optax

import paceline
from paceline.train import facts
from tests.processes.mlp import BATCH, Points, init, loss

CASES: dict[str, Callable[[int], None]] = {}


def case(run: Callable[[int], None]) -> Callable[[int], None]:
    """Registers `run`, called with the index of the process."""
    CASES[run.__name__] = run
    return run


def fit(data=None, *, trainer=None, params=None, seed=0, order_seed=0, **options):
    """A short run; what a case does not say is the same in both processes."""
    trainer = trainer or usual()
    state = first_state(trainer, seed) if params is None else trainer.init(params)
    trainer.fit(state, Points() if data is None else data, **{"batch": BATCH, "steps": 2, "seed": order_seed} | options)


def make(task_loss=loss, *, task_init=init, learning_rate=0.1, **parallel):
    """A trainer whose states can be used again."""
    task = paceline.task(task_loss, init=task_init, name="mlp")
    return paceline.Trainer(task, optax.sgd(learning_rate), parallel=paceline.Parallel(donate=False, **parallel))


@functools.cache
def usual():
    """One for most cases: it compiles once."""
    return make()


@functools.cache
def first_state(trainer, seed):
    """Its first state."""
    return trainer.init(seed=seed)


@case
def rows(index):
    fit(Points(96 - 2 * index))


@case
def content(index):
    points = Points()
    points.x[0, 3] += index
    fit(points)


@case
def learning_rate(index):
    fit(trainer=make(learning_rate=0.1 * (1 + index)))


@case
def host_value_in_the_loss(index):
    scale = 1.0 + index
    fit(trainer=make(lambda params, batch, rng: loss(params, batch, rng) * scale))


@case
def made_parameters(index):
    fit(trainer=make(task_init=lambda rng: jax.tree.map(lambda leaf: leaf + index, init(rng))))


@case
def given_parameters(index):
    params = init(jax.random.key(0))
    params["out"]["b"] = np.full(4, index, np.float32)
    fit(params=params)


@case
def seed_of_the_state(index):
    fit(seed=index)


@case
def seed_of_the_order(index):
    fit(order_seed=index)


@case
def batch_size(index):
    fit(batch=BATCH * (1 + index))


@case
def scheme(index):
    fit(trainer=make(scheme="per_device" if index else "global_view"))


@case
def evaluation(index):
    fit(evaluation=Points(32 + 32 * index))


@case
def evaluation_content(index):
    points = Points(32)
    points.y[31] = (points.y[31] + index) % 4
    fit(evaluation=points)


@case
def xla_flags(index):
    before = os.environ.get("XLA_FLAGS")
    if index:
        os.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=true"
    try:
        fit()
    finally:
        os.environ.pop("XLA_FLAGS", None)
        if before is not None:
            os.environ["XLA_FLAGS"] = before


@case
def setting(index):
    before = jax.config.jax_default_matmul_precision
    jax.config.update("jax_default_matmul_precision", "highest" if index else "float32")
    try:
        fit()
    finally:
        jax.config.update("jax_default_matmul_precision", before)


@case
def versions(index):
    original = facts.versions
    facts.versions = lambda: original() | ({"jax": "0.9.9"} if index else {})
    try:
        fit()
    finally:
        facts.versions = original


@case
def code(index):
    # The loss of another file, whose program is the same.
    source = Path(sys.modules[loss.__module__].__file__ or "").read_text()
    file = Path(sys.argv[1]) / str(index) / "copied.py"
    file.parent.mkdir()
    file.write_text(source + "# a comment\n" * index)
    names: dict = {"__name__": "copy"}
    exec(compile(source, str(file), "exec"), names)
    fit(trainer=make(names["loss"]))


def batches(count: int, rows: int, *, first: int) -> list[dict[str, np.ndarray]]:
    """Ready batches of distinct rows, from row `first` of the data on."""
    points = Points()
    cut = [slice(first + rows * number, first + rows * (number + 1)) for number in range(count)]
    return [{"x": points.x[place], "y": points.y[place]} for place in cut]


@case
def number_of_batches(index):
    fit(paceline.stream(batches(3 - index, 4, first=48 * index)), batch=None, steps=None, epochs=1)


@case
def rows_of_a_batch(index):
    fit(paceline.stream(batches(2, 4 - 2 * index, first=48 * index)), batch=None)


@case
def same_rows(index):
    fit(paceline.stream(batches(2, 4, first=0)), batch=None)


@case
def nothing(index):
    fit(paceline.stream(batches(2, 4, first=48 * index)), batch=None)


def main() -> None:
    """Joins, then every case, or those named behind the folder."""
    team = paceline.initialize()
    for name in sys.argv[2:] or CASES:
        start_s = time.monotonic()
        said = {"error": "", "text": ""}
        try:
            CASES[name](team.index)
        except paceline.PacelineError as error:
            said = {"error": type(error).__name__, "text": str(error), "code": error.exit_code}
        print(json.dumps({"case": name} | said | {"seconds": time.monotonic() - start_s}), flush=True)


if __name__ == "__main__":
    main()
