"""`paceline train RECIPE_OR_FILE`: one run from the command line.

Owns: the options of a run, what is printed and written.
Not here: target, recipe and options on the command line (`cli.job`), training (`train`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jax

from paceline.base.errors import OptionError
from paceline.base.exits import INTERRUPTED
from paceline.cli.job import check_count, make_job, parse_options, prepare_devices, reporting, run_shape, target_of
from paceline.data.batch import Remainder
from paceline.data.source import BatchStream, Source, as_source
from paceline.engine.parallel import (
    BatchNorm,
    DropoutStream,
    NonFinite,
    Parallel,
    Placement,
    Precision,
    ReduceDtype,
    Scheme,
)
from paceline.engine.usercode import user_code
from paceline.recipes.find import find_recipe
from paceline.recipes.recipe import Job, RunShape
from paceline.telemetry.folder import default_run_path
from paceline.telemetry.progress import Mode
from paceline.train.audit import OnDivergence
from paceline.train.interrupt import Interrupted
from paceline.train.report import Report
from paceline.train.trainer import Trainer


@dataclass(frozen=True)
class RunOptions:
    """Options of every run.

    Args:
      batch: rows of the global batch, shared by all devices (default: the recipe's).
      epochs: passes over the data (default: the recipe's).
      steps: updates to make, instead of epochs.
      devices: number of devices (default: all that are visible).
      simulate: simulate so many CPU devices on this machine.
      scheme: how a step runs on the devices.
      placement: what the devices share, each holding a part: nothing, the optimizer state, the parameters too.
      accumulation: microbatches accumulated in an update.
      precision: type of the computation; parameters stay float32.
      reduce_dtype: type of the gradients on the wire (per_device and pmap).
      clip_norm: clip the mean gradient to this global norm.
      nonfinite: what to do when a loss or gradient is not finite.
      dropout: which devices draw which dropout masks.
      batch_norm: whose rows BatchNorm's statistics are taken from (per_device and pmap).
      ema_decay: keep a moving average of the parameters with this decay.
      remainder: what to do with rows that do not fill a batch.
      shuffle: a new order of rows in each epoch.
      prefetch: batches made ahead by the background feed.
      evaluate_every: updates between evaluations (default: one an epoch).
      audit_every: updates between comparisons of the state on all devices; 0 leaves them out.
      on_divergence: what to do when devices do not hold the same state.
      seed: of parameters, data order and dropout.
      run: folder of the run (default: runs/NAME-TIME); it must not exist.
      progress: what the terminal shows.
      json: write the report to this file as one JSON object.
      config: TOML or YAML file with options; flags come before it.
      compilation_cache: folder that keeps compiled programs between runs.
      traceback: show Python's traceback for errors.
    """

    batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    devices: int | None = None
    simulate: int | None = None
    scheme: Scheme = "global_view"
    placement: Placement = "replicated"
    accumulation: int = 1
    precision: Precision = "float32"
    reduce_dtype: ReduceDtype | None = None
    clip_norm: float | None = None
    nonfinite: NonFinite = "stop"
    dropout: DropoutStream = "global"
    batch_norm: BatchNorm | None = None
    ema_decay: float | None = None
    remainder: Remainder = "drop"
    shuffle: bool = True
    prefetch: int = 2
    evaluate_every: int | None = None
    audit_every: int = 500
    on_divergence: OnDivergence = "stop"
    seed: int = 0
    run: str | None = None
    progress: Mode = "auto"
    json: str | None = None
    config: str | None = None
    compilation_cache: str | None = None
    traceback: bool = False

    def parallel(self) -> Parallel:
        """The part that the engine reads."""
        names = [field.name for field in dataclasses.fields(Parallel) if field.name != "donate"]
        return Parallel(**{name: getattr(self, name) for name in names})


def run(arguments: list[str]) -> int:
    """Train as the arguments say; returns the exit code."""
    return reporting(arguments, _train)


def _train(arguments: list[str]) -> tuple[dict[str, Any], int]:
    target = target_of(arguments, command="train")
    prepare_devices(arguments)
    recipe = find_recipe(target)
    options, recipe_options = parse_options(
        arguments[1:], recipe, target=target, command="train", defaults=RunOptions()
    )
    shape = run_shape(recipe, batch=options.batch, steps=options.steps, epochs=options.epochs, seed=options.seed)
    check_count("evaluate_every", options.evaluate_every)
    if options.compilation_cache is not None:
        _use_compilation_cache(options.compilation_cache)
    job = make_job(recipe, recipe_options, shape=shape)
    trainer = Trainer(
        job.task, job.optimizer, devices=options.devices, parallel=options.parallel(), schedule=job.schedule
    )
    config = {"target": target, "options": dataclasses.asdict(options), "recipe": dataclasses.asdict(recipe_options)}
    return _fit(trainer, job, options, shape, run_name=recipe.name, config=config)


def _fit(
    trainer: Trainer, job: Job, options: RunOptions, shape: RunShape, *, run_name: str, config: Mapping[str, Any]
) -> tuple[dict[str, Any], int]:
    state = trainer.init(seed=options.seed)
    code = 0
    with user_code("the data of the run", when="to read rows and to report"):
        data = as_source(job.data)
        try:
            state, report = trainer.fit(
                state,
                data,
                batch=shape.batch,
                steps=shape.steps,
                epochs=None if shape.steps is not None else shape.epochs,
                shuffle=options.shuffle,
                seed=options.seed,
                remainder=options.remainder,
                prefetch=options.prefetch,
                evaluation=job.evaluation,
                evaluate_every=options.evaluate_every or _steps_per_epoch(data, shape),
                audit_every=options.audit_every,
                on_divergence=options.on_divergence,
                run=options.run or default_run_path("runs", run_name, now=datetime.now()),
                progress=options.progress,
                config=config,
            )
        except Interrupted as interrupted:
            state, report, code = interrupted.state, interrupted.report, INTERRUPTED
        outcome = {} if job.outcome is None else dict(job.outcome(trainer.single(state)))
    _print_report(report, outcome)
    return {"report": report.as_dict(), "outcome": outcome, "config": dict(config)}, code


def _steps_per_epoch(data: Source | BatchStream, shape: RunShape) -> int | None:
    """Updates between evaluations if the user does not say; None for a stream, which has no length."""
    return None if isinstance(data, BatchStream) else max(1, len(data) // shape.batch)


def _print_report(report: Report, outcome: Mapping[str, float]) -> None:
    lines = report.lines()
    if outcome:
        lines.append("outcome     " + ", ".join(f"{name} {value:.6g}" for name, value in outcome.items()))
    print("\n".join(lines))


def _use_compilation_cache(folder: str) -> None:
    """Keep every compiled program in `folder`, however quickly it compiled."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cache_error(folder) from error
    if not os.access(folder, os.W_OK):
        raise _cache_error(folder)
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _cache_error(folder: str) -> OptionError:
    return OptionError(
        what=f"--compilation-cache {folder}: the folder cannot be made or written",
        why="every start would compile again",
        fix="choose a folder that you can write to",
    )
