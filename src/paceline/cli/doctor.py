"""`paceline doctor [RECIPE_OR_FILE]`: what would go wrong in a run, before it starts.

Owns: what is looked at before JAX starts, what is left where it cannot start, what is printed, the exit code.
Not here: the run itself and the checks that need JAX (`cli.examining`).
Invariant: a flag in XLA_FLAGS that would end this process is found first. Imports no jax by itself.

Exit codes: 0 no error, 1 errors found, 2 a mistake in the command itself.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any

from paceline.cli.asked import asked_of
from paceline.cli.reporting import reporting
from paceline.doctor.environment.guard import Outcome
from paceline.doctor.environment.look import First, Measured, environment_findings, look_first
from paceline.doctor.environment.system import System
from paceline.doctor.finding import Diagnosis, Finding, diagnosis, not_run
from paceline.doctor.source.check import check_source

_ALONE = "Without a recipe or file, paceline doctor looks at the machine and its settings alone.\n"


def run(arguments: list[str]) -> int:
    """Examine as the arguments say; returns the exit code."""
    return reporting(arguments, _doctor)


def _doctor(arguments: list[str]) -> tuple[dict[str, Any], int]:
    if arguments[:1] in (["-h"], ["--help"]):
        print(_ALONE)
    first = look_first(System())
    if first.blocked:
        result, left = _without_jax(arguments, first), False
    else:
        from paceline.cli.examining import examine  # here, because what it imports needs a jax that can be imported

        result, left = examine(arguments, first)
    print("\n".join(result.lines()))
    code = 0 if result.ok else 1
    if left:  # a thread that hangs in a driver would keep this process from ending
        atexit.register(_end, code)
    return result.as_dict(), code


def _without_jax(arguments: list[str], first: First) -> Diagnosis:
    """What can be said where JAX cannot be started: the source of a file, and what needs no device."""
    target = arguments[0] if arguments and not arguments[0].startswith("-") else None
    why = first.blocked or ""
    found: list[Finding] = []
    if target is not None:
        found.append(not_run("load", f"{why}, so batch, shapes, keys, memory and drift are unknown"))
        found += check_source(target) if Path(target).is_file() else []
    names = ("collectives", "input") if target is not None else ("collectives",)
    measured = [Measured(name, why_not=why) for name in names]
    asked = asked_of(arguments)
    folder = asked.compilation_cache or first.system.variable("JAX_COMPILATION_CACHE_DIR")  # as JAX would read it
    outcome: Outcome = environment_findings(first, asked, devices=None, measured=measured, cache_folder=folder)
    return diagnosis(found, outcome.findings)


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
