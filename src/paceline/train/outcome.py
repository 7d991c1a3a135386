"""How a run ended, in words and numbers: the report from what the loop left behind.

Owns: the sentence that says why a run ended, the notices, `report.json`.
Not here: the form of the report (`train.report`).
Invariant: a full disk must not cost the caller the trained state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from paceline.base.errors import PacelineError, RunFolderError
from paceline.base.units import format_count
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.recorder import EventSink
from paceline.train.batching import RunPlan
from paceline.train.loop import Loop, LoopResult
from paceline.train.report import Report
from paceline.train.stragglers import StragglerReport


def words(error: BaseException) -> str:
    """An exception as one line."""
    what = error.what if isinstance(error, PacelineError) else str(error)
    return f"{type(error).__name__}: {what}".removesuffix(": ")


def written(report: Report, folder: RunFolder | None) -> Report:
    """The report, written if there is a folder. What a run that was over already reported is left alone."""
    if folder is None or (report.steps == 0 and report.resumed_at is not None and folder.report_file.exists()):
        return report
    try:
        folder.write_report(report.as_dict())
    except RunFolderError as error:
        return dataclasses.replace(report, notices=(*report.notices, error.what))
    return report


def make_report(
    loop: Loop, plan: RunPlan, *, document: Mapping[str, Any], recorder: EventSink, compile_s: float, total_s: float,
    skipped_before: int, restore_s: float, folder: RunFolder | None, said: tuple[str, ...],
    stragglers: StragglerReport | None,
) -> Report:  # fmt: skip
    """The report of a run that ended, however it did."""
    result = loop.result
    counts = document["counts"]
    speed = result.clock.summary()
    steps = result.step - result.first_step
    stopped = result.stopped
    if stopped is None and result.failure is not None:
        stopped = words(result.failure)
    if stopped is None and plan.num_steps is not None and steps < plan.num_steps:
        stopped = "the data ended"
    return Report(
        task=document["task"],
        scheme=document["parallel"]["scheme"],
        placement=document["placement"]["summary"],
        devices=document["devices"]["count"],
        global_batch=counts["global_batch"],
        per_device_batch=counts["per_device_batch"],
        accumulation=document["parallel"]["accumulation"],
        steps=steps,
        last_step=result.step,
        epochs=plan.epoch_at(result.step),
        rows_seen=result.rows,
        rows_dropped=plan.dropped_rows(result.first_step, result.step),
        skipped_updates=int(result.skipped) - skipped_before,
        compile_s=compile_s,
        total_s=total_s,
        samples_per_s=speed.samples_per_s,
        step_p50_s=speed.step_p50_s,
        step_p95_s=speed.step_p95_s,
        input_wait_share=speed.input_wait_share,
        final=result.values,
        evaluation=result.evaluation,
        audit=loop.audits.report(),
        stopped=stopped,
        notices=(
            *said,
            *_notices(result, plan, recorder),
            *_noise_unknown(loop, document),
            *loop.audits.notices(),
            *loop.checkpoints.notices(),
        ),
        processes=document["devices"]["processes"],
        checkpoints=loop.checkpoints.count,
        checkpoint_s=loop.checkpoints.saved_s,
        resumed_at=document["counts"]["resumed_at"],
        restore_s=restore_s,
        stragglers=stragglers,
        noise_scale=result.noise.estimate,
        run_folder=None if folder is None else str(folder.path),
    )


def _noise_unknown(loop: Loop, document: Mapping[str, Any]) -> list[str]:
    """Why the noise scale is not known, if it was asked for."""
    if not loop.parallel.noise_scale or loop.result.noise.estimate is not None:
        return []
    alone = document["devices"]["count"] == 1
    why = "one device has no other to compare its gradient with" if alone else loop.result.noise.why_unknown
    return [f"the gradient noise scale is unknown: {why}"]


def _notices(result: LoopResult, plan: RunPlan, recorder: EventSink) -> list[str]:
    notices: list[str] = []
    if plan.num_steps == 0:
        notices.append(f"nothing was left to train: the run has made {format_count(result.step, 'step')} already")
    if plan.stream is not None and plan.stream.count.dropped_batches:
        count = plan.stream.count
        notices.append(
            f"{format_count(count.dropped_batches, 'batch')} smaller than the first left out, "
            f"{format_count(count.dropped_rows, 'row')}; remainder='pad' trains on them with the same program"
        )
    if recorder.failure is not None:
        notices.append(f"events were lost: {recorder.failure}")
    loss = result.values.get("train/loss", math.nan)
    if result.values and not math.isfinite(loss) and result.failure is None:
        notices.append("the last loss is not finite")
    return notices
