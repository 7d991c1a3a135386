"""A step written by hand against the one-device loss of its task.

Owns: for which K it is run; what it is compared with; the causes behind a difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from paceline.base.errors import TaskError
from paceline.check.parity import causes, tolerance
from paceline.check.parity.cases import Grid, Skipped
from paceline.check.parity.causes import Culprit
from paceline.check.parity.faults import UPDATE_KINDS, Seen, drift_culprits, name_faults
from paceline.check.parity.handwritten import HandwrittenStep, StepRun
from paceline.check.parity.narrow import loss_type, throughout
from paceline.check.parity.probes import draws_numbers, key_culprits, task_culprits
from paceline.check.parity.problem import Problem
from paceline.check.parity.reference import Reference, Split
from paceline.check.parity.report import Result, Verification
from paceline.check.parity.task_run import against, setting
from paceline.check.parity.tolerance import Tolerances
from paceline.check.parity.trace import Trace, flat_leaves, kind_of, without, worst


def verify_step(problem: Problem, step: HandwrittenStep, *, grid: Grid) -> Verification:
    """Run the step on every K that it can be run on, in float64 and in the precision of the problem.

    Raises: TaskError, AxisNameError: the step cannot be run.
    """
    skipped: list[Skipped] = []
    if not step.takes_mask(problem.batches[0].rows):
        skipped.append(Skipped("an uneven batch", f"{step.name!r} takes no argument `valid`, the mask of its rows"))
        full = tuple(batch._replace(valid=np.ones_like(batch.valid)) for batch in problem.batches)
        problem = dataclasses.replace(problem, batches=full)
    results: list[Result] = []
    with jax.enable_x64(True):
        typed = problem.widened()
        wide = throughout(typed)
        whole = Reference(wide)
        culprits = list(task_culprits(typed, whole))
        random = draws_numbers(typed)
        inside = loss_type(typed)
        rights: list[tuple[Seen, Trace]] = []
        for run in _runs(wide, step, grid, skipped):
            answers = _answers(whole, run)
            seen, right = answers[0]
            rights.append((seen, right))
            inside = max(inside, run.narrowest, key=lambda dtype: jnp.finfo(dtype).eps)
            results.append(_result(step, seen, right, _exact(wide, seen, right), precision="float64"))
            culprits += _culprits(wide, run, answers, equal=results[-1].verdict == "equal")
    eps = tolerance.unit(problem.parallel, inside=inside)
    for wide_seen, right in rights:
        seen = StepRun(problem, step, devices=wide_seen.devices).run()
        reference = Reference(problem, wide_seen.split)
        rounded = reference.run()
        limits = tolerance.own(eps)
        if not limits.holds(seen.trace, rounded):
            others = [*reference.nudged(eps), *([] if random else [right])]
            limits = tolerance.own(eps, rounded=rounded, others=others, flat=flat_leaves(right))
        results.append(_result(step, seen, rounded, limits, precision=problem.parallel.precision))
    skipped += _not_compared(step, rights)
    return Verification(
        subject=f"{step.name} against {problem.task.name}",
        setting=setting(problem, grid),
        results=tuple(results),
        skipped=tuple(skipped),
        culprits=causes.merged(culprits),
    )


def _not_compared(step: HandwrittenStep, runs: list[tuple[Seen, Trace]]) -> list[Skipped]:
    """What one device gives and the step does not.

    Raises: TaskError: the parameters are among it.
    """
    missing = [name for seen, right in runs[:1] for name in right[0] if name not in seen.trace[0]]
    lost = [name for name in missing if kind_of(name) == "params"]
    if lost:
        raise TaskError(
            what=f"the state of the step {step.name!r} has no {lost[0]}",
            why="the parameters are compared by their names; without them nothing would be proven",
            fix="hold them in state.params, or state['params'], in the form that the task has them",
        )
    reported = [name for name in missing if kind_of(name) != "gradient"]
    return [Skipped(name, f"{step.name!r} returns nothing of that name") for name in reported]


def _runs(problem: Problem, step: HandwrittenStep, grid: Grid, skipped: list[Skipped]) -> list[StepRun]:
    """One run for each K; a step that holds its own mesh has one K."""
    runs: dict[int, StepRun] = {}
    for count in grid.devices:
        if count > jax.device_count():
            skipped.append(Skipped(f"K = {count}", f"there are {jax.device_count()} devices"))
            continue
        run = StepRun(problem, step, devices=count, wide=True)
        if run.devices != count:
            skipped.append(Skipped(f"K = {count}", f"the mesh of {step.name!r} has {run.devices} devices"))
        runs.setdefault(run.devices, run)
    return list(runs.values())


def _answers(whole: Reference, run: StepRun) -> list[tuple[Seen, Trace]]:
    """What the step did, with every right answer, the nearest first: BatchNorm may be synced or local."""
    seen = run.run()
    references = [whole]
    if whole.problem.has_model_state:
        references.append(Reference(whole.problem, Split(groups=run.devices)))
    answers = [(seen._replace(split=reference.split), reference.trace) for reference in references]

    def distance(right: Trace) -> float:
        return worst(seen.trace, without(right, flat_leaves(right)), kinds=UPDATE_KINDS).value

    return sorted(answers, key=lambda answer: distance(answer[1]))


def _exact(problem: Problem, seen: Seen, right: Trace) -> Tolerances:
    """Asks what rounding does only where there is something to excuse."""
    if tolerance.exact().holds(seen.trace, right):
        return tolerance.exact()
    return tolerance.exact(wanted=right, nudged=Reference(problem, seen.split).nudged(tolerance.EPS64))


def _result(step: HandwrittenStep, seen: Seen, right: Trace, limits: Tolerances, *, precision: str) -> Result:
    most = limits.farthest(seen.trace, right)
    return Result(
        step.name, seen.devices, None, precision, most, limits.limit(most.leaf), drifting=seen.drifting,
        note=against(seen.split),
    )  # fmt: skip


def _culprits(problem: Problem, run: StepRun, answers: Sequence[tuple[Seen, Trace]], *, equal: bool) -> list[Culprit]:
    seen = answers[0][0]
    found = list(key_culprits(run.key_findings(), rows=problem.rows // seen.devices))
    if not equal:
        named = (name_faults(problem, seen=seen, right=right) for seen, right in answers)
        found += next(filter(None, named), None) or drift_culprits(seen.drifting)
    if not found:  # numbers may agree by chance, as they do if all devices have the same rows
        found += drift_culprits(tuple(drift.leaf for drift in run.drifting()))
    return found if found or equal else [Culprit(causes.UNKNOWN, f"K = {seen.devices}")]
