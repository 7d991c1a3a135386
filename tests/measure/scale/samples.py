"""Made-up measurements, whose answers a pencil gives."""

from __future__ import annotations

from paceline.measure.scale.subject import Flow, Sample


def stages(*, local, barrier=None, step, feed, fit, wait=0.0, repeats=6, on_way=4.0, latency=0.4):
    """The same numbers in every round; times in seconds."""
    made = {
        "local": [Sample(local)] * repeats,
        "step": [Sample(step)] * repeats,
        "feed": [Sample(feed, wait, Flow(latency, feed, on_way))] * repeats,
        "fit": [Sample(fit)] * repeats,
    }
    return made if barrier is None else made | {"barrier": [Sample(barrier)] * repeats}
