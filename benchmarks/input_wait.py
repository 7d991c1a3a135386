"""The part of a step that waits for its batch when the source alone is only 1.2 times as fast as the step.

The source sleeps in `read`: it stands for a disk or a network, and takes no processor from the devices.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import optax

import paceline
from benchmarks.measure import Row, say, spread, steps_for, text_s
from benchmarks.models import mlp
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
    model = mlp([512] * 5, rows=512, num_batches=16)
    paced = Paced(model, optax.sgd(1e-3, momentum=0.9), devices=devices)
    source = SleepingSource(model.data(), read_s=0.0)
    shares, faster = [], []
    for repeat in range(5 if quick else 15):
        # Anew for each repeat, as the load of the machine changes: the step alone, then with the slow source.
        step_s = paced.run_fit(steps=15, data=source, batch=model.rows)
        source.read_s = step_s / FASTER
        report = paced.fit(source, steps=steps_for(step_s, seconds=0.5 if quick else 1.0), batch=model.rows)
        source.read_s, read_s = 0.0, source.read_s
        shares.append(report.input_wait_share * 100)
        faster.append(report.step_p50_s / read_s)
        say(f"  repeat {repeat}: step {text_s(report.step_p50_s)}, read {text_s(read_s)}, wait {shares[-1]:.2f} %")
    compared = (
        f"input wait / step of {text_s(report.step_p50_s)} on {devices} devices; "
        f"the source alone was {spread(faster).median:.2f} times as fast"
    )
    yield Row(NAME, compared, spread(shares), "%", at_most=1.0)
