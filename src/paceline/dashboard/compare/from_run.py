"""A run folder as a subject: its speed with an interval, its losses, memory and traffic, its audits.

Owns: which of a run's numbers are compared, and the reasons where they are missing.
Not here: reading the folder (`track`), its compiled step (`from_program`), the interval (`spread`).
Invariant: throughput and latency are over the timed steps, as the run's own report has them: those with a
``speed/step_s``, which the first of a start and those around an evaluation lack.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from paceline.dashboard.compare import quantities
from paceline.dashboard.compare.from_program import program_numbers
from paceline.dashboard.compare.quantities import EVALUATION, evaluation_quantities
from paceline.dashboard.compare.result_file import Config, options_of, typed
from paceline.dashboard.compare.spread import BLOCKS, block_interval
from paceline.dashboard.compare.subject import Case, Curve, Fidelity, Number, Setting, Subject, unknown
from paceline.dashboard.compare.track import Track
from paceline.dashboard.compare.words import counted, joined, say
from paceline.dashboard.follow.columns import Series
from paceline.dashboard.follow.documents import split_leaves, text_in, whole_in
from paceline.dashboard.words import Words
from paceline.telemetry.metrics import (
    AUDIT_COMPARED_LEAVES,
    AUDIT_DIFFERING_LEAVES,
    EVALUATE_ROWS,
    INPUT_WAIT_S,
    MEMORY_PEAK_BYTES,
    SPEED_STEP_S,
    TRAIN_LOSS,
    TRAIN_ROWS,
    TRAIN_SKIPPED_UPDATES,
    describe,
)
from paceline.telemetry.summary import ratio

_FEW_BLOCKS_P95 = 20
"""Steps of a block below which its 95 % quantile is that of one step."""


def run_subject(track: Track) -> Subject:
    """The subject. What overflows is infinite or not a number, and is told as such."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _subject(track)


def _subject(track: Track) -> Subject:
    run, path = track.run, track.name
    config = typed(run.get("config") or {}, Config, path=path, command="train")
    numbers = {**_speed(track), **_memory(track), **program_numbers(track.program), **_learning(track)}
    fidelity = _fidelity(track)
    numbers[quantities.DIFFERENCES.key] = unknown(say("compare.why.run_proves_nothing"))
    numbers[quantities.UNEQUAL_AUDITS.key] = (
        unknown(fidelity.words)
        if fidelity.differing is None
        else Number(fidelity.differing, basis="measured", detail=fidelity.words)
    )
    return Subject(
        kind="run",
        path=path,
        task=text_in(run, "task"),
        cases=[Case(_setting(track), numbers)],
        fidelity=fidelity,
        options=options_of(config),
        state=track.state,
        notes=track.notes,
        curves=_curves(track),
    )


def _setting(track: Track) -> Setting:
    run = track.run
    return Setting(
        scheme=text_in(run, "parallel", "scheme"), placement=text_in(run, "parallel", "placement"),
        precision=text_in(run, "parallel", "precision"), accumulation=whole_in(run, "parallel", "accumulation"),
        devices=whole_in(run, "devices", "count"), batch=whole_in(run, "counts", "global_batch"),
        platform=text_in(run, "devices", "kind") or text_in(run, "devices", "platform"),
        planned=whole_in(run, "counts", "steps"), made=track.last_step or 0,
    )  # fmt: skip


def _speed(track: Track) -> dict[str, Number]:
    steps = track.together(SPEED_STEP_S.key, TRAIN_ROWS.key, INPUT_WAIT_S.key)  # [R, 3]
    efficiency = {
        quantities.EFFICIENCY.key: unknown(_no_efficiency(track)),
        quantities.TIMED_STEPS.key: Number(len(steps), basis="measured"),
    }
    if not len(steps):
        keys = (quantities.SAMPLES_PER_S, quantities.STEP_P50_S, quantities.STEP_P95_S, quantities.INPUT_WAIT_SHARE)
        return efficiency | {quantity.key: unknown(say("compare.why.no_step")) for quantity in keys}
    return efficiency | {
        quantities.SAMPLES_PER_S.key: _over_blocks(steps, lambda part: _share(part, 1)),
        quantities.STEP_P50_S.key: _over_blocks(steps, lambda part: float(np.quantile(part[:, 0], 0.50))),
        quantities.STEP_P95_S.key: _over_blocks(
            steps, lambda part: float(np.quantile(part[:, 0], 0.95)), least=_FEW_BLOCKS_P95
        ),
        quantities.INPUT_WAIT_SHARE.key: _over_blocks(steps, lambda part: _share(part, 2)),
    }


def _no_efficiency(track: Track) -> Words:
    if whole_in(track.run, "devices", "count") == 1:
        return say("compare.why.one_device")
    return say("compare.why.no_baseline")


def _share(part: np.ndarray, column: int) -> int | float:
    """The sum of a column over that of the times, also where the sums are beyond a float."""
    own, time = part[:, column], part[:, 0]
    if np.isfinite(part).all() and not np.isfinite([own.sum(), time.sum()]).all():
        own, time = own / len(part), time / len(part)
    return ratio(float(own.sum()), float(time.sum()))


def _over_blocks(values: np.ndarray, number: Callable[[np.ndarray], int | float], *, least: int = 2) -> Number:
    """The number over all timed steps, with the interval that its blocks give."""
    value = number(values)
    ends = block_interval(values, number, at=value, least=least)
    steps = counted(len(values), "timed step")
    if ends is None:
        return Number(value, basis="measured", detail=say("compare.detail.few_steps", steps=steps))
    detail = say("compare.detail.steps", steps=steps, interval=_coverage())
    return Number(value, max(0.0, ends[0]), ends[1], basis="measured", detail=detail)


def _coverage() -> Words:
    return say("compare.detail.blocks", blocks=BLOCKS)


def _memory(track: Track) -> dict[str, Number]:
    peak = track.largest(MEMORY_PEAK_BYTES.key)
    on_cpu = text_in(track.run, "devices", "platform") == "cpu"
    measured = (
        unknown(say("compare.why.cpu_memory" if on_cpu else "compare.why.not_recorded"))
        if peak is None
        else Number(peak, basis="measured", detail=say("compare.detail.largest"))
    )
    return {quantities.MEMORY_MEASURED.key: measured}


def _learning(track: Track) -> dict[str, Number]:
    numbers = _training_loss(track)
    steps, skipped = track.last_step, track.last(TRAIN_SKIPPED_UPDATES.key)
    numbers[quantities.STEPS.key] = (
        unknown(say("compare.why.no_step_at_all")) if not steps else Number(steps, basis="measured")
    )
    numbers[quantities.SKIPPED_UPDATES.key] = (
        unknown(say("compare.why.not_recorded")) if skipped is None else Number(skipped, basis="measured")
    )
    for key in _evaluations(track):
        series = track.series(key, table="evaluation")
        for quantity in evaluation_quantities(key):
            is_best = quantity.key.endswith("/best")
            place = _best_place(series.value, quantity.better) if is_best else len(series.value) - 1
            numbers[quantity.key] = _at(series, place)
    return numbers


def _evaluations(track: Track) -> list[str]:
    """Metrics of evaluations; how many rows they had is none."""
    return [key for key in track.evaluations if key.startswith(EVALUATION) and key != EVALUATE_ROWS.key]


def _training_loss(track: Track) -> dict[str, Number]:
    series = track.series(TRAIN_LOSS.key)
    losses = series.value
    if not len(losses):
        missing = unknown(say("compare.why.no_step_at_all"))
        return {quantities.LOSS_LAST.key: missing, quantities.LOSS_BEST.key: missing}
    tail = losses[-max(1, len(losses) // BLOCKS) :]
    mean = _mean(tail)
    ends = block_interval(tail, _mean, at=mean) or (None, None)
    steps = counted(len(tail), "step")
    detail = (
        say("compare.detail.last_steps", steps=steps)
        if ends[0] is None
        else say("compare.detail.last_steps_blocks", steps=steps, interval=_coverage())
    )
    return {
        quantities.LOSS_LAST.key: Number(mean, *ends, basis="measured", detail=detail),
        quantities.LOSS_BEST.key: _at(series, _best_place(losses, "lower")),
    }


def _mean(values: np.ndarray) -> float:
    """Infinite if a value is, not a number if one is none or infinities cancel; a sum beyond a float does not count."""
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(values.mean())
        return mean if math.isfinite(mean) or not np.isfinite(values).all() else float((values / len(values)).sum())


def _at(series: Series, place: int | None) -> Number:
    if place is None:
        return unknown(say("compare.why.no_number"))
    return Number(
        float(series.value[place]),
        basis="measured",
        detail=say("compare.detail.at_step", step=f"{series.step[place]:,}"),
    )


def _best_place(values: np.ndarray, better: str) -> int | None:
    """The first of the best values; None if none is finite."""
    if not np.isfinite(values).any():
        return None
    return int(np.argmax(np.where(np.isfinite(values), values if better == "higher" else -values, -np.inf)))


def _fidelity(track: Track) -> Fidelity:
    """What the audits found: whether replicas are equal, which says nothing of what one device would compute."""
    found = track.series(AUDIT_DIFFERING_LEAVES.key, table="audit").value
    compared = track.series(AUDIT_COMPARED_LEAVES.key, table="audit").value
    audits = counted(len(found), "audit")
    if not len(found):
        one = whole_in(track.run, "devices", "count") == 1
        return Fidelity("audits", None, say("compare.audits.one_device" if one else "compare.audits.none"))
    if len(compared) and not compared.any():
        return Fidelity("audits", None, say("compare.audits.nothing", audits=audits))
    differing = int((found > 0).sum())
    split = split_leaves(track.run)
    said = [
        say("compare.audits.differ", count=differing, audits=audits)
        if differing
        else say("compare.audits.equal", audits=audits),
        *([say("compare.audits.split", count=f"{split:,}")] if split else []),
        *([say("compare.audits.split_untold")] if split is None else []),
        say("compare.audits.no_proof"),
    ]
    return Fidelity("audits", differing, joined(said))


def _curves(track: Track) -> dict[str, Curve]:
    found = {TRAIN_LOSS.key: track.curve(TRAIN_LOSS.key)}
    found |= {
        key: track.curve(key, table="evaluation") for key in _evaluations(track) if describe(key).better != "none"
    }
    return {key: curve for key, curve in found.items() if curve.steps}
