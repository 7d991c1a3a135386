"""The classic pmap tutorial's loop against `fit`: how many times faster.

The tutorial takes the parameters of replica 0 out after each step and replicates them again before the next, so its
parameters cross the host's dispatch 2 K times a step. Plain SGD on both sides, the same ready batches on the host.
"""

from __future__ import annotations

from collections.abc import Iterator

import optax

from benchmarks.hand import Tutorial
from benchmarks.measure import Row, alternate, say, speedup, spread, steps_for, text_s
from benchmarks.models import mlp
from benchmarks.paced import Paced

NAME = "tutorial"
DEVICES = (4, 8)
_WIDTHS = {"1 MB": [256, 448, 256], "20 MB": [1024, 1600, 1600, 448]}
_LEARNING_RATE = 1e-3


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    for size, widths in _WIDTHS.items():
        if quick and devices > 4 and len(widths) > 3:
            continue  # half a minute by itself
        model = mlp(widths, rows=64)
        say(f"  {devices} devices, {model.params_bytes / 1e6:.1f} MB of parameters")
        tutorial = Tutorial(model, devices=devices, learning_rate=_LEARNING_RATE)
        paced = Paced(model, optax.sgd(_LEARNING_RATE), devices=devices, scheme="pmap")
        steps = steps_for(tutorial.run(model.batches, steps=6), seconds=0.3 if quick else 1.0)
        times = alternate(
            {
                "tutorial": lambda run=tutorial, model=model, steps=steps: run.run(model.batches, steps=steps),
                "fit": lambda run=paced, steps=steps: run.run_fit(steps=steps),
            },
            repeats=3 if quick else 7,
        )
        taken = f"{text_s(spread(times['fit']).median)} and {text_s(spread(times['tutorial']).median)} a step"
        compared = f"fit / tutorial's loop, {size} of parameters on {devices} devices: {taken}"
        yield Row(NAME, compared, speedup(times, "fit", over="tutorial"), at_least=1.0)
