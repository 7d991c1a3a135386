"""What is wrong with a task, told by running its loss on one device.

Owns: determinism, sums in place of means, means with weights of their own, rows that see each other, keys.
Not here: the comparison of K devices with one.
Invariant: a probe runs in float64 on the first batch of the problem, and names a cause only if its own numbers show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from paceline.base.units import format_count
from paceline.check.keys import KeyFinding, draws, loss_key_findings
from paceline.check.parity import causes
from paceline.check.parity.causes import Culprit
from paceline.check.parity.problem import Problem
from paceline.check.parity.reference import Reference, Split, averaged
from paceline.check.parity.trace import flatten, kind_of
from paceline.engine.rng import base_key, positional_key
from paceline.engine.usercode import with_data_axis
from paceline.tasks.losses import Outcome, Weighted, is_maskable
from paceline.tasks.task import LossFunction

_SAME = 1e-8
"""Two numbers that a probe compares are the same, or far apart."""

_KEY_CAUSES = {
    "shared": causes.KEY_SHARED,
    "reused": causes.KEY_EVERY_STEP,
    "same_on_devices": causes.SAME_MASK,
    "depends_on_devices": causes.MASK_CHANGES,
}


def task_culprits(problem: Problem, reference: Reference) -> Iterator[Culprit]:
    """Causes that lie in the task, whatever the scheme. For float64 problems, under `jax.enable_x64`.

    Args:
      problem: with the loss as its author wrote it.
      reference: the problem on one device, in float64 throughout.
    """
    if reference.text() != reference.text():
        yield Culprit(causes.NONDETERMINISTIC, "tracing the loss twice gave two programs")
        return
    if not _repeats(reference):
        yield Culprit(causes.NONDETERMINISTIC, "two runs on one device gave different values")
        return
    gradients = [leaf for values in reference.trace for name, leaf in values.items() if kind_of(name) == "gradient"]
    if not any(leaf.any() for leaf in gradients):
        yield Culprit(causes.NOTHING_SHOWN, f"in {format_count(len(problem.batches), 'update')}")
    yield from _keys(problem, _bound_loss(problem))
    wide = reference.problem
    yield from _scalars(wide, _bound_loss(wide))
    yield from _undeclared(reference)


def draws_numbers(problem: Problem) -> bool:
    """Whether the loss draws random numbers. In float64 JAX draws other ones than in float32."""
    arguments = (*_start(problem), _rows(problem), base_key(problem.seed))
    jaxpr = jax.make_jaxpr(_bound_loss(problem))(*arguments)
    return bool(draws(jaxpr, [frozenset()] * len(jaxpr.in_avals)))


def interaction_culprits(problem: Problem) -> Iterator[Culprit]:
    """Causes for which a part of the rows has another loss than within the whole batch; asked when a case differs."""
    loss = _bound_loss(problem)
    names = list(_odd_draws(problem, loss))
    if names:
        yield Culprit(causes.MASK_CHANGES, f"draws of shape {', '.join(names)} for {problem.rows} rows")
    elif not problem.has_model_state and _rows_interact(problem, loss):
        yield Culprit(causes.ROWS_INTERACT, "a row's loss on half of the batch differs from that on the whole")


def _repeats(reference: Reference) -> bool:
    """Whether two runs of one program agree bit for bit."""
    first, second = reference.trace, reference.run()
    return all(
        np.array_equal(value, again[name], equal_nan=value.dtype.kind == "f")
        for one, again in zip(first, second, strict=True)
        for name, value in one.items()
    )


def _bound_loss(problem: Problem) -> LossFunction:
    arguments = (*_start(problem), _rows(problem), base_key(problem.seed))
    return with_data_axis(problem.task, *arguments, fields=("loss",)).loss


def _start(problem: Problem) -> tuple[Any, Any]:
    return jax.tree.map(jnp.asarray, (problem.params, problem.model_state))


def _rows(problem: Problem) -> Any:
    return jax.tree.map(jnp.asarray, problem.batches[0].rows)


def _keys(problem: Problem, loss: LossFunction) -> Iterator[Culprit]:
    params, model_state = _start(problem)
    findings = loss_key_findings(loss, params=params, model_state=model_state, batch=_rows(problem))
    for culprit in key_culprits(findings, rows=problem.rows):
        yield culprit
        if culprit.cause is causes.KEY_EVERY_STEP:  # and so on every device, for the rows that it has
            yield culprit._replace(cause=causes.SAME_MASK)


def key_culprits(findings: Iterable[KeyFinding], *, rows: int) -> Iterator[Culprit]:
    """The causes behind key findings of a program that sees so many rows.

    A constant key for a matrix of the model is a choice; for the rows of a batch it is a mistake.
    """
    for finding in findings:
        if finding.kind != "reused" or any(shape[:1] == (rows,) for shape in finding.shapes):
            yield Culprit(_KEY_CAUSES[finding.kind], ", ".join(dict.fromkeys(finding.where)))


def _scalars(problem: Problem, loss: LossFunction) -> Iterator[Culprit]:
    """Scalar values that are no mean of the rows: twice the rows must give the same, two halves the same mean."""
    rows, half = _rows(problem), problem.rows // 2
    outcome = _run(problem, loss, rows, start=0)
    names = [name for name, value in _values(outcome).items() if not is_maskable(value) and not _is_weighted(value)]
    if not names:
        return
    twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), rows)
    doubled = _values(_run(problem, loss, twice, start=0))
    halves = [
        _values(_run(problem, loss, jax.tree.map(lambda leaf, at=at: leaf[at : at + half], rows), start=at))
        for at in (0, half)
    ]
    for name in names:
        whole = float(_values(outcome)[name])
        parts = [float(values[name]) for values in halves]
        if whole and _close(float(doubled[name]), 2 * whole):
            cause = causes.NOT_A_MEAN if name == "the loss" else causes.METRIC_SUMMED
            yield Culprit(cause, f"{name} is a sum: twice the rows give twice the value")
        elif not problem.has_model_state and not _close(sum(parts) / 2, whole):
            evidence = f"{name} is {whole:.6g} on all rows, and the mean of its halves {sum(parts) / 2:.6g}"
            yield Culprit(causes.MEAN_OF_MEANS, evidence)


def _is_weighted(value: Any) -> bool:
    return isinstance(value, Weighted)


def _values(outcome: Outcome) -> dict[str, Any]:
    return {"the loss": outcome.loss} | {f"metric {name!r}": value for name, value in outcome.metrics.items()}


def _undeclared(reference: Reference) -> Iterator[Culprit]:
    """Leaves of the model state that do not become those of all rows: variances not declared, and sums."""
    problem = reference.problem
    if not problem.has_model_state or problem.synced:
        return
    whole, halves = reference.trace[0], Reference(problem, Split(groups=2), combine=averaged).run()[0]
    declared = {f"model_state.{path}" for entry in problem.task.statistics for path in (entry.mean, entry.variance)}
    before = flatten(model_state=problem.model_state)
    others = [name for name in whole if kind_of(name) == "model_state" and name not in declared]
    summed = [name for name in others if _adds_up(before[name], halves[name], whole[name])]
    short = [name for name in others if name not in summed and _falls_short(halves[name], whole[name])]
    if summed:
        yield Culprit(causes.STATE_SUMMED, ", ".join(summed))
    if short:
        yield Culprit(causes.VARIANCE_AVERAGED, ", ".join(short))


def _adds_up(before: np.ndarray, half: np.ndarray, whole: np.ndarray) -> bool:
    """Whether all rows move a leaf twice as far as the mean of two halves; integers, whether they move it elsewhere."""
    if not np.issubdtype(whole.dtype, np.floating):
        return not np.array_equal(half, whole)
    moved = whole.astype(np.float64) - before
    return bool(np.abs(moved).max(initial=0) > 0 and _close(2 * (half.astype(np.float64) - before), moved))


def _falls_short(mean: np.ndarray, right: np.ndarray) -> bool:
    """Whether every entry of a mean over parts is clearly below that of all rows, as the law of total variance says."""
    floating = np.issubdtype(right.dtype, np.floating) and right.size > 1
    return bool(floating and (right >= 0).all() and (right - mean > _SAME * np.abs(right).max()).all())


def _odd_draws(problem: Problem, loss: LossFunction) -> Iterator[str]:
    """Shapes of draws that grow with the rows without having them as leading dim: no part can draw its share."""
    params, model_state = _start(problem)
    key = jax.eval_shape(lambda: jax.random.key(0))
    found = []
    for rows in (problem.rows, problem.rows // 2):
        batch = jax.tree.map(
            lambda leaf, rows=rows: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), _rows(problem)
        )
        arguments = (params, model_state, batch, key)
        labels: list[frozenset[str]] = [frozenset()] * len(jax.tree.leaves(arguments))
        found.append(draws(jax.make_jaxpr(loss)(*arguments), labels))
    for whole, part in zip(*found, strict=False):
        if whole.shape != part.shape and whole.shape[:1] != (problem.rows,):
            yield str(list(whole.shape))


def _rows_interact(problem: Problem, loss: LossFunction) -> bool:
    rows, half = _rows(problem), problem.rows // 2
    whole = _run(problem, loss, rows, start=0).loss
    if not is_maskable(whole):
        return False
    part = _run(problem, loss, jax.tree.map(lambda leaf: leaf[:half], rows), start=0).loss
    pairs = zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True)
    return any(not _close(np.asarray(a)[:half], np.asarray(b)) for a, b in pairs)


def _run(problem: Problem, loss: LossFunction, rows: Any, *, start: int) -> Outcome:
    """The loss of some rows, with the draws that those rows have in the whole batch."""
    count = len(jax.tree.leaves(rows)[0])
    key: Array = positional_key(base_key(problem.seed), rows=count, start=start, stride=1)
    return jax.jit(loss)(*_start(problem), rows, key)


def _close(a: Any, b: Any) -> bool:
    scale = max(float(np.abs(np.asarray(b)).max()), 1e-30)
    return bool(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max() <= _SAME * scale)
