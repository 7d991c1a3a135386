"""`paceline tune RECIPE_OR_FILE`: the largest batch that fits, and the settings that train fastest on these devices.

Owns: the options of the command, what is printed, the exit code.
Not here: what is tried and how it is measured (`measure.tune`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

from paceline.base.errors import OptionError
from paceline.cli.job import check_count, make_job, parse_options, prepare_devices, run_shape, target_of
from paceline.cli.reporting import reporting
from paceline.cli.run_options import RunOptions
from paceline.cli.step_options import StepOptions
from paceline.engine.parallel import Parallel
from paceline.engine.usercode import user_code
from paceline.measure.scale.subject import Subject, own_options
from paceline.measure.tune.result import Memory, trial_line
from paceline.measure.tune.search import Trial
from paceline.measure.tune.setting import Setting
from paceline.measure.tune.tune import Heard, TuneOptions, tune
from paceline.recipes.find import find_recipe
from paceline.recipes.recipe import Recipe
from paceline.topology.devices import choose_devices


@dataclass(frozen=True)
class TuneFlags(StepOptions):
    """Options of `paceline tune`. Those of a run say where to begin.

    Args:
      seconds: about how long it may take.
      fix_batch: keep the training as it is: the global batch, and which rows BatchNorm sees at once.
      memory_gb: memory of one device, in gigabytes of 10^9 bytes, where it says none or more (default: what it says).
      devices: number of devices (default: all that are visible).
      simulate: simulate so many CPU devices on this machine.
      shuffle: a new order of rows in each epoch.
      seed: of parameters, data order and dropout.
      json: write the result to this file as one JSON object.
      config: TOML or YAML file with options; flags come before it.
      traceback: show Python's traceback for errors.
    """

    seconds: float = 300.0
    fix_batch: bool = False
    memory_gb: float | None = None
    devices: int | None = None
    simulate: int | None = None
    shuffle: bool = True
    seed: int = 0
    json: str | None = None
    config: str | None = None
    traceback: bool = False

    def tuning(self) -> TuneOptions:
        """The part that says how to tune. Raises: OptionError: no time, or no memory."""
        for name, value, unit in (("seconds", self.seconds, 60), ("memory-gb", self.memory_gb, 80)):
            if value is not None and not 0 < value < math.inf:
                raise OptionError(
                    what=f"--{name} {value:g}",
                    why="nothing can be tuned with that",
                    fix=f"use a number above 0, such as --{name} {unit}, or leave it out",
                )
        memory_bytes = None if self.memory_gb is None else int(self.memory_gb * 1e9)
        return TuneOptions(self.seconds, self.fix_batch, memory_bytes)


def run(arguments: list[str]) -> int:
    """Tune as the arguments say; exit code 0, also if nothing was gained."""
    return reporting(arguments, _tune)


def _tune(arguments: list[str]) -> tuple[dict[str, Any], int]:
    target = target_of(arguments, command="tune")
    prepare_devices(arguments)
    recipe = find_recipe(target)
    flags, recipe_options = parse_options(arguments[1:], recipe, target=target, command="tune", defaults=TuneFlags())
    check_count("prefetch", flags.prefetch)
    options, parallel = flags.tuning(), flags.parallel()
    shape = run_shape(recipe, batch=flags.batch, steps=None, epochs=None, seed=flags.seed)
    devices = choose_devices(flags.devices)

    @functools.cache
    def subject(batch: int) -> Subject:
        job = make_job(recipe, recipe_options, shape=dataclasses.replace(shape, batch=batch))
        return Subject(
            job.task, job.optimizer, job.data, job.schedule, parallel, flags.prefetch, flags.shuffle, flags.seed
        )  # fmt: skip

    start = Setting(shape.batch, parallel, flags.prefetch)
    with own_options(), user_code("the data of the run", when="to read rows"):
        _say_start(recipe, start, num_devices=len(devices), kind=devices[0].device_kind)
        result = tune(
            subject, start, devices=devices, options=options, default=_default(recipe, parallel),
            heard=Heard(_say_memory, _say_trial),
        )  # fmt: skip
    print("\n".join(result.lines()))
    config = {"target": target, "options": dataclasses.asdict(flags), "recipe": dataclasses.asdict(recipe_options)}
    return {**result.as_dict(), "config": config}, 0


def _default(recipe: Recipe, parallel: Parallel) -> Setting:
    """What a run does without the flags that are tuned, for the flags to be told."""
    untold = RunOptions()
    plain = untold.parallel()
    return Setting(recipe.batch, dataclasses.replace(parallel, **_tuned(plain)), untold.prefetch)


def _tuned(parallel: Parallel) -> dict[str, Any]:
    names = ("scheme", "placement", "accumulation", "batch_norm", "bucket_bytes")
    return {name: getattr(parallel, name) for name in names}


def _say_start(recipe: Recipe, start: Setting, *, num_devices: int, kind: str) -> None:
    devices = f"{num_devices} x {kind}"
    print(f"task        {recipe.name} on {devices}, from batch {start.batch:,}, scheme {start.parallel.scheme}")


def _say_memory(memory: Memory) -> None:
    print(f"memory      {memory}\ntried", flush=True)


def _say_trial(trial: Trial) -> None:
    print(trial_line(trial), flush=True)
