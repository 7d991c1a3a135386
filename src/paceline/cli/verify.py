"""`paceline verify RECIPE_OR_FILE`: is K devices the same as one, for this task or for a step written by hand?

Owns: the options of the command, simulated devices where there are too few, the exit code.
Not here: the comparison (`check.parity`).
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from paceline.base.errors import OptionError
from paceline.check.parity.cases import PLACEMENTS, SCHEMES
from paceline.check.parity.verify import DEFAULT_SECONDS, verify
from paceline.cli.job import check_count, make_job, parse_options, prepare_devices, run_shape, target_of
from paceline.cli.options import find_value, read_config
from paceline.cli.reporting import reporting
from paceline.engine.parallel import BatchNorm, Parallel, Placement, Precision, ReduceDtype, Scheme
from paceline.engine.usercode import user_code
from paceline.recipes.find import find_recipe
from paceline.topology.devices import count_in_xla_flags


@dataclass(frozen=True)
class VerifyOptions:
    """Options of `paceline verify`.

    Args:
      devices: numbers of devices to compare with one.
      simulate: simulate so many CPU devices (default, on a machine without accelerators: as many as are needed).
      schemes: schemes to verify.
      placements: placements of the state to verify.
      accumulation: numbers of microbatches to verify.
      batch: rows of a batch (default: twice what divides by all of these).
      updates: updates to compare; one of them has fewer rows.
      precision: the task's own precision, verified after float64.
      reduce_dtype: type of the gradients on the wire, in the task's own precision (per_device and pmap).
      clip_norm: clip the mean gradient to this global norm.
      batch_norm: whose rows BatchNorm's statistics are taken from (per_device and pmap).
      ema_decay: keep a moving average of the parameters with this decay.
      step: module:function of a step written by hand for jax.pmap or jax.shard_map, verified in place of Paceline's.
      state: module:function that makes the state of such a step from params, opt_state and model_state.
      seconds: time that it may take; what is left then is listed as not run (0: no limit).
      seed: of parameters, dropout and everything else random.
      json: write the result to this file as one JSON object.
      config: TOML or YAML file with options; flags come before it.
      traceback: show Python's traceback for errors.
    """

    devices: tuple[int, ...] = (2, 4, 8)
    simulate: int | None = None
    schemes: tuple[Scheme, ...] = SCHEMES
    placements: tuple[Placement, ...] = PLACEMENTS
    accumulation: tuple[int, ...] = (1, 4)
    batch: int | None = None
    updates: int = 3
    precision: Precision = "float32"
    reduce_dtype: ReduceDtype | None = None
    clip_norm: float | None = None
    batch_norm: BatchNorm | None = None
    ema_decay: float | None = None
    step: str | None = None
    state: str | None = None
    seconds: float = DEFAULT_SECONDS
    seed: int = 0
    json: str | None = None
    config: str | None = None
    traceback: bool = False

    def parallel(self) -> Parallel:
        """The part that the engine reads; per_device only so that its options are accepted: schemes are varied."""
        return Parallel(
            scheme="per_device",
            precision=self.precision,
            reduce_dtype=self.reduce_dtype,
            clip_norm=self.clip_norm,
            batch_norm=self.batch_norm,
            ema_decay=self.ema_decay,
        )


def run(arguments: list[str]) -> int:
    """Verify as the arguments say; exit code 0 if all is equal, 1 if not."""
    return reporting(arguments, _verify)


def _verify(arguments: list[str]) -> tuple[dict[str, Any], int]:
    target = target_of(arguments, command="verify")
    if find_value(arguments, "simulate") is None:
        _simulate_enough(arguments)
    else:
        prepare_devices(arguments)
    recipe = find_recipe(target)
    options, recipe_options = parse_options(
        arguments[1:], recipe, target=target, command="verify", defaults=VerifyOptions()
    )
    check_count("updates", options.updates)
    shape = run_shape(recipe, batch=options.batch, steps=options.updates, epochs=None, seed=options.seed)
    job = make_job(recipe, recipe_options, shape=shape)
    folder = Path(target).resolve().parent
    outcome = verify(
        job.task,
        job.optimizer,
        data=job.data,
        parallel=options.parallel(),
        schemes=options.schemes,
        placements=options.placements,
        devices=options.devices,
        accumulation=options.accumulation,
        batch=options.batch,
        updates=options.updates,
        seed=options.seed,
        step=None if options.step is None else _load(options.step, flag="step", folder=folder),
        make_state=None if options.state is None else _load(options.state, flag="state", folder=folder),
        seconds=options.seconds,
    )
    print("\n".join(outcome.lines()))
    config = {"target": target, "options": dataclasses.asdict(options), "recipe": dataclasses.asdict(recipe_options)}
    return {**outcome.as_dict(), "config": config}, 0 if outcome.ok else 1


def _simulate_enough(arguments: list[str]) -> None:
    """As many CPU devices as are to be compared. Accelerators, where there are any, come before them."""
    if count_in_xla_flags() is not None:
        return
    try:
        jax.config.update("jax_num_cpu_devices", max(_asked_devices(arguments)))
    except RuntimeError:  # JAX is in use already, by an embedding program: the devices there are must do
        return


def _asked_devices(arguments: list[str]) -> list[int]:
    """The numbers behind ``--devices``, or those of the configuration file, before anything is parsed."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    if "--devices" in words:
        behind = words[words.index("--devices") + 1 :]
        return [int(text) for text in itertools.takewhile(str.isdigit, behind)] or [1]
    config = find_value(arguments, "config")
    entry = None if config is None else read_config(config).get("devices")
    numbers = entry if isinstance(entry, list) else [entry]
    return [number for number in numbers if isinstance(number, int) and number > 0] or list(VerifyOptions.devices)


def _load(text: str, *, flag: str, folder: Path) -> Callable[..., Any]:
    """The function that ``module:function`` or ``file.py:function`` names.

    Raises: OptionError: no such module or function. TaskError: the module raises when it is loaded.
    """
    name, _, function = text.rpartition(":")
    if not name or not function:
        raise OptionError(
            what=f"--{flag} {text!r}", why="it names a function in a module", fix=f"use --{flag} module:function"
        )
    for place in (str(Path.cwd()), str(folder)):
        if place not in sys.path:
            sys.path.insert(0, place)
    module_name = name.removesuffix(".py").replace("/", ".")
    try:
        with user_code(f"the module {module_name}", when=f"to find {function} in it"):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise OptionError(
            what=f"--{flag} {text}: no module {error.name!r}",
            why="it is looked for here and beside the task file",
            fix="check the name, or start in the folder that holds it",
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", None) == module_name}
        known = [key for key, value in own.items() if callable(value) and not key.startswith("_")]
        raise OptionError(
            what=f"--{flag} {text}: module {module_name!r} has no function {function!r}",
            why="there is nothing to verify",
            fix=f"use one of {', '.join(known[:8]) or 'its functions'}",
        )
    return found
