"""Checks side by side, each on its own: none can hang or end the others.

Owns: a thread and a time limit for each check; what is said of one that raised or did not end.
Invariant: findings come in the order of the checks, and every check gives at least one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.base.errors import PacelineError
from paceline.base.units import format_duration
from paceline.doctor.finding import Finding, error_finding, not_run


@dataclass(frozen=True)
class Check:
    """One check.

    Args:
      name: as its findings have it.
      look: makes the findings.
      hung: what it means if it does not end in time; None: only that it was not run.
    """

    name: str
    look: Callable[[], list[Finding]]
    hung: Finding | None = None


@dataclass
class Outcome:
    """What the checks found so far.

    Args:
      findings: in order.
      left: whether a check is still running in a thread that was given up.
    """

    findings: list[Finding] = field(default_factory=list)
    left: bool = False


def run_checks(checks: Sequence[Check], *, limit_s: int | float) -> Outcome:
    """Run all at once and wait for them, altogether no longer than the limit."""
    boxes: list[list[Finding]] = [[] for _ in checks]
    threads = [
        threading.Thread(target=_look, args=(check, box), name=f"paceline-doctor-{check.name}", daemon=True)
        for check, box in zip(checks, boxes, strict=True)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + limit_s
    outcome = Outcome()
    for check, box, thread in zip(checks, boxes, threads, strict=True):
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            outcome.left = True
            outcome.findings.append(check.hung or not_run(check.name, f"no answer in {format_duration(limit_s)}"))
        else:
            outcome.findings += box or [not_run(check.name, "it found nothing to say")]
    return outcome


def _look(check: Check, box: list[Finding]) -> None:
    try:
        box.extend(check.look())
    except PacelineError as error:
        box.append(error_finding(check.name, error))
    except BaseException as error:  # of the system, of JAX or of the user's data: the other checks go on
        words = " ".join(str(error).split())[:300]
        box.append(not_run(check.name, f"{type(error).__name__}: {words}"))
