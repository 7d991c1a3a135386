"""Everything that can be said of a run before its first step, in the order in which it would go wrong.

Owns: the order: batch, shapes, keys, memory, drift; what is left out once something has failed.
Not here: the user's source (`doctor.source`).
Invariant: a check that could not run is listed with the reason; nothing is trained and no parameter allocated.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import jax

from paceline.base.errors import PacelineError
from paceline.base.units import format_count
from paceline.check.dataflow import Draw
from paceline.check.keys import KeyFinding, draws, key_findings
from paceline.check.replication import check_step
from paceline.data.batch import HostBatch, valid_rows
from paceline.data.example import Example, read_example
from paceline.data.share import whole_share
from paceline.doctor.batch import batch_findings
from paceline.doctor.finding import Finding, error_finding, not_run
from paceline.doctor.memory import memory_findings
from paceline.doctor.shapes import batch_shape_findings, state_findings
from paceline.doctor.subject import Program, Subject, abstract_program
from paceline.engine.usercode import user_code, with_data_axis
from paceline.train.batching import DataOptions, Reading, Start, plan_run, refuse_padding

_CHECKS = ("batch", "shapes", "keys", "memory", "drift")
_PLACE = re.compile(r"look at (?P<file>.+):(?P<line>\d+) in ")


def preflight(subject: Subject) -> list[Finding]:
    """The findings of all checks on a run, in order. Compiles one step.

    Raises: DeviceError, SchemeError, TaskError: no trainer can be made of the subject at all.
    """
    assert subject.trainer, "made first, so that its errors are raised"
    try:
        example = read_example(subject.data)
    except PacelineError as error:
        return [_located("batch", error), *_left_out("shapes", "the data cannot be read")]
    found, rows = batch_findings(subject, example)
    shapes = batch_shape_findings(subject, example, rows=rows)
    found += shapes
    if rows is None:
        return [*found, *_left_out("keys", "no step can be made of this batch")]
    if any(finding.level == "error" for finding in shapes):
        return [*found, *_left_out("keys", "no step can be made of these shapes")]
    try:
        program = abstract_program(subject, example, rows=rows)
        found += state_findings(subject, program)
        _refuse_padding(subject, example, program)
        keys = _keys(subject, _loss_draws(program))
    except PacelineError as error:
        return [*found, _located("shapes", error), *_left_out("keys", "no step can be made of this task")]
    try:
        memory = memory_findings(subject, program)
    except PacelineError as error:
        return [*found, _located("shapes", error), *keys, *_left_out("memory", "no step can be made of this task")]
    return [*found, *keys, *memory, *_drift(subject, program)]


def _refuse_padding(subject: Subject, example: Example, program: Program) -> None:
    """Raise BatchSizeError for padding that the task cannot leave out, as training would."""
    maskable = functools.partial(program.step.is_maskable, program.state, program.batch)
    if example.source_rows is None:
        valid = valid_rows(example.rows, program.valid.size)
        host = HostBatch(example.structure, valid, rows=example.rows, epoch=0, position=0, indices=None)
        refuse_padding(host, program.state.model_state, maskable=maskable)
        return
    options = DataOptions(subject.batch, steps=1, remainder=subject.remainder)
    devices, microbatches = subject.num_devices, subject.parallel.accumulation
    plan = plan_run(subject.data, options, reading=Reading(microbatches, whole_share(devices)), start=Start(0))
    plan.refuse_padding(program.state.model_state, maskable=maskable)


def _left_out(first: str, why: str) -> list[Finding]:
    return [not_run(check, why) for check in _CHECKS[_CHECKS.index(first) :]]


def _located(check: str, error: PacelineError) -> Finding:
    """An error as a finding, with the user's line where the error points at one."""
    finding = error_finding(check, error)
    place = _PLACE.search(error.fix)
    if place is None:
        return finding
    return Finding(check, "error", finding.what, finding.fix, place["file"], int(place["line"]))


def _loss_draws(program: Program) -> list[Draw]:
    """Every draw of random numbers in the loss, as one device would run it on the whole batch."""
    params, model_state, batch = program.one_device
    key = jax.eval_shape(lambda: jax.random.key(0))
    arguments: dict[str, Any] = {"params": params, "model_state": model_state, "batch": batch, "rng": key}
    task = program.step.spec.task
    with user_code(f"the loss of task {task.name!r}"):
        loss = with_data_axis(task, *arguments.values(), fields=("loss",)).loss
        jaxpr = jax.make_jaxpr(loss)(*arguments.values())
    labels = [frozenset({name}) for name, argument in arguments.items() for _ in jax.tree.leaves(argument)]
    return draws(jaxpr, labels)


def _keys(subject: Subject, found: list[Draw]) -> list[Finding]:
    faults = [_key_finding(fault) for fault in key_findings(found)]
    if faults:
        return faults
    own = sum(not draw.backward for draw in found)
    if not own:
        return [Finding("keys", "ok", "the loss draws no random numbers")]
    stream = {
        "global": "those of one device, for any number of devices",
        "per_device": "other ones on every device",
        "shared": "the same on every device, as asked for",
    }[subject.parallel.dropout]
    return [Finding("keys", "ok", f"{format_count(own, 'draw')} a step from keys of their own: {stream}")]


def _key_finding(fault: KeyFinding) -> Finding:
    places = [where.rpartition(":") for where in fault.where]
    also = f" ({', '.join(fault.where)})" if len(fault.where) > 1 else ""
    file, line = (places[0][0], int(places[0][2])) if places else (None, None)
    return Finding("keys", "warning", fault.what + also, fault.fix, file, line)


def _drift(subject: Subject, program: Program) -> list[Finding]:
    try:
        check_step(program.step, program.state, batch=program.batch, valid=program.valid)
    except PacelineError as error:
        return [_located("drift", error)]
    if subject.num_devices == 1:
        return [Finding("drift", "ok", "one device: there is no other to differ from")]
    if subject.parallel.scheme == "global_view":
        return [Finding("drift", "ok", "global_view: the program sees all devices as one, so none can differ")]
    return [Finding("drift", "ok", f"after a step the {subject.num_devices} devices hold the same state")]
