"""What the doctor says: one finding a line, and the diagnosis that holds them in order.

Owns: the words and the JSON of findings.
Not here: the checks that make them (`doctor.preflight`, `doctor.source`).
Invariant: a warning or an error that has a way out names it; a diagnosis with an error is not ok.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from paceline.base.errors import PacelineError
from paceline.base.units import format_count

Level = Literal["ok", "warning", "error"]

_INDENT = " " * 9


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Args:
      check: what was looked at: ``batch``, ``shapes``, ``keys``, ``memory``, ``drift``, ``source``, ...
      level: ``ok``; ``warning``: may be wrong, or was not checked; ``error``: would fail or train on something else.
      what: the finding, with names and sizes.
      fix: the change to make; None where there is nothing to mend.
      file, line: where in the user's source, if it is there.
    """

    check: str
    level: Level
    what: str
    fix: str | None = None
    file: str | None = None
    line: int | None = None

    @property
    def place(self) -> str:
        """``file:line``, ``file`` or the empty string."""
        if self.file is None:
            return ""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def lines(self) -> list[str]:
        """The finding for the terminal: level, check and what; below it the fix."""
        place = f"{self.place}: " if self.place else ""
        first = f"{self.level:<8} {self.check}: {place}{self.what}"
        return [first, *([f"{_INDENT}fix: {self.fix}"] if self.fix else [])]


def error_finding(check: str, error: PacelineError) -> Finding:
    """A user's mistake, in the words of the error that would have ended the run."""
    return Finding(check, "error", f"{error.what}: {error.why}", error.fix)


def not_run(check: str, why: str) -> Finding:
    """A check that was left out. Never ok: nothing is known about it."""
    return Finding(check, "warning", f"not run: {why}")


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings may be left."""
        return not self.count("error")

    def count(self, level: Level) -> int:
        """Findings of that level."""
        return sum(finding.level == level for finding in self.findings)

    def lines(self) -> list[str]:
        """Every finding and a last line that counts them."""
        counts = [format_count(self.count("error"), "error"), format_count(self.count("warning"), "warning")]
        return [*(line for finding in self.findings for line in finding.lines()), ", ".join(counts)]

    def as_dict(self) -> dict[str, Any]:
        """As JSON-ready data: ``ok``, ``errors``, ``warnings`` and every finding with its fields."""
        return {
            "ok": self.ok,
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }


def diagnosis(*groups: Iterable[Finding]) -> Diagnosis:
    """The findings of several checks, joined in order."""
    return Diagnosis(tuple(finding for group in groups for finding in group))
