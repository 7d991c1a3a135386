"""From the command line to a job: what the commands that take a recipe or a task file have in common.

Owns: the target, devices before the user's file is loaded, the options of a command beside those of the recipe.
Not here: what a command does with the job (`cli.train`, `cli.verify`, `cli.doctor`).
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from paceline.base.errors import OptionError, RecipeError
from paceline.cli.options import apply_config, early_value, find_value, parse, read_config
from paceline.engine.usercode import user_code
from paceline.recipes.find import SHIPPED
from paceline.recipes.recipe import Job, Recipe, RunShape
from paceline.topology.devices import simulate_devices

Options = TypeVar("Options")


def target_of(arguments: list[str], *, command: str) -> str:
    """The recipe or file that the command is for, its first argument.

    Raises: RecipeError: there is none. SystemExit: --help without a target, after the list of recipes.
    """
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    if arguments and arguments[0] in ("-h", "--help"):
        shipped = "\n".join(f"  {name:<8} {summary}" for name, summary in SHIPPED.items())
        print(f"usage: paceline {command} RECIPE_OR_FILE [OPTIONS]\n\nrecipes:\n{shipped}\n")
        print("A Python file that defines task() or recipe is used in the same way.")
        print(f"paceline {command} NAME --help lists the options.")
        raise SystemExit(0)
    raise RecipeError(
        what=f"paceline {command} was not told what to {command}",
        why="the first argument is a recipe or a Python file; options follow it",
        fix=f"use paceline {command} NAME, with NAME one of {', '.join(SHIPPED)}, or the path of your file",
    )


def prepare_devices(arguments: list[str]) -> None:
    """Before anything else: a user's file may use a device when it is loaded, and the number is fixed by then."""
    value = early_value(arguments, "simulate")
    if value is not None and value.lstrip("-").isdigit():  # anything else is reported by the parser
        simulate_devices(int(value))


def parse_options(
    arguments: list[str], recipe: Recipe, *, target: str, command: str, defaults: Options
) -> tuple[Options, Any]:
    """The options of the command and those of the recipe.

    Args:
      arguments: those behind the target.
      defaults: an instance of the command's options.
    """
    _refuse_clash(recipe, defaults)
    both: list[Any] = [defaults, recipe.options()]
    path = find_value(arguments, "config")
    if path is not None:
        both = apply_config(_read_entries(path, arguments), path, defaults=both)
    title = "recipe" if target in SHIPPED else "task"
    parsed = parse(
        arguments,
        program=f"paceline {command} {target}",
        description=f"{command.capitalize()} {recipe.name}. {recipe.summary}",
        groups={"run": both[0], title: both[1]},
    )
    return parsed["run"], parsed[title]


def make_job(recipe: Recipe, recipe_options: Any, *, shape: RunShape) -> Job:
    """The job; what the user's code raises becomes an error that names their line."""
    with user_code(f"task {recipe.name!r}", when="to make the job"):
        return recipe.make_job(recipe_options, shape)


def run_shape(recipe: Recipe, *, batch: int | None, steps: int | None, epochs: int | None, seed: int) -> RunShape:
    """Batch and length as asked for, or the recipe's.

    Raises: OptionError: a number below 1, or a length given in two ways.
    """
    if steps is not None and epochs is not None:
        raise OptionError(
            what=f"--steps {steps} and --epochs {epochs}",
            why="the length of the run must be known in one way",
            fix="use one of the two",
        )
    for name, value in (("batch", batch), ("steps", steps), ("epochs", epochs)):
        check_count(name, value)
    return RunShape(batch or recipe.batch, steps, epochs or recipe.epochs, seed)


def check_count(name: str, value: int | None) -> None:
    """Raise OptionError for an option that counts things and is below 1."""
    if value is not None and value < 1:
        flag = name.replace("_", "-")
        raise OptionError(what=f"--{flag} {value}", why="it counts things", fix=f"use --{flag} 1 or more")


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


def _refuse_clash(recipe: Recipe, options: Any) -> None:
    names = {field.name for field in dataclasses.fields(options)}
    for field in dataclasses.fields(recipe.options):
        if field.name in names:
            raise RecipeError(
                what=f"option {field.name!r} of recipe {recipe.name!r} is an option of every run too",
                why="one flag cannot mean both",
                fix="rename the field; batch, steps, epochs and seed of the run reach build() as its second argument",
            )
