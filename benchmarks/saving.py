"""What checkpoints cost a run: the image recipe, stretches of 50 steps with one save in them and without, in turn."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, Spread, spread, text_s
from paceline.recipes.find import find_recipe
from paceline.recipes.recipe import RunShape
from paceline.train.checkpoints import Checkpoints
from paceline.train.trainer import Trainer

NAME = "saving"
DEVICES = (4,)
STRETCH = 50


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    recipe = find_recipe("image")
    shape = RunShape(recipe.batch, None, recipe.epochs, 0)
    job = recipe.make_job(recipe.options(), shape)
    trainer = Trainer(job.task, job.optimizer, devices=devices, schedule=job.schedule)
    pairs = 4 if quick else 24
    finished_s: list[float] = []
    with tempfile.TemporaryDirectory() as root:
        _, report = trainer.fit(
            trainer.init(seed=0), job.data, batch=recipe.batch, steps=STRETCH * (2 * pairs + 3), audit_every=0,
            callbacks=[lambda step, values: finished_s.append(time.perf_counter())], run=Path(root) / "run",
            checkpoints=Checkpoints(every=2 * STRETCH),
        )  # fmt: skip
    cost, plain_s = _cost(finished_s, pairs)
    at = f"{pairs} pairs of stretches, {text_s(plain_s)} a step, {devices} devices"
    yield Row(NAME, f"image recipe, a checkpoint every {STRETCH} steps, the time more: {at}", cost, "%", at_most=2.0)
    block_ms = 1e3 * report.checkpoint_s / report.checkpoints
    yield Row(NAME, "the same, what one save holds up the loop", Spread(block_ms, block_ms, block_ms), "ms")


def _cost(finished_s: list[float], pairs: int) -> tuple[Spread, float]:
    """Of each stretch with a save against the mean of its two neighbours without [%]; and their seconds a step."""
    # A save follows step 100, 200, ...: the steps up to 150, 250, ... bear it. Ends are taken from the times of steps.
    ends = [finished_s[number * STRETCH - 1] for number in range(1, 2 * pairs + 4)]
    lengths = [after - before for before, after in itertools.pairwise(ends)]  # of steps 51 to 100, 101 to 150, ...
    saving, plain = lengths[1::2][:pairs], lengths[0::2][: pairs + 1]
    costs = [
        100 * (own / ((before + after) / 2) - 1)
        for own, (before, after) in zip(saving, itertools.pairwise(plain), strict=True)
    ]  # fmt: skip
    return spread(costs), spread(plain).median / STRETCH
