"""The part of a step that waits for its batch when the source alone is only 1.2 times as fast as the step.

The source sleeps in `read`: it stands for a disk or a network, and takes no processor from the devices. So do the steps
of the first row, which is about the feed and the loop alone. Those of the second row compute, and the load of a shared
machine decides with them: when it drops after the step was measured, the source is the slower one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax

import paceline
from benchmarks.measure import Row, say, spread, text_s
from benchmarks.models import Model, mlp
from benchmarks.paced import Paced

NAME = "input wait"
DEVICES = (4,)
FASTER = 1.2


class SleepingSource:
    """Rows in memory whose `read` takes at least so long."""

    def __init__(self, data: Any, *, read_s: float) -> None:
        self._rows = paceline.rows(data)
        self.read_s = read_s

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Any) -> Any:
        """The rows, after a sleep that leaves `read_s` in all."""
        start_s = time.perf_counter()
        batch = self._rows.read(indices)
        time.sleep(max(0.0, self.read_s - (time.perf_counter() - start_s)))
        return batch


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    steps = 40 if quick else 100
    yield _row(
        _sleeping_model(), f"on {devices} devices that sleep", devices=devices, steps=steps, repeats=3 if quick else 7
    )
    computing = mlp([512] * 5, rows=512, num_batches=16)
    yield _row(computing, f"on {devices} devices that compute", devices=devices, steps=20, repeats=3 if quick else 7)


def _row(model: Model, where: str, *, devices: int, steps: int, repeats: int) -> Row:
    paced = Paced(model, optax.sgd(1e-3, momentum=0.9), devices=devices, scheme="per_device")
    source = SleepingSource(model.data(), read_s=0.0)
    shares, faster = [], []
    for _ in range(repeats):
        # Anew for each repeat, as the load of the machine changes: the step alone, then with the slow source.
        step_s = paced.run_fit(steps=15, data=source, batch=model.rows)
        source.read_s = step_s / FASTER
        report = paced.fit(source, steps=steps, batch=model.rows)
        source.read_s, read_s = 0.0, source.read_s
        shares.append(report.input_wait_share * 100)
        faster.append(report.step_p50_s / read_s)
        say(f"  step {text_s(report.step_p50_s)}, read {text_s(read_s)}, wait {shares[-1]:.2f} %")
    alone = f"the source alone was {spread(faster).median:.2f} times as fast"
    compared = f"input wait / step of {text_s(report.step_p50_s)} {where}; {alone}"
    return Row(NAME, compared, spread(shares), "%", at_most=1.0)


def _sleeping_model() -> Model:
    """A small model whose step takes 20 ms and no processor: the load of the machine cannot change what is compared."""
    model = mlp([64, 64], rows=64, num_batches=16)

    def sleep(started: np.ndarray) -> np.ndarray:
        time.sleep(20e-3)
        return started

    def row_loss(params: Any, batch: Any) -> jax.Array:
        zero = jax.lax.stop_gradient(batch["x"][0, 0]) * 0
        zero = jax.pure_callback(sleep, jax.ShapeDtypeStruct((), np.float32), zero)
        return model.row_loss(params, batch) + zero

    return dataclasses.replace(model, row_loss=row_loss)
