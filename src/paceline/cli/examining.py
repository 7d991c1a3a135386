"""`paceline doctor` where JAX can be started: the run first, then everything around it.

Owns: joining a recipe or task file with the checks, the options, which checks are left out and why.
Not here: the checks (`doctor.preflight`, `doctor.source`, `doctor.environment`).
Invariant: a file that defines neither task() nor recipe is read, never run: it may be a whole training script.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from dataclasses import dataclass
from pathlib import Path

import jax

from paceline.base.errors import PacelineError
from paceline.cli.asked import asked_of
from paceline.cli.job import check_count, make_job, parse_options, prepare_devices, run_shape, target_of
from paceline.cli.options import early_value, find_value, parse
from paceline.cli.run_options import RunOptions
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.collectives import collective_findings
from paceline.doctor.environment.devices import device_findings, listening, start_devices, start_hangs
from paceline.doctor.environment.guard import Outcome
from paceline.doctor.environment.look import First, Measured, environment_findings
from paceline.doctor.environment.rates import rate_findings
from paceline.doctor.finding import Diagnosis, Finding, diagnosis, error_finding, not_run
from paceline.doctor.preflight import preflight
from paceline.doctor.source.check import check_source
from paceline.doctor.subject import Subject
from paceline.recipes.find import SHIPPED, find_recipe
from paceline.recipes.recipe import Recipe
from paceline.topology.devices import choose_devices

_HANGS = Finding(
    "collectives", "error", "the devices do not finish a collective: training would hang",
    "look at NCCL_DEBUG=INFO and nvidia-smi topo -m; NCCL_P2P_DISABLE=1 tells whether the link between GPUs is it",
)  # fmt: skip


_SEE_BELOW = "correct what the check of devices says below"


@dataclass(frozen=True)
class DoctorOptions(RunOptions):
    """Options of every run, and of the doctor.

    Args:
      measure: run collectives on the devices and, if the run is well so far, its input and its step for some seconds.
    """

    measure: bool = True


@dataclass(frozen=True)
class EnvironmentOptions(Asked):
    """Options without a recipe or file.

    Args:
      measure: run collectives on the devices.
      json: write the findings to this file as one JSON object.
      traceback: show Python's traceback for errors.
    """

    measure: bool = True
    json: str | None = None
    traceback: bool = False


@dataclass(frozen=True)
class Examined:
    """The first half.

    Args:
      findings: of the run.
      file: whose source is to be read; empty for none.
      devices: K, if it is known.
      subject: the run, if one could be made.
    """

    findings: list[Finding]
    file: str
    devices: int | None
    subject: Subject | None = None

    @property
    def not_measured(self) -> str:
        """Why the input is not measured; empty if it may be."""
        if self.subject is None or any(finding.level == "error" for finding in self.findings):
            return "no step can be made of this run"
        if any(finding.check == "memory" and finding.level != "ok" for finding in self.findings):
            return "the step may not fit the memory of a device"
        return ""


def examine(arguments: list[str], first: First) -> tuple[Diagnosis, bool]:
    """All findings, and whether a check was left hanging.

    Raises: what is wrong with the command itself: no such file, no such option, devices that are not there.
    """
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        outcome = _alone(arguments, first)
        return diagnosis(outcome.findings), outcome.left
    target = target_of(arguments, command="doctor")
    prepare_devices(arguments)
    examined = _examine(arguments, target)
    known = {(Path(finding.file or "").resolve(), finding.line) for finding in examined.findings if finding.line}
    source = check_source(examined.file, devices=examined.devices)
    new = [finding for finding in source if (Path(finding.file or "").resolve(), finding.line) not in known]
    new = new or [Finding("source", "ok", "nothing that is not named above")]
    outcome = _around(arguments, first, examined)
    return diagnosis(examined.findings, new, outcome.findings), outcome.left


def _alone(arguments: list[str], first: First) -> Outcome:
    """The environment without a run."""
    groups = {"environment": EnvironmentOptions()}
    description = "Look at the machine and its settings; with a recipe or file in front, at its run too."
    parse(arguments, program="paceline doctor", description=description, groups=groups)
    prepare_devices(arguments)
    return _around(arguments, first, None)


def _around(arguments: list[str], first: First, examined: Examined | None) -> Outcome:
    """The second half."""
    asked = asked_of(arguments)
    failure = start_devices()
    look = (
        (lambda: [failure]) if failure else functools.partial(device_findings, first.system, first.driver, asked=asked)
    )
    folder = asked.compilation_cache or jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]: set at run time by JAX
    why_not = "--no-measure" if not _measures(arguments) else "JAX cannot use a device" if failure else ""
    measured = [_collectives(asked, examined, why_not), *([_input(examined, why_not)] if examined else [])]
    outcome = environment_findings(first, asked, devices=look, measured=measured, cache_folder=folder)
    outcome.left = outcome.left or start_hangs()
    return outcome


def _measures(arguments: list[str]) -> bool:
    return "--no-measure" not in arguments and early_value(arguments, "measure") != "False"


def _collectives(asked: Asked, examined: Examined | None, why_not: str) -> Measured:
    subject = examined.subject if examined is not None else None

    def look() -> list[Finding]:
        chosen = choose_devices(asked.devices) if subject is None else list(subject.trainer.mesh.devices.flat)
        return collective_findings(chosen)

    return Measured("collectives", None if why_not else look, why_not, _HANGS)


def _input(examined: Examined, why_not: str) -> Measured:
    why_not = why_not or examined.not_measured
    if why_not or examined.subject is None:
        return Measured("input", None, why_not)
    return Measured("input", functools.partial(rate_findings, examined.subject))


def _examine(arguments: list[str], target: str) -> Examined:
    """The checks of the run, unless its file is only read."""
    is_file = target not in SHIPPED and Path(target).is_file()
    if is_file and (why := _why_not_run(Path(target))) is not None:
        return Examined([_not_run(*why)], target, _asked_devices(arguments))
    try:
        recipe = find_recipe(target)
    except PacelineError as error:
        if not Path(target).is_file():
            raise
        return Examined([error_finding("load", error)], target, _asked_devices(arguments))
    options, own = parse_options(arguments[1:], recipe, target=target, command="doctor", defaults=DoctorOptions())
    shape = run_shape(recipe, batch=options.batch, steps=options.steps, epochs=options.epochs, seed=options.seed)
    check_count("prefetch", options.prefetch)
    file = target if target not in SHIPPED else _file_of(recipe)
    try:
        with listening():
            job = make_job(recipe, own, shape=shape)
    except PacelineError as error:
        return Examined([error_finding("load", error)], file, _asked_devices(arguments))
    except Exception:  # a recipe that uses a device while it builds its job, on a JAX that cannot start
        if start_devices() is None:
            raise
        return Examined([_not_run("JAX cannot use a device", _SEE_BELOW)], file, _asked_devices(arguments))
    if start_devices() is not None:  # after the file is loaded: it may set what JAX reads at the first use
        return Examined([_not_run("JAX cannot use a device", _SEE_BELOW)], file, _asked_devices(arguments))
    subject = Subject(
        job.task, job.optimizer, job.data, shape.batch, options.parallel(), options.devices, job.schedule,
        steps=shape.steps, epochs=shape.epochs, remainder=options.remainder, prefetch=options.prefetch,
    )  # fmt: skip
    return Examined(preflight(subject), file, subject.num_devices, subject)


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
