"""`fit` against bare loops over the same compiled step: what feed, clock, events and progress cost a step.

The bare loop is the least that trains: take the next ready batch, `jax.device_put` it, call the step. A second one has
its batches on the devices before it starts, which no training run has: it shows what the transfer costs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax

import paceline
from benchmarks.measure import Row, Spread, alternate, say, speedup, spread, steps_for, text_s
from benchmarks.models import Model, mlp
from benchmarks.paced import Paced
from paceline.topology.mesh import split_rows

NAME = "loop overhead"
DEVICES = (1, 4)
TARGETS = ((1e-3, 0.97), (20e-3, 0.99))


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    for aim_s, target in TARGETS:
        paced = _calibrated(aim_s, devices)
        yield from _compare(paced, devices, target=target, quick=quick)


def _calibrated(aim_s: float, devices: int) -> Paced:
    """A model whose step takes about so long: layers are added until it does."""
    width, rows = (64, 128) if aim_s < 5e-3 else (512, 512)
    depth = 1
    while True:
        paced = Paced(_model(width, depth, rows), optax.sgd(1e-3, momentum=0.9), devices=devices)
        step_s = min(_bare_step_s(paced) for _ in range(3))
        say(f"  {devices} devices, {depth} layers of {width}: {text_s(step_s)} a step, aim {text_s(aim_s)}")
        if step_s > 0.8 * aim_s or depth >= 64:
            return paced
        depth = max(depth + 1, min(3 * depth, round(depth * aim_s / step_s)))


def _model(width: int, depth: int, rows: int) -> Model:
    return mlp([width] * (depth + 1), rows=rows)


def _bare_step_s(paced: Paced) -> float:
    return paced.run_bare(paced.placed, steps=15, place=_data)


def _data(batch: Any) -> Any:
    return batch.data


def _compare(paced: Paced, devices: int, *, target: float, quick: bool) -> Iterator[Row]:
    model, mesh = paced.model, paced.trainer.mesh
    rows, host = split_rows(mesh), model.data()
    source = paceline.rows(host)
    steps = steps_for(_bare_step_s(paced), seconds=0.15 if quick else 0.4)
    epochs = _Shuffled(host, model.rows)
    times = alternate(
        {
            "fit": lambda: paced.run_fit(steps=steps),
            "bare": lambda: paced.run_bare(model.batches, steps=steps, place=lambda batch: jax.device_put(batch, rows)),
            "placed": lambda: paced.run_bare(paced.placed, steps=steps, place=_data),
            "fit shuffled": lambda: paced.run_fit(steps=steps, data=source, batch=model.rows),
            "bare shuffled": lambda: paced.run_bare(
                range(steps), steps=steps, place=lambda _: jax.device_put(epochs.next(), rows)
            ),
        },
        repeats=3 if quick else 17,
    )
    at = f"steps of {text_s(spread(times['bare']).median)} on {devices} device{'s' if devices > 1 else ''}"
    yield Row(NAME, f"fit / bare loop with device_put, {at}", speedup(times, "fit", over="bare"), at_least=target)
    yield Row(NAME, f"fit / bare loop, batches on the devices already, {at}", speedup(times, "fit", over="placed"))
    shuffled = speedup(times, "fit shuffled", over="bare shuffled")
    yield Row(NAME, f"fit on shuffled rows / bare loop over a numpy permutation, {at}", shuffled)
    yield Row(NAME, f"one call of fit besides its steps, {at}", _fixed_cost(paced, quick=quick), "ms")


class _Shuffled:
    """What a hand-written loop does for shuffled batches: a permutation an epoch, indexed batch by batch."""

    def __init__(self, data: Any, rows: int) -> None:
        self._data, self._rows = data, rows
        self._random = np.random.default_rng(0)
        self._left = np.empty(0, np.int64)

    def next(self) -> Any:
        if len(self._left) < self._rows:
            self._left = self._random.permutation(len(self._data["y"]))
        indices, self._left = self._left[: self._rows], self._left[self._rows :]
        return jax.tree.map(lambda leaf: leaf[indices], self._data)


def _fixed_cost(paced: Paced, *, quick: bool) -> Spread:
    """Whole runs of one step, less a bare step: set-up, report and the end of the feed [ms]."""

    def whole(steps: int) -> float:
        start_s = time.perf_counter()
        paced.fit(iter(paced.model.batches[:steps]), steps=steps)
        return time.perf_counter() - start_s

    times = alternate({"one": lambda: whole(1), "two": lambda: whole(2)}, repeats=3 if quick else 25)
    return spread((2 * one - two) * 1e3 for one, two in zip(times["one"], times["two"], strict=True))
