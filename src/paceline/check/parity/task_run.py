"""A task under Paceline's own schemes, case by case.

Owns: the order of the work, the references that cases share, the time that it may take, the causes behind a difference.
Invariant: a reference is computed once for all cases that promise it; a case that is not run is listed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import jax

from paceline.base.errors import PacelineError, ReplicationError
from paceline.check.parity import causes, tolerance
from paceline.check.parity.cases import Case, Grid, Skipped, plan_cases, promised_split
from paceline.check.parity.causes import Culprit
from paceline.check.parity.faults import Seen, drift_culprits, name_faults
from paceline.check.parity.narrow import loss_type, throughout
from paceline.check.parity.probes import draws_numbers, interaction_culprits, task_culprits
from paceline.check.parity.problem import Problem
from paceline.check.parity.reference import Reference, Split
from paceline.check.parity.report import Result, Verification
from paceline.check.parity.subject import Ran, run_case
from paceline.check.parity.tolerance import Tolerances
from paceline.check.parity.trace import Trace, flat_leaves

_EXPLAINED = 3
"""Cases that are looked into, at most, to name causes."""


class TaskRun:
    """One verification of a task.

    Args:
      until: clock time [s] after which only the plainest case of every scheme is still run.
      fitting: devices that fit into memory at once.
    """

    def __init__(self, problem: Problem, grid: Grid, *, until: float, fitting: int) -> None:
        self._own = problem
        self._grid = grid
        self._until = until
        self._visible = min(jax.device_count(), fitting)
        with jax.enable_x64(True):
            self._typed = problem.widened()
            self._wide = throughout(self._typed)
            self._left = loss_type(self._wide)
            self._eps = tolerance.unit(problem.parallel, inside=loss_type(self._typed))
            self._random = draws_numbers(self._typed)
        self._first = Reference(self._wide)
        self._programs = {(Split(), True): self._first}
        self._moved: dict[tuple[Split, bool], list[Trace]] = {}

    def outcome(self) -> Verification:
        """Run what there is time for, and name the causes of what differs."""
        own = self._own.parallel.precision
        cases, skipped = plan_cases(self._grid, precisions=("float64", own), visible=self._visible)
        skipped += self._uneven()
        with jax.enable_x64(True):
            culprits = list(task_culprits(self._typed, self._first))
        results: list[Result] = []
        wrong: list[tuple[Case, Ran]] = []
        for number, case in enumerate(cases):
            if time.perf_counter() > self._until and number >= len(self._grid.schemes):
                skipped.append(Skipped(str(case), "the time is used up; --seconds 0 sets no limit", is_program=True))
                continue
            try:
                result, ran = self._compared(case)
            except ReplicationError as error:
                culprits.append(Culprit(causes.STATE_DRIFTS, error.what))
                skipped.append(
                    Skipped(str(case), "its state would differ between devices; see the cause", is_program=True)
                )
                continue
            except PacelineError as error:
                skipped.append(Skipped(str(case), f"refused: {error.what}; fix: {error.fix}", is_program=True))
                continue
            results.append(result)
            if result.verdict != "equal":
                wrong.append((case, ran))
        if wrong and not culprits:
            culprits = list(self._explained(wrong))
        return Verification(
            subject=self._own.task.name,
            setting=setting(self._own, self._grid),
            results=tuple(sorted(results, key=lambda result: result.precision != "float64")),
            skipped=tuple(skipped),
            culprits=causes.merged(culprits),
        )

    def _uneven(self) -> list[Skipped]:
        if any(not batch.valid.all() for batch in self._own.batches):
            return []
        why = "its loss or a metric is a scalar, of which padding cannot be left out; training refuses such a batch"
        if self._own.has_model_state:
            why = "padding would enter the model state; training refuses such a batch"
        return [Skipped("an uneven batch", why)]

    def _compared(self, case: Case) -> tuple[Result, Ran]:
        wide = case.precision == "float64"
        split = promised_split(self._own, case)
        with _types(case):
            wanted = self._program(split, wide=wide).trace
            ran = run_case(self._wide if wide else self._own, case, devices=jax.devices())
        limits, note = self._limits(split, case, ran, wanted)
        label = case.scheme if case.placement == "replicated" else f"{case.scheme} {case.placement}"
        most = limits.farthest(ran.trace, wanted)
        result = Result(
            label, case.devices, case.accumulation, case.precision, most, limits.limit(most.leaf),
            drifting=ran.drifting, note=against(split) + note,
        )  # fmt: skip
        return result, ran

    def _limits(self, split: Split, case: Case, ran: Ran, wanted: Trace) -> tuple[Tolerances, str]:
        """What deviation is allowed for each kind of value, and a note on it for the table."""
        wide = case.precision == "float64"
        plain = tolerance.exact() if wide else tolerance.own(self._eps)
        if plain.holds(ran.trace, wanted):
            return plain, ""
        if wide and self._left != "float64":
            return tolerance.inside(self._left), f", a kernel or callback computes in {self._left}"
        with _types(case):
            nudged = self._nudged(split, wide=wide)
        if wide:
            return tolerance.exact(wanted=wanted, nudged=nudged), ""
        with jax.enable_x64(True):
            right = self._program(split, wide=True).trace
        others = nudged if self._random else [*nudged, right]
        return tolerance.own(self._eps, rounded=wanted, others=others, flat=flat_leaves(right)), ""

    def _nudged(self, split: Split, *, wide: bool) -> list[Trace]:
        if (split, wide) not in self._moved:
            eps = tolerance.EPS64 if wide else self._eps
            self._moved[split, wide] = self._program(split, wide=wide).nudged(eps)
        return self._moved[split, wide]

    def _program(self, split: Split, *, wide: bool) -> Reference:
        if (split, wide) not in self._programs:
            self._programs[split, wide] = Reference(self._wide if wide else self._own, split)
        return self._programs[split, wide]

    def _explained(self, wrong: list[tuple[Case, Ran]]) -> Iterator[Culprit]:
        exact = [(case, ran) for case, ran in wrong if case.precision == "float64"]
        if not exact:
            yield Culprit(causes.NARROW_SUMS, "equal in float64")
            return
        with jax.enable_x64(True):
            found = list(interaction_culprits(self._wide))
            for case, ran in exact[:_EXPLAINED] if not found else ():
                split = promised_split(self._wide, case)
                seen = Seen(ran.trace, ran.drifting, case.devices, split)
                named = name_faults(self._wide, seen=seen, right=self._program(split, wide=True).trace)
                found += named or drift_culprits(ran.drifting)
            yield from found or [Culprit(causes.UNKNOWN, str(exact[0][0]))]


def _types(case: Case) -> AbstractContextManager[object]:
    return jax.enable_x64(case.precision == "float64")


def against(split: Split) -> str:
    """How the one device took the rows, if not all together."""
    return f", as one device with its rows in {split.groups} groups" if split.groups > 1 else ""


def setting(problem: Problem, grid: Grid) -> str:
    """What is compared, in one line."""
    counts = ", ".join(map(str, grid.devices))
    fewest = min(int(batch.valid.sum()) for batch in problem.batches)
    uneven = f", one of them with {fewest}" if fewest < problem.rows else ""
    return (
        f"{problem.task.name}: one device against {counts} ({jax.devices()[0].platform}); "
        f"{len(problem.batches)} updates of {problem.rows} rows{uneven}"
    )
