"""Paceline's side of a comparison: a trainer with its state, run by `fit` or by a bare loop over its compiled step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import optax

import paceline
from benchmarks.measure import Mark, drive
from benchmarks.models import Model
from paceline.engine.parallel import Scheme


class Paced:
    """A trainer of a model on so many devices, and its state, which every run carries on."""

    def __init__(
        self,
        model: Model,
        optimizer: optax.GradientTransformation,
        *,
        devices: int,
        scheme: Scheme = "global_view",
    ) -> None:
        self.model = model
        parallel = paceline.Parallel(scheme=scheme)
        self.trainer = paceline.Trainer(paceline.task(model.row_loss), optimizer, devices=devices, parallel=parallel)
        self.state = self.trainer.init(model.params)
        with self.trainer.feed(iter(model.batches), steps=len(model.batches)) as feed:
            self.placed = list(feed)
        self._valid = self.placed[0].valid

    def fit(self, data: Any, *, steps: int, **options: Any) -> paceline.Report:
        self.state, report = self.trainer.fit(self.state, data, steps=steps, **options)
        return report

    def run_fit(self, *, steps: int, data: Any = None, **options: Any) -> float:
        """Seconds a step of `fit`, by default over the ready batches on the host."""
        mark = Mark()
        batches = itertools.islice(itertools.cycle(self.model.batches), steps) if data is None else data
        self.fit(batches, steps=steps, callbacks=[mark], **options)
        return mark.seconds_a_step(steps)

    def run_steps(self, *, steps: int) -> float:
        """Seconds a step of the public `Trainer.step` over batches on the devices."""

        def step(state: Any, batch: Any) -> Any:
            state, metrics = self.trainer.step(state, batch)
            return state, metrics.values

        return self._drive(step, self.placed, steps=steps)

    def run_bare(self, batches: Iterable[Any], *, steps: int, place: Callable[[Any], Any]) -> float:
        """Seconds a step of a bare loop over the compiled step, on ``place(batch)`` for each of `batches`."""
        call = self.trainer.compiled(self.state, self.placed[0])

        def step(state: Any, batch: Any) -> Any:
            state, metrics = call(state, place(batch), self._valid)
            return state, metrics.values

        return self._drive(step, batches, steps=steps)

    def _drive(self, step: Any, batches: Iterable[Any], *, steps: int) -> float:
        seconds, self.state = drive(step, self.state, batches=batches, steps=steps)
        return seconds
