"""Known faults, each computed on one device, and compared with what was seen: the one that matches has a name.

Owns: the arithmetic of every fault; the order in which they are tried.
Not here: the words (`check.parity.causes`), keys (`check.keys`), what a task shows by itself (`check.parity.probes`).
Invariant: a cause is named only if its fault, carried through all updates, gives the numbers that were seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from paceline.check.parity import causes
from paceline.check.parity.causes import Cause, Culprit
from paceline.check.parity.probes import draws_numbers
from paceline.check.parity.problem import Batch, Problem
from paceline.check.parity.reference import Clip, Local, Reference, Split, Update, averaged, combine
from paceline.check.parity.trace import Trace, flat_leaves, kind_of, without, worst, worst_by_kind
from paceline.tasks.losses import Totals

MATCH = 1e-7
"""Seen and simulated values this close are the same mistake; what they are told apart by is larger by far."""

UPDATE_KINDS = ("gradient", "params", "opt_state")


class Seen(NamedTuple):
    """What a program on K devices did.

    Args:
      trace: values of every update, as device 0 holds them.
      drifting: leaves whose replicas differ.
      devices: K.
      split: how one device takes the rows for the right answer.
    """

    trace: Trace
    drifting: tuple[str, ...]
    devices: int
    split: Split


class Fault(NamedTuple):
    """A mistake in what becomes of the devices' parts.

    Args:
      cause: its name.
      make: the one-device run that makes the same mistake.
      kinds: the values that show it.
    """

    cause: Cause
    make: Callable[[Problem, Seen], Reference]
    kinds: tuple[str, ...] = UPDATE_KINDS


def name_faults(problem: Problem, *, seen: Seen, right: Trace) -> list[Culprit]:
    """The causes behind a trace that differs from `right`. For float64 problems, under `jax.enable_x64`."""
    found: list[Culprit] = []
    told = without(right, flat_leaves(right))
    wrong = {kind: deviation for kind, deviation in worst_by_kind(seen.trace, told).items() if deviation.value > MATCH}
    if any(kind in wrong for kind in UPDATE_KINDS) or any(kind_of(name) == "params" for name in seen.drifting):
        found += _matching(problem, seen, _UPDATE_FAULTS)
    if not found and ("model_state" in wrong or any(kind_of(name) == "model_state" for name in seen.drifting)):
        found += _model_state(problem, seen)
    if not any(kind in wrong for kind in UPDATE_KINDS):
        found += list(_metrics(seen, right)) or (
            list(_matching(problem, seen, _METRIC_FAULTS)) if "metrics" in wrong else []
        )
    return found


def drift_culprits(drifting: tuple[str, ...]) -> list[Culprit]:
    """Causes told by which leaves differ between devices alone."""
    if not drifting:
        return []
    kinds = {kind_of(name) for name in drifting}
    shown = ", ".join(drifting[:3]) + (f" and {len(drifting) - 3} more" if len(drifting) > 3 else "")
    cause = causes.STATE_DRIFTS
    if kinds <= {"model_state"}:
        cause = causes.BATCH_NORM_DRIFTS
    elif "params" in kinds:
        cause = causes.NEVER_REDUCED
    return [Culprit(cause, f"{shown} on different devices")]


def _matching(problem: Problem, seen: Seen, faults: Sequence[Fault]) -> Iterator[Culprit]:
    """The first fault whose numbers are those seen."""
    if seen.devices == 1:
        return
    for fault in faults:
        if not _is_possible(fault.cause, problem, seen):
            continue
        simulated = fault.make(problem, seen).run()
        told = without(simulated, flat_leaves(simulated))
        if worst(seen.trace, told, kinds=fault.kinds).value <= MATCH:
            yield Culprit(fault.cause, f"K = {seen.devices}")
            return


def _is_possible(cause: Cause, problem: Problem, seen: Seen) -> bool:
    """Whether the task has what the mistake is made with; without it the fault would have the numbers of another."""
    if cause is causes.CLIP_BEFORE_MEAN:
        return problem.parallel.clip_norm is not None
    if cause is causes.NEVER_REDUCED:
        return bool(seen.drifting)
    if cause is causes.SCHEDULE_COUNTS_MICROBATCHES:
        return any(map(_is_count, jax.tree.leaves(jax.eval_shape(problem.optimizer.init, problem.params))))
    if cause in (causes.SAME_MASK, causes.MASK_CHANGES):
        return draws_numbers(problem)
    if cause is causes.ROWS_INTERACT:
        return not problem.has_model_state and not draws_numbers(problem)
    return True


def _model_state(problem: Problem, seen: Seen) -> list[Culprit]:
    names = tuple(name for name in seen.drifting if kind_of(name) == "model_state")
    if names:
        return drift_culprits(names)
    return list(_matching(problem, seen, [_AVERAGED]))


def _metrics(seen: Seen, right: Trace) -> Iterator[Culprit]:
    """Values that are K times, or a K-th of, what they should be, in every update."""
    for name in right[0]:
        if kind_of(name) not in ("metrics", "loss") or name not in seen.trace[0]:
            continue
        pairs = [(float(a[name]), float(b[name])) for a, b in zip(seen.trace, right, strict=True)]
        for factor in (seen.devices, 1 / seen.devices):
            off = any(abs(value - expected) > MATCH * abs(expected) for value, expected in pairs)
            if off and all(np.isclose(value, factor * expected, rtol=MATCH, atol=0) for value, expected in pairs):
                yield Culprit(causes.METRIC_SUMMED, f"{name} is {factor:g} times the right value")


def _fault(cause: Cause, rule: Callable[[Local, Clip], Update]) -> Fault:
    return Fault(cause, lambda problem, seen: Reference(problem, _by_device(seen), combine=rule))


def _by_device(seen: Seen) -> Split:
    """Every device's rows apart."""
    return Split(groups=seen.devices, microbatches=seen.split.microbatches)


def _scaled(cause: Cause, *, power: int) -> Fault:
    """The right gradient times so many powers of K."""

    def make(problem: Problem, seen: Seen) -> Reference:
        def rule(local: Local, clip: Clip) -> Update:
            right = combine(local, lambda gradients: gradients)
            factor = float(seen.devices) ** power
            return right._replace(gradients=clip(jax.tree.map(lambda leaf: leaf * factor, right.gradients)))

        return Reference(problem, seen.split, combine=rule)

    return Fault(cause, make)


def _first_device(local: Local, clip: Clip) -> Update:
    return combine(jax.tree.map(lambda leaf: leaf[:1], local._replace(union={}))._replace(union=local.union), clip)


def _mean_of_means(local: Local, clip: Clip) -> Update:
    return combine(local, clip)._replace(gradients=clip(_mean(_local_means(local))))


def _mean_of_metrics(local: Local, clip: Clip) -> Update:
    means = {name: jax.vmap(Totals.mean)(total).mean() for name, total in local.totals.items() if name != "loss"}
    return combine(local, clip)._replace(metrics=means)


def _clip_first(local: Local, clip: Clip) -> Update:
    return combine(local, clip)._replace(gradients=_mean(jax.vmap(clip)(_local_means(local))))


def _local_means(local: Local) -> Any:
    """Every device's gradient of its own mean loss; 0 where it has no weight."""
    weight = local.totals["loss"].weight

    def divide(leaf: Array) -> Array:
        shaped = weight.reshape(-1, *[1] * (leaf.ndim - 1)).astype(leaf.dtype)
        return jnp.where(shaped == 0, 0, leaf / jnp.where(shaped == 0, 1, shaped))

    return jax.tree.map(divide, local.gradients)


def _mean(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.mean(0), tree)


def _all_rows_valid(problem: Problem, seen: Seen) -> Reference:
    batches = tuple(Batch(batch.rows, np.ones_like(batch.valid)) for batch in problem.batches)
    return Reference(dataclasses.replace(problem, batches=batches), _by_device(seen))


def _counting(factor: int, *, last: bool) -> Fault:
    """Schedules that see the number of the last, or the first, of so many microbatches as number of the update."""

    def prepare(opt_state: Any, update: Array) -> Any:
        count = update * factor + (factor - 1 if last else 0)
        return jax.tree.map(lambda leaf: count.astype(leaf.dtype) if _is_count(leaf) else leaf, opt_state)

    def make(problem: Problem, seen: Seen) -> Reference:
        return Reference(problem, seen.split, prepare=prepare)

    return Fault(causes.SCHEDULE_COUNTS_MICROBATCHES, make, ("gradient", "params"))


def _is_count(leaf: Any) -> bool:
    return jnp.ndim(leaf) == 0 and jnp.issubdtype(jnp.result_type(leaf), jnp.integer)


_UPDATE_FAULTS = (
    # The right update of rows taken in groups: what a row gets depends on which others are there.
    _fault(causes.ROWS_INTERACT, combine),
    _fault(causes.MASK_CHANGES, combine),
    _scaled(causes.GRADIENT_TIMES_K, power=1),
    _scaled(causes.GRADIENT_TIMES_K2, power=2),
    _scaled(causes.GRADIENT_OVER_K, power=-1),
    _fault(causes.CLIP_BEFORE_MEAN, _clip_first),
    _fault(causes.MEAN_OF_MEANS, _mean_of_means),
    Fault(causes.PADDING_COUNTED, _all_rows_valid),
    _fault(causes.NEVER_REDUCED, _first_device),
    Fault(causes.SAME_MASK, lambda problem, seen: Reference(problem, _by_device(seen), own_keys=True)),
    *(_counting(factor, last=last) for factor in (2, 4, 8) for last in (True, False)),
)

_METRIC_FAULTS = (
    _fault(causes.MEAN_OF_MEANS, _mean_of_metrics)._replace(kinds=("metrics",)),
    Fault(causes.PADDING_COUNTED, _all_rows_valid, ("metrics",)),
)

_AVERAGED = _fault(causes.VARIANCE_AVERAGED, averaged)._replace(kinds=("model_state",))
