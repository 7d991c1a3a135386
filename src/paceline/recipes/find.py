"""Finding what `paceline train NAME_OR_FILE` means.

Owns: the list of shipped recipes, loading a user's file.
Invariant: a name that is neither leads to an error that lists what there is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.base.errors import RecipeError, TaskError, nearest
from paceline.engine.usercode import user_code
from paceline.recipes.recipe import Job, NoOptions, Recipe, RunShape

SHIPPED = {
    "linear": "fit y = 3x + 1 from noisy points: the smallest run there is",
    "image": "classify images with a small residual network (digits, Fashion-MNIST, image folders)",
}


def find_recipe(target: str) -> Recipe:
    """The recipe of a shipped name or of a Python file.

    Raises: RecipeError: no such name or file, or a file that defines neither ``recipe`` nor ``task``.
      TaskError: the file raises when it is loaded, or is no Python.
    """
    if target in SHIPPED:
        return _shipped(target)
    path = Path(target)
    if path.suffix != ".py" or not path.is_file():
        shipped = ", ".join(SHIPPED)
        raise RecipeError(
            what=f"{target!r} is neither a recipe nor a Python file{nearest(target, SHIPPED)}",
            why="there is nothing to train",
            fix=f"use one of {shipped}, or the path of a file that defines task() or recipe",
        )
    with user_code(f"the file {target}", when="to find the task in it"):
        module = _load(path)
    return _recipe_of(module, path)


def _shipped(name: str) -> Recipe:
    try:
        return importlib.import_module(f"paceline.recipes.{name}").recipe
    except ModuleNotFoundError as error:
        raise RecipeError(
            what=f"recipe {name!r} needs the package {error.name!r}, which is not installed",
            why="the core install carries no model library",
            fix="pip install 'paceline[recipes]'",
        ) from error


def _load(path: Path) -> ModuleType:
    """Run the file as a module of its own; files beside it can be imported."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"paceline_user_{path.stem}_{digest}", path)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:  # raised by the import system: no line of the file is in its traceback
        place = f"{error.filename}:{error.lineno}" if error.filename else str(path)
        raise TaskError(
            what=f"{place}: {error.msg}",
            why="Python cannot read the file",
            fix="correct the syntax there",
        ) from error
    return module


def _recipe_of(module: ModuleType, path: Path) -> Recipe:
    recipe = getattr(module, "recipe", None)
    if isinstance(recipe, Recipe):
        return recipe if recipe.name else dataclasses.replace(recipe, name=path.stem)
    task = getattr(module, "task", None)
    imported = getattr(task, "__module__", "").startswith("paceline.")  # `from paceline import task`
    if recipe is None and callable(task) and not imported:
        return Recipe(build=lambda options, shape: _call(task, shape, path), options=NoOptions, name=path.stem)
    found = f"a recipe of type {type(recipe).__name__}" if recipe is not None else "neither recipe nor task()"
    raise RecipeError(
        what=f"{path} defines {found}",
        why="Paceline looks for one of them to know what to train",
        fix="define task() that returns a paceline.Job, or recipe = paceline.Recipe(...)",
    )


def _call(task: Callable[..., Any], shape: RunShape, path: Path) -> Job:
    job = task(*_arguments(task, shape, path))
    if not isinstance(job, Job):
        raise RecipeError(
            what=f"task() in {path} returned a {type(job).__name__}",
            why="a run needs a loss, an optimizer and data",
            fix="return paceline.Job(task=..., optimizer=..., data=...)",
        )
    return job


def _arguments(task: Callable[..., Any], shape: RunShape, path: Path) -> tuple[RunShape, ...]:
    """The shape of the run for a task that has a parameter, else nothing."""
    signature = inspect.signature(task)
    given = (shape,) if signature.parameters else ()
    try:
        signature.bind(*given)
    except TypeError as error:
        raise RecipeError(
            what=f"task{signature} in {path} cannot be called with the shape of the run: {error}",
            why="Paceline calls task() or task(shape), and nothing else could fill other parameters",
            fix="define task(), or task(shape) with one parameter; options go into a paceline.Recipe",
        ) from error
    return given
