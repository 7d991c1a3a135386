"""One line of the list of runs.

Owns: `RunSummary` of the API.
Invariant: costs some tens of microseconds, also for a run of a million steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.dashboard.follow.derived import WINDOW_STEPS
from paceline.dashboard.follow.documents import number_in, text_in, whole_in
from paceline.dashboard.follow.health import ENDED, State
from paceline.dashboard.follow.run import Run
from paceline.dashboard.follow.words import say
from paceline.dashboard.views.plain import mean_of, number
from paceline.telemetry.events import Event
from paceline.telemetry.metrics import SPEED_SAMPLES_PER_S, SPEED_STEP_S, TRAIN_LOSS, TRAIN_ROWS

RECENT_STEPS = WINDOW_STEPS


def summary(run: Run, *, now_s: int | float) -> dict[str, Any]:
    """The run in short, see docs/watch-api.md."""
    with run.lock:
        document, main = run.document, run.main or 0
        last = run.last_event(main)
        newest = run.peeked_step(main) or last
        first = run.feed(main)
        state = run.state(now_s)
        problems = [say("problem.silent"), *run.problems] if state == "silent" else run.problems
        return {
            "id": run.id,
            "name": run.name,
            "task": text_in(document, "task"),
            "state": state,
            "stopped": _stopped(run, last),
            "step": None if last is None else last.step,
            "steps": whole_in(document, "counts", "steps"),
            "started_s": None if first is None or first.first is None else first.first.time_s,
            "updated_s": run.updated_s(),
            "loss": number(_loss(run, newest)),
            "samples_per_s": number(_samples_per_s(run, newest, state)),
            "devices": whole_in(document, "devices", "count"),
            "platform": text_in(document, "devices", "platform"),
            "processes": whole_in(document, "devices", "processes") or len(run.processes) or None,
            "batch": whole_in(document, "counts", "global_batch"),
            "scheme": text_in(document, "parallel", "scheme"),
            "placement": text_in(document, "parallel", "placement"),
            "precision": text_in(document, "parallel", "precision"),
            "accumulation": number_in(document, "parallel", "accumulation"),
            "divergence": _divergence(run),
            "problems": [words.text for words in problems],
            "problem_words": [words.as_dict() for words in problems],
            "read": {"bytes": run.read_bytes, "of_bytes": run.size_bytes, "state": _reading(run)},
        }


def _samples_per_s(run: Run, newest: Event | None, state: State) -> int | float | None:
    """Of a run that has ended what its report says of all its steps, else that of the last ones."""
    reported = number_in(run.report, "samples_per_s") if state in ENDED else None
    return recent_samples_per_s(run, newest) if reported is None else reported


def _divergence(run: Run) -> dict[str, Any] | None:
    """The last audit that found a difference, and whether a later one found none."""
    feeds = [feed for process in run.processes if (feed := run.feed(process)) is not None]
    found = next((feed.last_divergence for feed in feeds if feed.last_divergence is not None), None)
    if found is None:
        return None
    audit = next(feed.last_audit for feed in feeds if feed.last_audit is not None)
    return {"step": found.step, "text": found.text, "is_last": audit.step <= found.step}


def recent_samples_per_s(
    run: Run, last: Event | None = None, *, before: int | None = None, steps: int = RECENT_STEPS
) -> int | float | None:
    """Rows by seconds of the last steps: not the mean of rates, which slow steps would hardly lower."""
    columns = run.columns(run.main or 0)
    end = len(columns) if before is None else columns.rows_before(before + 1)
    values = columns.rows((SPEED_STEP_S.key, TRAIN_ROWS.key), from_row=max(0, end - steps), to_row=end)[2]
    with np.errstate(over="ignore", invalid="ignore"):
        step_s, rows = values[:, np.isfinite(values).all(axis=0)].sum(axis=1).tolist()
    if step_s > 0:
        return rows / step_s
    rate = mean_of(columns.recent(SPEED_SAMPLES_PER_S.key, steps, before=before).value)
    return rate if rate is not None or last is None else last.values.get(SPEED_SAMPLES_PER_S.key)


def _loss(run: Run, last: Event | None) -> int | float | None:
    """The newest loss; while a long file is still being read, that of its newest event if it is a step."""
    if last is not None and last.kind == "step" and TRAIN_LOSS.key in last.values:
        return last.values[TRAIN_LOSS.key]
    return run.columns(run.main or 0).last(TRAIN_LOSS.key)


def _reading(run: Run) -> str:
    return "whole" if run.caught_up else run.waiting or "reading"


def _stopped(run: Run, last: Event | None) -> str | None:
    if last is not None and last.kind == "end":
        return last.text
    return None
