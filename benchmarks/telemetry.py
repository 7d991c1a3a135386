"""What telling costs training: `fit` with a run folder against `fit` without, runs in turn; and one event by itself.

Without a folder the loop measures the same and writes nothing. The time is that from the third step's callback to the
last one's, so neither the start of a run nor its report is in it; reading the program is a row of its own.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import optax

import paceline
from benchmarks.measure import Row, Spread, alternate, say, speedup, spread, steps_for, text_s
from benchmarks.models import mlp
from benchmarks.paced import Paced
from paceline.data.feed import Taken
from paceline.recipes.find import find_recipe
from paceline.recipes.recipe import RunShape
from paceline.telemetry.events import encode
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.reader import read_run
from paceline.telemetry.recorder import Recorder
from paceline.train.vitals import InFlight, Vitals

NAME = "telemetry"
DEVICES = (1, 4)
AIM_S = 5e-3
BATCH = 256
LEAST = 0.995
"""Of the throughput: writing may cost 0.5 %."""
EVENTS = 2000

Fit = Callable[..., paceline.Report]
"""``fit(steps=..., run=..., callbacks=...)``"""


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        numbered = (Path(folder) / f"run-{number}" for number in itertools.count())
        paced, step_s = _of_5_ms(devices)
        at = f"steps of {text_s(step_s)} on {devices} device{'s' if devices > 1 else ''}"
        yield _compared(_fit_of(paced), at, folders=numbered, step_s=step_s, quick=quick)
        if devices > 1:
            fit = _image(devices)
            step_s = min(_seconds_a_step(fit, steps=10, run=None) for _ in range(3))
            at = f"image recipe, steps of {text_s(step_s)} on {devices} devices"
            yield _compared(fit, at, folders=numbered, step_s=step_s, quick=quick)
            yield _reading(fit, folders=numbered)
            yield from _event(fit, folders=numbered)


class _Marks:
    """A callback that notes the third step and the last."""

    def __init__(self) -> None:
        self.count, self.third_s, self.last_s = 0, 0.0, 0.0

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        self.count += 1
        self.last_s = time.perf_counter()
        if self.count == 3:
            self.third_s = self.last_s


def _seconds_a_step(fit: Fit, *, steps: int, run: Path | None) -> float:
    marks = _Marks()
    fit(steps=steps, run=run, callbacks=[marks])
    return (marks.last_s - marks.third_s) / (marks.count - 3)


def _compared(fit: Fit, at: str, *, folders: Iterator[Path], step_s: float, quick: bool) -> Row:
    steps = steps_for(step_s, seconds=0.5 if quick else 2.0)
    times = alternate(
        {
            "with": lambda: _seconds_a_step(fit, steps=steps, run=next(folders)),
            "without": lambda: _seconds_a_step(fit, steps=steps, run=None),
        },
        repeats=3 if quick else 25,
        limit_s=120.0,
    )
    value = speedup(times, "with", over="without")
    return Row(NAME, f"fit with a run folder / without, {at}", value, at_least=LEAST)


def _of_5_ms(devices: int) -> tuple[Paced, float]:
    """A model whose step takes about `AIM_S`: layers are added until it does."""
    depth = 2
    while True:
        paced = Paced(mlp([256] * (depth + 1), rows=BATCH), optax.sgd(1e-3, momentum=0.9), devices=devices)
        step_s = min(_seconds_a_step(_fit_of(paced), steps=20, run=None) for _ in range(3))
        say(f"  {devices} devices, {depth} layers: {text_s(step_s)} a step, aim {text_s(AIM_S)}")
        if step_s > 0.7 * AIM_S or depth >= 64:
            return paced, step_s
        depth = max(depth + 1, min(3 * depth, round(depth * AIM_S / step_s)))


def _fit_of(paced: Paced) -> Fit:
    def fit(*, steps: int, **options: Any) -> paceline.Report:
        return paced.fit(itertools.islice(itertools.cycle(paced.model.batches), steps), steps=steps, **options)

    return fit


def _image(devices: int) -> Fit:
    recipe = find_recipe("image")
    job = recipe.make_job(recipe.options(), RunShape(recipe.batch, None, recipe.epochs, 0))
    trainer = paceline.Trainer(job.task, job.optimizer, devices=devices, schedule=job.schedule)

    def fit(*, steps: int, **options: Any) -> paceline.Report:
        state = jax.block_until_ready(trainer.init(seed=0))
        return trainer.fit(state, job.data, batch=recipe.batch, steps=steps, **options)[1]

    return fit


def _reading(fit: Fit, *, folders: Iterator[Path]) -> Row:
    """Seconds before the first step in which ``program.json`` is made, over those of the compilation [%]."""
    shares = []
    for _ in range(3):
        run = next(folders)
        fit(steps=3, run=run)
        program = read_run(run).program or {}
        shares.append(100 * program["read_s"] / program["compile_s"])
        say(f"  image recipe: compiled in {program['compile_s']:.2f} s, read in {program['read_s']:.2f} s")
    return Row(NAME, "image recipe: reading the compiled program / compiling it", spread(shares), "%", at_most=15)


def _event(fit: Fit, *, folders: Iterator[Path]) -> Iterator[Row]:
    """One step event as a run writes it, every key that a step can have among them."""
    run = next(folders)
    fit(steps=40, run=run)
    events = [event for event in read_run(run).events if event.kind == "step"]
    values = {key: value for event in events for key, value in event.values.items()}
    line = len(encode(events[-1]))
    with Recorder(RunFolder.create(next(folders))) as recorder:
        each = _each(recorder, values)
    yield Row(NAME, f"one step event of {len(values)} values, processor time", each, "us", at_most=25)
    values_us = _vitals()
    yield Row(NAME, "its input, latency and memory, processor time", values_us, "us", at_most=25)
    share = Spread(*(100e-6 * (write + make) / AIM_S for write, make in zip(each, values_us, strict=True)))
    yield Row(NAME, f"both over a step of {text_s(AIM_S)}", share, "%", at_most=0.5)
    yield Row(NAME, "one step event of a run, on the disk", Spread(line, line, line), "bytes")


def _each(recorder: Recorder, values: Mapping[str, float]) -> Spread:
    return _processor_us(lambda step: recorder.step(step, values))


def _vitals() -> Spread:
    flight = InFlight()
    vitals = Vitals([], in_flight=flight)

    def one(step: int) -> None:
        now_s = time.perf_counter()
        flight.change(now_s, 1)
        vitals.of_step(Taken(None, 0.0, now_s, 0.0, 0.0), rows=1, ended_s=now_s, follows_step=True)

    return _processor_us(one)


def _processor_us(work: Callable[[int], Any]) -> Spread:
    """Processor time of this thread a call [us], which the load of the machine hardly changes."""
    taken = []
    for _ in range(25):
        start_s = time.thread_time()
        for step in range(EVENTS // 25):
            work(step)
        taken.append((time.thread_time() - start_s) / (EVENTS // 25) * 1e6)
    return spread(taken)
