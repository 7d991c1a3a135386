"""The second half of the doctor: everything around a run, in order.

Owns: the order of the checks, what is looked at before JAX starts, which checks need JAX, which measure.
Not here: the checks themselves; the run (`doctor.preflight`).
Invariant: what reads XLA_FLAGS or GPU memory was looked at before this process did the same; a check that did not run
is listed with the reason. Imports no jax: what needs it is passed in, so that all else works where JAX cannot start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from paceline.base.gpus import gpu_count
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.cache import cache_findings
from paceline.doctor.environment.flags import flag_findings
from paceline.doctor.environment.gpus import Driver, read_driver
from paceline.doctor.environment.guard import Check, Outcome, run_checks
from paceline.doctor.environment.limits import limit_findings
from paceline.doctor.environment.memory import occupied_findings
from paceline.doctor.environment.network import network_findings
from paceline.doctor.environment.processes import process_findings, several_expected
from paceline.doctor.environment.system import System
from paceline.doctor.environment.variables import refused_variables, variable_findings
from paceline.doctor.environment.versions import version_findings
from paceline.doctor.environment.visible import visible_findings
from paceline.doctor.finding import Finding, not_run

LOOK_S = 30.0
"""Limit of all checks that do not measure, together. They take about a second where nothing hangs."""
MEASURE_S = 40.0
"""Limit of each check that measures. The usual one takes up to 5 s."""

Look = Callable[[], list[Finding]]


@dataclass(frozen=True)
class First:
    """What was seen before this process used a device.

    Args:
      system: the machine.
      driver: the GPUs, with the memory that others hold.
      flags: findings on XLA_FLAGS.
      importing: why jax cannot be imported; None if it can.
    """

    system: System
    driver: Driver = field(default_factory=Driver)
    flags: tuple[Finding, ...] = ()
    importing: str | None = None

    @property
    def blocked(self) -> str | None:
        """Why JAX cannot be started in this process at all; None if it may be tried."""
        if self.importing is not None:
            return "jax cannot be imported"
        if any(finding.level == "error" for finding in self.flags):
            return "XLA would end this process, because of XLA_FLAGS"
        return None


@dataclass(frozen=True)
class Measured:
    """A check that takes time on the devices: what to do, or why it is left out."""

    name: str
    look: Look | None = None
    why_not: str = ""
    hung: Finding | None = None


def look_first(system: System) -> First:
    """Try XLA_FLAGS, ask the driver and import jax, all at once. Call it before anything uses a device."""
    with ThreadPoolExecutor(2) as pool:
        flags, driver = pool.submit(flag_findings, system), pool.submit(read_driver, system)
        importing = _import_failure()  # which reads no XLA_FLAGS yet
        return First(system, driver.result(), tuple(flags.result()), importing)


def _import_failure() -> str | None:
    """JAX refuses a jaxlib of another version when it is imported, and values that are no booleans."""
    try:
        __import__("jax")
    except Exception as error:  # whatever it is, it is what the user would see
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return None


def environment_findings(
    first: First, asked: Asked, *, devices: Look | None, measured: Sequence[Measured], cache_folder: str | None
) -> Outcome:
    """All findings of the environment, in order.

    Args:
      devices: what JAX sees; None where it cannot start.
      measured: checks on the devices, which run one after another.
      cache_folder: of compiled programs.
    """
    system, driver = first.system, first.driver
    several = several_expected(system, asked)
    gpus = gpu_count(system.environment, listing=system.path("/proc/driver/nvidia/gpus"), nodes=system.path("/dev"))
    value = refused_variables(system, first.importing)  # a value that is at fault is no matter of versions
    importing = None if value else first.importing
    checks = [
        Check("devices", devices or (lambda: [not_run("devices", first.blocked or "JAX cannot start")])),
        Check("versions", lambda: version_findings(system, driver, importing=importing)),
        Check("flags", lambda: list(first.flags)),
        Check("variables", lambda: variable_findings(system, importing=first.importing)),
        Check("visible", lambda: visible_findings(system, driver, asked=asked)),
        Check("processes", lambda: process_findings(system, asked)),
        Check("occupied", lambda: occupied_findings(system, driver)),
        Check("network", lambda: network_findings(system, asked, several=several)),
        Check("limits", lambda: limit_findings(system, devices=gpus, several=several)),
    ]
    outcome = run_checks(checks, limit_s=LOOK_S)
    for check in measured:
        _measure(check, outcome)
    last = run_checks([Check("cache", lambda: cache_findings(system, cache_folder))], limit_s=LOOK_S)
    outcome.findings += last.findings
    return outcome


def _measure(check: Measured, outcome: Outcome) -> None:
    """One after another: two at once would slow each other down; and none behind one that hangs."""
    if check.look is None:
        outcome.findings.append(not_run(check.name, check.why_not))
    elif outcome.left:
        outcome.findings.append(not_run(check.name, "an earlier check hangs"))
    else:
        made = run_checks([Check(check.name, check.look, check.hung)], limit_s=MEASURE_S)
        outcome.findings += made.findings
        outcome.left = made.left
