"""All about one run but its curves.

Owns: the answer of ``/api/run``.
"""

from __future__ import annotations

import time
from typing import Any

from paceline.dashboard.follow.derived import DERIVED
from paceline.dashboard.follow.run import Run
from paceline.dashboard.views.plain import number
from paceline.dashboard.views.series import Source, keys_of, source_of, whole
from paceline.dashboard.views.summary import summary
from paceline.telemetry.metrics import Metric, describe


def detail(run: Run, *, now_s: int | float | None = None) -> dict[str, Any]:
    """The documents of the run and its metrics, see docs/watch-api.md."""
    with run.lock:
        found = [(key, source) for key in keys_of(run) if (source := source_of(run, key)) is not None]
        return {
            "summary": summary(run, now_s=time.time() if now_s is None else now_s),
            "run": run.document,
            "program": run.program,
            "report": run.report,
            "metrics": [_metric(run, key, source) for key, source in found],
            "cursor": run.cursor,
        }


def last_numbers(run: Run) -> list[dict[str, Any]]:
    """The newest number of each metric; of a run that is not read, those that its newest step tells."""
    with run.lock:
        found = detail(run)["metrics"]
        step = run.peeked_step(run.main or 0)
    known = {one["key"] for one in found}
    newest = {} if step is None else {key: value for key, value in step.values.items() if key not in known}
    return found + [
        {"key": key, "process": None, "description": metric_of(key).description, "last": number(value)}
        for key, value in newest.items()
    ]


def metric_of(name: str) -> Metric:
    """What a key means, without the suffix of a process."""
    return DERIVED.get(name) or describe(name)


def _metric(run: Run, key: str, source: Source) -> dict[str, Any]:
    metric = metric_of(source.name)
    columns = run.table(source.process, source.table)
    last = columns.last(source.key)
    if source.key != source.name and last is not None:
        curve = whole(run, key)
        last = None if curve is None or not len(curve.value) else float(curve.value[-1])
    return {
        "key": key,
        "process": None if source.name == key else source.process,
        "unit": metric.unit,
        "description": metric.description,
        "better": metric.better,
        "count": columns.count(source.key),
        "last": number(last),
    }
