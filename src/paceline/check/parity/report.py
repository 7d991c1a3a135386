"""`Verification`: what `verify` found, as data and as text.

Owns: verdicts, the table, the JSON.
Invariant: it holds only if everything that was asked for and can be run was run, equal, and nothing was found besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.check.parity.cases import Skipped
from paceline.check.parity.causes import Culprit
from paceline.check.parity.trace import Deviation

_LISTED = 4
"""Programs named on the terminal for each reason why they were not run."""

Verdict = Literal["equal", "differs", "drifts"]


@dataclass(frozen=True)
class Result:
    """One case.

    Args:
      label: scheme and placement, or the step's name.
      devices, accumulation: K and n; None for a step with an n of its own.
      precision: ``float64`` or the task's own.
      worst: the largest deviation from one device.
      tolerance: what it may be, for the kind of that leaf.
      drifting: leaves whose replicas differ.
      note: how the one device took the rows, and what else bears on the tolerance.
    """

    label: str
    devices: int
    accumulation: int | None
    precision: str
    worst: Deviation
    tolerance: float
    drifting: tuple[str, ...] = ()
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """`drifts` when replicas differ, `differs` beyond the tolerance."""
        if self.drifting:
            return "drifts"
        return "equal" if self.worst.value <= self.tolerance else "differs"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "case": self.label,
            "devices": self.devices,
            "accumulation": self.accumulation,
            "precision": self.precision,
            "worst_leaf": self.worst.leaf,
            "update": self.worst.update,
            "deviation": self.worst.value if math.isfinite(self.worst.value) else None,
            "tolerance": self.tolerance,
            "drifting": list(self.drifting),
            "verdict": self.verdict,
            "note": self.note.removeprefix(", "),
        }


@dataclass(frozen=True)
class Verification:
    """The outcome of `paceline.verify`.

    Args:
      subject: what was verified.
      setting: updates, rows, devices, in one line.
      results: one entry a case that was run.
      skipped: what was not run, and why.
      culprits: causes found, in the task or behind a case that differs.
      seconds: time it took [s].
    """

    subject: str
    setting: str
    results: tuple[Result, ...]
    skipped: tuple[Skipped, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def failed(self) -> tuple[Result, ...]:
        """Cases that are not equal."""
        return tuple(result for result in self.results if result.verdict != "equal")

    @property
    def ok(self) -> bool:
        """Whether K devices compute what one would, in all cases run, of which there is one at least."""
        return bool(self.results) and not self.failed and not self.culprits

    def lines(self) -> list[str]:
        """The table and what follows from it."""
        return [self.setting, *self._tables(), *self._skipped(), *self._culprits(), self._conclusion()]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data: ``ok``, ``results``, ``skipped``, ``causes``, ``seconds``."""
        return {
            "ok": self.ok,
            "subject": self.subject,
            "setting": self.setting,
            "results": [result.as_dict() for result in self.results],
            "skipped": [{"what": skip.what, "why": skip.why} for skip in self.skipped],
            "causes": [culprit.as_dict() for culprit in self.culprits],
            "seconds": self.seconds,
        }

    def _tables(self) -> Iterator[str]:
        for precision in dict.fromkeys(result.precision for result in self.results):
            rows = [_cells(group) for group in _groups(self.results, precision)]
            yield from ("", precision)
            yield from aligned([("scheme", "K", "n", "worst leaf", "deviation", "tolerance", "verdict"), *rows])

    def _skipped(self) -> Iterator[str]:
        if self.skipped:
            yield ""
        for why in dict.fromkeys(skip.why for skip in self.skipped):
            names = [skip.what for skip in self.skipped if skip.why == why]
            count = f"{len(names)} programs, " if len(names) > 1 else ""
            more = f" and {len(names) - _LISTED} more (--json lists them)" if len(names) > _LISTED else ""
            yield f"not run: {count}{'; '.join(names[:_LISTED])}{more}: {why}"

    def _culprits(self) -> Iterator[str]:
        for culprit in self.culprits:
            yield ""
            yield from culprit.lines()

    def _conclusion(self) -> str:
        count = len(self.results)
        if self.ok:
            more = sum(skip.is_program for skip in self.skipped)
            rest = f"; {more} more were not run" if more else ""
            return f"\nverified: {count} of {count} programs compute what one device would ({self.seconds:.0f} s){rest}"
        if not self.results:
            return "\nNOT VERIFIED: nothing was run"
        if not self.failed:
            return f"\nNOT VERIFIED: all {count} programs agree with one device, but see the cause above"
        return f"\nNOT VERIFIED: {len(self.failed)} of {count} programs do not compute what one device would"


def _groups(results: Sequence[Result], precision: str) -> list[list[Result]]:
    """Results that share a line of the table: they differ in n alone, and in nothing that their verdict says."""
    groups: dict[tuple[str, int, str], list[Result]] = {}
    for result in results:
        if result.precision == precision:
            groups.setdefault((result.label, result.devices, result.verdict + result.note), []).append(result)
    labels = list(dict.fromkeys(result.label for result in results))
    return [groups[key] for key in sorted(groups, key=lambda key: (labels.index(key[0]), key[1]))]


def _cells(group: Sequence[Result]) -> tuple[str, ...]:
    """One line of the table: the result that comes nearest to its tolerance, or goes farthest beyond."""
    most = max(group, key=lambda result: result.worst.value / result.tolerance)
    leaf = f"{most.worst.leaf} (update {most.worst.update})" if most.worst.value else "all bit-equal"
    if most.drifting:
        leaf = f"{most.drifting[0]} differs between devices"
    counts = sorted({result.accumulation for result in group if result.accumulation is not None})
    return (
        most.label,
        str(most.devices),
        ", ".join(map(str, counts)) or "-",
        leaf,
        f"{most.worst.value:.1e}",
        f"{most.tolerance:.1e}",
        most.verdict + most.note,
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table with columns of equal width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return [f"  {row}" for row in padded]
