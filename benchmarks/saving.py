"""What checkpoints cost a run: the image recipe with one every 50 steps, and without."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Mark, Row, alternate, spread, text_s
from paceline.recipes.find import find_recipe
from paceline.recipes.recipe import RunShape
from paceline.train.checkpoints import Checkpoints
from paceline.train.trainer import Trainer

NAME = "saving"
DEVICES = (4,)
EVERY = 50


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    recipe = find_recipe("image")
    shape = RunShape(recipe.batch, None, recipe.epochs, 0)
    job = recipe.make_job(recipe.options(), shape)
    trainer = Trainer(job.task, job.optimizer, devices=devices, schedule=job.schedule)
    steps = EVERY * (2 if quick else 6)
    with tempfile.TemporaryDirectory() as root:

        def side(checkpoints: Checkpoints | None) -> Callable[[], float]:
            return lambda: _step_s(trainer, job, Path(root), batch=recipe.batch, steps=steps, checkpoints=checkpoints)

        sides = {"saving": side(Checkpoints(every=EVERY)), "plain": side(None)}
        times = alternate(sides, repeats=3 if quick else 9, limit_s=240)
    cost = spread(100 * (saving / plain - 1) for saving, plain in zip(times["saving"], times["plain"], strict=True))
    at = f"{steps} steps of {text_s(spread(times['plain']).median)}, {devices} devices"
    yield Row(NAME, f"image recipe, a checkpoint every {EVERY} steps, the time more: {at}", cost, "%", at_most=2.0)


def _step_s(
    trainer: Trainer, job: Any, root: Path, *, batch: int, steps: int, checkpoints: Checkpoints | None
) -> float:
    """Seconds a step, from the third until everything is saved."""
    mark = Mark()
    with tempfile.TemporaryDirectory(dir=root) as folder:
        trainer.fit(
            trainer.init(seed=0), job.data, batch=batch, steps=steps, audit_every=0, callbacks=[mark],
            run=Path(folder) / "run", checkpoints=checkpoints,
        )  # fmt: skip
        return mark.seconds_a_step(steps)
