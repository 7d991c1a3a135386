"""Does the batch split, what does each device see, and what does that mean for the learning rate?

Owns: the first check of the doctor.
Not here: the rules themselves (`data.batch`).
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from paceline.base.errors import BatchSizeError, PacelineError
from paceline.base.units import format_count, format_percent
from paceline.data.batch import BatchPlan, check_batch, plan_batches
from paceline.data.tree import count_rows, label
from paceline.doctor.finding import Finding, error_finding
from paceline.doctor.subject import Example, Subject
from paceline.engine.update import Schedule

_MANY_DROPPED = 0.1
_SAMPLES = 4096


def batch_findings(subject: Subject, example: Example) -> tuple[list[Finding], int | None]:
    """The findings, and the rows of a batch as the step sees it; None if there can be no step."""
    devices, microbatches = subject.num_devices, subject.parallel.accumulation
    try:
        if example.source_rows is None:
            rows, padded = _ready_rows(subject, example)
            return [_shares(subject, rows, padded), _rate(subject, rows, subject.steps)], padded
        plan = plan_batches(
            example.source_rows, subject.batch, devices=devices, microbatches=microbatches, remainder=subject.remainder
        )
    except PacelineError as error:
        return [_refused(error, subject, example)], None
    steps = subject.steps if subject.steps is not None else subject.epochs * plan.steps_per_epoch
    return [_shares(subject, plan.batch, plan.padded), _epoch(plan), _rate(subject, plan.batch, steps)], plan.padded


def _ready_rows(subject: Subject, example: Example) -> tuple[int, int]:
    """Rows of the first ready batch, as given and as the step sees them."""
    devices, microbatches = subject.num_devices, subject.parallel.accumulation
    if subject.remainder != "pad":
        rows = check_batch(example.structure, devices=devices, microbatches=microbatches)
        return rows, rows
    unit = devices * microbatches
    rows = count_rows(example.structure, noun="batch")
    return rows, math.ceil(rows / unit) * unit


def _refused(error: PacelineError, subject: Subject, example: Example) -> Finding:
    """The error, with the leaf that would be cut: of rows that are read one by one it names none.

    The size of ready batches is set where they are made: --batch does not change it.
    """
    finding = error_finding("batch", error)
    if example.source_rows is None and isinstance(error, BatchSizeError):
        unit = subject.num_devices * subject.parallel.accumulation
        lower, upper = example.rows // unit * unit, math.ceil(example.rows / unit) * unit
        sizes = f"{lower} or {upper}" if lower else f"{upper}"
        return dataclasses.replace(finding, fix=f"give batches of {sizes} rows, or use --remainder pad")
    if example.source_rows is None or not example.leaves:
        return finding
    name, shape, _ = example.leaves[0]
    leaf = f"; {label(name, 'batch')} would be {[subject.batch, *shape[1:]]}"
    return dataclasses.replace(finding, what=finding.what + leaf)


def _shares(subject: Subject, batch: int, padded: int) -> Finding:
    devices, count = subject.num_devices, subject.parallel.accumulation
    share = padded // devices
    text = f"{format_count(batch, 'row')}{f', padded to {padded:,}' if padded != batch else ''} = "
    text += f"{format_count(devices, 'device')} x {format_count(share, 'row')}"
    text += f", in {count} microbatches of {format_count(share // count, 'row')}" if count > 1 else ""
    return Finding("batch", "ok", text)


def _epoch(plan: BatchPlan) -> Finding:
    """Updates an epoch, and rows that are left out of it."""
    text = f"{format_count(plan.rows, 'row')}: {format_count(plan.steps_per_epoch, 'update')} an epoch"
    if plan.padding_per_epoch:
        text += f", {format_count(plan.padding_per_epoch, 'padding row')} of zero weight"
    if not plan.dropped_per_epoch:
        return Finding("batch", "ok", text)
    share = plan.dropped_per_epoch / plan.rows
    text += f", {format_count(plan.dropped_per_epoch, 'row')} dropped ({format_percent(share)})"
    if share < _MANY_DROPPED:
        return Finding("batch", "ok", text)
    return Finding("batch", "warning", text, "use a smaller --batch, or --remainder pad")


def _rate(subject: Subject, batch: int, steps: int | None) -> Finding:
    """The learning rate as it acts on the global batch, and what that is for the rows of one device."""
    devices = subject.num_devices
    share = round(batch / devices, 1) if batch % devices else batch // devices
    of_one = f"for the {format_count(share, 'row')} of one device"
    if subject.schedule is None:
        text = "learning rate: unknown, since the job has no schedule="
        scaled = f"; by linear scaling one tuned {of_one} is to be {devices} times as large" if devices > 1 else ""
        return Finding("batch", "ok", text + scaled)
    rates = _rates(subject.schedule, steps or 1)
    peak = int(np.argmax(rates))
    text = f"learning rate {rates[0]:.4g} at the first update"
    text += f", {rates[peak]:.4g} at its peak" if rates[peak] > rates[0] else ""
    text += f", for {format_count(batch, 'row')}"
    text += f"; by linear scaling that is {rates[peak] / devices:.4g} {of_one}" if devices > 1 else ""
    if not np.all(np.isfinite(rates)):
        fix = "check the schedule, for example its number of steps"
        return Finding("batch", "error", f"{text}; it is not finite at every update", fix)
    return Finding("batch", "ok", text)


def _rates(schedule: Schedule, steps: int) -> np.ndarray:
    """The rate at so many updates of the run, the first included; all of them if the run is short."""
    at = np.unique(np.linspace(0, steps - 1, min(steps, _SAMPLES)).astype(np.int32))
    try:
        return np.asarray(jax.vmap(lambda update: jnp.asarray(schedule(update), jnp.float32))(at))
    except Exception:  # a schedule in plain Python, with an if in it, is called for a few updates instead
        return np.array([float(schedule(int(update))) for update in at[:: max(1, len(at) // 64)]], np.float32)
