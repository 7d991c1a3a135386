"""`paceline train RECIPE_OR_FILE`: one run from the command line.

Owns: the options of a run, the order of set-up (devices before the user's file is loaded), what is printed and written.
Not here: training (`train`), recipes (`recipes`).
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

from paceline.base.errors import OptionError, PacelineError, RecipeError
from paceline.base.exits import INTERRUPTED
from paceline.cli.options import apply_config, find_value, parse, read_config
from paceline.data.batch import Remainder
from paceline.data.source import BatchStream, Source, as_source
from paceline.engine.parallel import BatchNorm, DropoutStream, NonFinite, Parallel, Precision, ReduceDtype, Scheme
from paceline.engine.usercode import user_code
from paceline.recipes.find import SHIPPED, find_recipe
from paceline.recipes.recipe import Job, Recipe, RunShape
from paceline.telemetry.document import write_document
from paceline.telemetry.folder import default_run_path
from paceline.telemetry.progress import Mode
from paceline.topology.devices import simulate_devices
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
    json_path = _early(arguments, "json")
    if json_path is not None:
        _check_writable(json_path)
    try:
        document, code = _train(arguments)
    except PacelineError as error:
        if json_path is not None:
            write_document(Path(json_path), {"error": error.as_dict()})
        raise
    if json_path is not None:
        write_document(Path(json_path), document)
    return code


def _train(arguments: list[str]) -> tuple[dict[str, Any], int]:
    target = _target(arguments)
    _prepare_devices(arguments)
    recipe = find_recipe(target)
    options, recipe_options = _parse(arguments[1:], recipe, target)
    shape = _shape(options, recipe)
    if options.compilation_cache is not None:
        _use_compilation_cache(options.compilation_cache)
    with user_code(f"task {recipe.name!r}", when="to make the job"):
        job = recipe.make_job(recipe_options, shape)
    trainer = Trainer(
        job.task, job.optimizer, devices=options.devices, parallel=options.parallel(), schedule=job.schedule
    )
    config = {"target": target, "options": dataclasses.asdict(options), "recipe": dataclasses.asdict(recipe_options)}
    return _fit(trainer, job, options, shape, run_name=recipe.name, config=config)


def _target(arguments: list[str]) -> str:
    if not arguments or arguments[0].startswith("-"):
        shipped = "\n".join(f"  {name:<8} {summary}" for name, summary in SHIPPED.items())
        if arguments and arguments[0] in ("-h", "--help"):
            print(f"usage: paceline train RECIPE_OR_FILE [OPTIONS]\n\nrecipes:\n{shipped}\n")
            print("A Python file that defines task() or recipe is trained in the same way.")
            print("paceline train NAME --help lists the options.")
            raise SystemExit(0)
        raise RecipeError(
            what="paceline train was not told what to train",
            why="the first argument is a recipe or a Python file; options follow it",
            fix=f"use paceline train NAME, with NAME one of {', '.join(SHIPPED)}, or the path of your file",
        )
    return arguments[0]


def _prepare_devices(arguments: list[str]) -> None:
    """Before anything else: a user's file may use a device when it is loaded, and the number is fixed by then."""
    value = _early(arguments, "simulate")
    if value is not None and value.lstrip("-").isdigit():  # anything else is reported by the parser
        simulate_devices(int(value))


def _early(arguments: list[str], name: str) -> str | None:
    """What a flag, or else the configuration file, says of an option that is needed before the flags are parsed."""
    value, config = find_value(arguments, name), find_value(arguments, "config")
    if value is None and config is not None:
        entry = read_config(config).get(name)
        value = None if entry is None else str(entry)
    return value


def _read_entries(path: str, arguments: list[str]) -> dict[str, Any]:
    entries = read_config(path)
    for flag, entry in (("steps", "epochs"), ("epochs", "steps")):  # both say how long; the flag is meant
        if find_value(arguments, flag) is not None:
            entries.pop(entry, None)
    for name in ("config", "traceback"):
        if name in entries:
            raise OptionError(
                what=f"{path}: {name!r} stands in a configuration file",
                why="it decides how that file and its errors are read, so it would have no effect there",
                fix=f"give it as the flag --{name}",
            )
    return entries


def _parse(arguments: list[str], recipe: Recipe, target: str) -> tuple[RunOptions, Any]:
    _refuse_clash(recipe)
    defaults: list[Any] = [RunOptions(), recipe.options()]
    path = find_value(arguments, "config")
    if path is not None:
        defaults = apply_config(_read_entries(path, arguments), path, defaults=defaults)
    title = "recipe" if target in SHIPPED else "task"
    parsed = parse(
        arguments,
        program=f"paceline train {target}",
        description=f"Train {recipe.name}. {recipe.summary}",
        groups={"run": defaults[0], title: defaults[1]},
    )
    return parsed["run"], parsed[title]


def _refuse_clash(recipe: Recipe) -> None:
    names = {field.name for field in dataclasses.fields(RunOptions)}
    for field in dataclasses.fields(recipe.options):
        if field.name in names:
            raise RecipeError(
                what=f"option {field.name!r} of recipe {recipe.name!r} is an option of every run too",
                why="one flag cannot mean both",
                fix="rename the field; batch, steps, epochs and seed of the run reach build() as its second argument",
            )


def _shape(options: RunOptions, recipe: Recipe) -> RunShape:
    if options.steps is not None and options.epochs is not None:
        raise OptionError(
            what=f"--steps {options.steps} and --epochs {options.epochs}",
            why="the length of the run must be known in one way",
            fix="use one of the two",
        )
    for name in ("batch", "steps", "epochs", "evaluate_every"):
        value = getattr(options, name)
        if value is not None and value < 1:
            flag = name.replace("_", "-")
            raise OptionError(what=f"--{flag} {value}", why="it counts things", fix=f"use --{flag} 1 or more")
    return RunShape(options.batch or recipe.batch, options.steps, options.epochs or recipe.epochs, options.seed)


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


def _check_writable(path: str) -> None:
    """Raise OptionError now rather than after the run."""
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or Path(path).is_dir():
        raise OptionError(
            what=f"--json {path}: the file cannot be written",
            why="the report of the run would be lost",
            fix="choose a file in a folder that exists and that you can write to",
        )


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
