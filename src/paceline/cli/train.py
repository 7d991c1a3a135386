"""`paceline train RECIPE_OR_FILE`: one run from the command line.

Owns: the options of a run, what is printed and written.
Not here: target, recipe and options on the command line (`cli.job`), training (`train`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jax

from paceline.base.errors import OptionError
from paceline.base.exits import INTERRUPTED, TERMINATED
from paceline.checkpoint.weights import import_weights
from paceline.cli.job import check_count, make_job, parse_options, prepare_devices, run_shape, target_of
from paceline.cli.options import with_value
from paceline.cli.page import check_extra, page_beside
from paceline.cli.reporting import reporting
from paceline.cli.run_options import RunOptions
from paceline.cli.several import join, remember_run, run_of_earlier_attempt
from paceline.data.source import BatchStream, Source, as_source
from paceline.engine.state import TrainState
from paceline.engine.usercode import user_code
from paceline.recipes.find import find_recipe
from paceline.recipes.recipe import Job, RunShape
from paceline.telemetry.folder import default_run_path, latest_run
from paceline.topology.processes import processes
from paceline.train.interrupt import Interrupted, Terminated
from paceline.train.report import Report
from paceline.train.resume import Resume
from paceline.train.trainer import Trainer


def run(arguments: list[str]) -> int:
    """Train as the arguments say; returns the exit code."""
    return reporting(with_value(arguments, "resume", alone="latest"), _train)


def _train(arguments: list[str]) -> tuple[dict[str, Any], int]:
    target = target_of(arguments, command="train")
    if not join(arguments):
        prepare_devices(arguments)
    recipe = find_recipe(target)
    options, recipe_options = parse_options(
        arguments[1:], recipe, target=target, command="train", defaults=RunOptions()
    )
    shape = run_shape(recipe, batch=options.batch, steps=options.steps, epochs=options.epochs, seed=options.seed)
    check_count("evaluate_every", options.evaluate_every)
    if options.watch:
        check_extra()
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
    state = _first_state(trainer, options)
    path, resume = _where(options, run_name)
    code = 0
    page = page_beside(Path(path), asked=options.watch, process=processes().index)
    with user_code("the data of the run", when="to read rows and to report"), page:
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
                checkpoints=options.checkpoints(),
                resume=resume,
                run=path,
                progress=options.progress,
                config=config,
                log_to=options.log_to,
            )
        except Interrupted as interrupted:
            state, report, code = interrupted.state, interrupted.report, INTERRUPTED
        except Terminated as terminated:
            state, report, code = terminated.state, terminated.report, TERMINATED
        outcome = {} if job.outcome is None else dict(job.outcome(trainer.single(state)))
    if processes().index == 0:
        _print_report(report, outcome)
    return {"report": report.as_dict(), "outcome": outcome, "config": dict(config)}, code


def _first_state(trainer: Trainer, options: RunOptions) -> TrainState:
    state = trainer.init(seed=options.seed)
    if options.weights is None:
        return state
    single = trainer.single(state)
    params = import_weights(options.weights, single.params)
    return trainer.place(dataclasses.replace(single, params=params, ema=None if single.ema is None else params))


def _where(options: RunOptions, run_name: str) -> tuple[str, Resume]:
    """The run folder, and what to go on from; the same in every process."""
    resume = options.resumes()
    if resume == "auto" and options.run is None:
        raise OptionError(
            what="--resume auto without --run",
            why="a new run gets a folder of its own, so there would never be a checkpoint to go on from",
            fix="add --run FOLDER",
        )

    def choose() -> str:
        again = run_of_earlier_attempt()
        if again is not None or options.run is not None:
            return json.dumps([again or options.run, again is not None])
        anew = resume is False or resume == "auto"
        path = default_run_path("runs", run_name, now=datetime.now()) if anew else latest_run("runs", run_name)
        return json.dumps([str(path), False])

    path, goes_on = json.loads(processes().by_first("run path", choose))
    remember_run(path)
    return path, "auto" if goes_on else resume


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
