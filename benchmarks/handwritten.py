"""Paceline's three schemes against hand-written `jax.pmap` and `jax.jit` loops of the same model and optimizer.

The steps are compared over batches that are on the devices already, through the public `Trainer.step`; then `fit`
against hand-written loops that place each batch themselves. All fetch the loss at the end only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import optax

from benchmarks.hand import HandJit, HandPmap
from benchmarks.measure import Row, alternate, say, speedup, spread, steps_for, text_s
from benchmarks.models import Model, conv, mlp
from benchmarks.paced import Paced

NAME = "hand-written"
DEVICES = (4,)
_SCHEMES = ("global_view", "per_device", "pmap")
_PAIRS = (("global_view", "jit"), ("per_device", "jit"), ("per_device", "pmap"), ("pmap", "pmap"))
"""Scheme, and the hand-written loop that it is compared with."""


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    models = {
        "MLP 784-512-512, adam": (mlp([784, 512, 512], rows=512), optax.adam(1e-3)),
        "conv 3-32-64, sgd with momentum": (conv([3, 32, 64], side=32, rows=128), optax.sgd(1e-3, momentum=0.9)),
    }
    for name, (model, optimizer) in models.items():
        say(f"  {name}")
        yield from _compare(name, model, optimizer, devices=devices, quick=quick)


def _compare(name: str, model: Model, optimizer: Any, *, devices: int, quick: bool) -> Iterator[Row]:
    hands = {"jit": HandJit(model, optimizer, devices=devices), "pmap": HandPmap(model, optimizer, devices=devices)}
    paced = {scheme: Paced(model, optimizer, devices=devices, scheme=scheme) for scheme in _SCHEMES}
    placed = {kind: [hand.place(batch) for batch in model.batches] for kind, hand in hands.items()}
    steps = steps_for(hands["jit"].run(placed["jit"], steps=15, placed=True), seconds=0.15 if quick else 0.25)
    repeats = 3 if quick else 17

    sides: dict[str, Any] = {}
    for kind, hand in hands.items():
        sides[f"hand-written {kind}"] = lambda hand=hand, kind=kind: hand.run(placed[kind], steps=steps, placed=True)
    for scheme, ours in paced.items():
        sides[scheme] = lambda ours=ours: ours.run_steps(steps=steps)
    times = alternate(sides, repeats=repeats)
    for scheme, kind in _PAIRS:
        taken = (
            f"{text_s(spread(times[scheme]).median)} and {text_s(spread(times[f'hand-written {kind}']).median)} a step"
        )
        compared = f"{scheme} step / hand-written {kind}, {name}, {devices} devices: {taken}"
        yield Row(NAME, compared, speedup(times, scheme, over=f"hand-written {kind}"), at_least=1.0)

    for scheme, kind in (("global_view", "jit"), ("pmap", "pmap")):
        times = alternate(
            {
                "fit": lambda ours=paced[scheme]: ours.run_fit(steps=steps),
                "hand": lambda hand=hands[kind]: hand.run(model.batches, steps=steps, placed=False),
            },
            repeats=repeats,
        )
        compared = f"fit with {scheme} / hand-written {kind} loop with device_put, {name}, {devices} devices"
        yield Row(NAME, compared, speedup(times, "fit", over="hand"), at_least=1.0)
