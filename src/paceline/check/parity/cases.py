"""Which programs `verify` compares with one device, in which order, and which it leaves out.

Owns: the product of schemes, placements, device counts, accumulation and precision; the reasons for what is not run.
Invariant: every combination that was asked for is either in the plan or in the list of what is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.check.parity.problem import Problem
from paceline.check.parity.reference import Split
from paceline.engine.parallel import Placement, Scheme

SCHEMES: tuple[Scheme, ...] = ("global_view", "per_device", "pmap")
PLACEMENTS: tuple[Placement, ...] = ("replicated", "zero1", "fsdp")


@dataclass(frozen=True)
class Case:
    """One program to compare.

    Args:
      scheme, placement, devices, accumulation: as in `Parallel` and `Trainer`.
      precision: ``float64``, or the task's own.
    """

    scheme: Scheme
    placement: Placement
    devices: int
    accumulation: int
    precision: str

    def __str__(self) -> str:
        placed = "" if self.placement == "replicated" else f" {self.placement}"
        return f"{self.scheme}{placed}, K = {self.devices}, n = {self.accumulation}, {self.precision}"


class Skipped(NamedTuple):
    """Something asked for that was not run, and why."""

    what: str
    why: str
    is_program: bool = False


class Grid(NamedTuple):
    """What to vary."""

    schemes: Sequence[Scheme]
    placements: Sequence[Placement]
    devices: Sequence[int]
    accumulation: Sequence[int]


def plan_cases(grid: Grid, *, precisions: Sequence[str], visible: int) -> tuple[list[Case], list[Skipped]]:
    """The cases in order of what they tell, and what cannot be run at all.

    Args:
      precisions: ``float64`` and the task's own.
      visible: devices there are.
    """
    there = [count for count in grid.devices if count <= visible]
    skipped = [
        Skipped(f"K = {count}", f"there are {visible} devices; --simulate {count} makes so many of the CPU")
        for count in grid.devices
        if count > visible
    ]
    split = [placement for placement in grid.placements if placement != "replicated"]
    if "pmap" in grid.schemes and split:
        skipped.append(
            Skipped(f"pmap with {' and '.join(split)}", "its state has a full copy a device, by its leading axis")
        )
    cases = [
        Case(scheme, placement, count, n, precision)
        for scheme, placement, count, n, precision in itertools.product(
            grid.schemes, grid.placements, there, grid.accumulation, precisions
        )
        if scheme != "pmap" or placement == "replicated"
    ]
    most, first = max(there, default=0), min(grid.accumulation)
    return sorted(cases, key=lambda case: _rank(case, most=most, first=first)), skipped


def _rank(case: Case, *, most: int, first: int) -> int:
    """Number of ways in which a case differs from the plainest: float64, largest K, smallest n, replicated state.

    The plainest of every scheme come first, then those that change one thing, so that a run cut short by its time has
    seen every value of every option before pairs of them.
    """
    return (
        (case.precision != "float64")
        + (case.devices != most)
        + (case.accumulation != first)
        + (case.placement != "replicated")
    )


def promised_split(problem: Problem, case: Case) -> Split:
    """How one device would have to take the rows to get what the scheme promises.

    All rows at once, unless the loss may see rows together (it has model state, as BatchNorm has): then microbatch by
    microbatch, and device by device where statistics are local.
    """
    if not problem.has_model_state:
        return Split()
    local = case.scheme != "global_view" and not problem.synced
    return Split(groups=case.devices if local else 1, microbatches=case.accumulation)
