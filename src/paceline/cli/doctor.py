"""`paceline doctor RECIPE_OR_FILE`: what would go wrong in a run, before it starts.

Owns: joining a recipe or task file with the checks, what is printed, the exit code.
Not here: the checks (`doctor.preflight`, `doctor.source`), the options, which are those of `paceline train`.
Invariant: a file that defines neither task() nor recipe is read, never run: it may be a whole training script.

Exit codes: 0 no error, 1 errors found, 2 a mistake in the command itself.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any

from paceline.base.errors import PacelineError
from paceline.cli.job import check_count, make_job, parse_options, prepare_devices, run_shape, target_of
from paceline.cli.options import find_value
from paceline.cli.reporting import reporting
from paceline.cli.run_options import RunOptions
from paceline.doctor.finding import Finding, diagnosis, error_finding, not_run
from paceline.doctor.preflight import preflight
from paceline.doctor.source.check import check_source
from paceline.doctor.subject import Subject
from paceline.recipes.find import SHIPPED, find_recipe
from paceline.recipes.recipe import Recipe


def run(arguments: list[str]) -> int:
    """Examine as the arguments say; returns the exit code."""
    return reporting(arguments, _doctor)


def _doctor(arguments: list[str]) -> tuple[dict[str, Any], int]:
    target = target_of(arguments, command="doctor")
    prepare_devices(arguments)
    is_file = target not in SHIPPED and Path(target).is_file()
    if is_file and (why := _why_not_run(Path(target))) is not None:
        found, file, devices = [_not_run(*why)], target, _asked_devices(arguments)
    else:
        found, file, devices = _examine(arguments, target)
    known = {(Path(finding.file or "").resolve(), finding.line) for finding in found if finding.line is not None}
    source = check_source(file, devices=devices)
    new = [finding for finding in source if (Path(finding.file or "").resolve(), finding.line) not in known]
    result = diagnosis(found, new or [Finding("source", "ok", "nothing that is not named above")])
    print("\n".join(result.lines()))
    return result.as_dict(), 0 if result.ok else 1


def _examine(arguments: list[str], target: str) -> tuple[list[Finding], str, int | None]:
    """The findings before the source check, the file to read, and K.

    Raises: what is wrong with the command itself: no such file, no such option, devices that are not there.
    """
    try:
        recipe = find_recipe(target)
    except PacelineError as error:
        if not Path(target).is_file():
            raise
        return [error_finding("load", error)], target, _asked_devices(arguments)
    options, own = parse_options(arguments[1:], recipe, target=target, command="doctor", defaults=RunOptions())
    shape = run_shape(recipe, batch=options.batch, steps=options.steps, epochs=options.epochs, seed=options.seed)
    check_count("prefetch", options.prefetch)
    file = target if target not in SHIPPED else _file_of(recipe)
    try:
        job = make_job(recipe, own, shape=shape)
    except PacelineError as error:
        return [error_finding("load", error)], file, _asked_devices(arguments)
    subject = Subject(
        job.task, job.optimizer, job.data, shape.batch, options.parallel(), options.devices, job.schedule,
        steps=shape.steps, epochs=shape.epochs, remainder=options.remainder, prefetch=options.prefetch,
    )  # fmt: skip
    return preflight(subject), file, subject.num_devices


def _file_of(recipe: Recipe) -> str:
    return inspect.getsourcefile(recipe.build) or ""


def _asked_devices(arguments: list[str]) -> int | None:
    """K as far as the command line says it, for a file whose options are not known."""
    value = find_value(arguments, "devices") or find_value(arguments, "simulate")
    return int(value) if value is not None and value.isdigit() else None


def _why_not_run(path: Path) -> tuple[str, str] | None:
    """Why a file is only read, and the fix: no value for ``task`` or ``recipe`` at its top, or no Python. Else None."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return "Python cannot read the file", "correct what the source check says below"
    names: set[str] = set()
    statements: list[ast.AST] = list(tree.body)
    while statements:
        node = statements.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("paceline"):
            names |= {alias.asname or alias.name for alias in node.names}
        statements.extend(ast.iter_child_nodes(node))
    if not names.isdisjoint({"task", "recipe", "*"}):
        return None
    return (
        "the file defines neither task() nor recipe",
        "define task() that returns a paceline.Job to have them checked",
    )


def _not_run(why: str, fix: str) -> Finding:
    """In place of all checks before that of the source."""
    left = not_run("load", f"{why}, so batch, shapes, keys, memory and drift are unknown")
    return dataclasses.replace(left, fix=fix)
