"""The comparison as one JSON document, from which text, picture, HTML file and page are drawn.

Owns: the shape of the document, which is the same for `/api/compare` and ``paceline compare --json``.
Not here: reading the subjects (`subjects`), which numbers are compared (`quantities`), what is called best (`judge`).
Invariant: a number that is not known is null with the reason in ``why``; nothing is called best across a difference
that decides it, and every such difference stands in ``differences`` in words.

NaN and infinities are the strings "nan", "inf", "-inf", as everywhere. ``subject`` and the places in lists of cells
are indices into ``subjects``. Sentences are English; beside each stands the same as Words, for a page in another
language: ``{"key": str, "values": {name: value}, "text": str}``, where a value is a number, a text, Words, or a list of
these. An Interval is ``{"value": x, "low": x | null, "high": x | null}``::

    {"title": "linear: 2 runs and 1 plan",
     "subjects": [{"label": "a",                 # unique among the subjects: the end of the path, or the id of a run
                   "kind": "run" | "scale" | "plan" | "verify",
                   "path": "/data/runs/a",       # whole
                   "task": str | null,
                   "state": "finished" | "stopped" | "failed" | "unfinished" | null,  # of a run
                   "settings": {"scheme": str, "placement": str, "precision": str, "accumulation": int,
                                "devices": int, "batch": int, "platform": str},       # each may be null
                   "platform_words": Words | null,
                   "notes": [str],               # conditions of its measurement, what could not be read
                   "note_words": [Words]}],
     "differences": [{"what": "task" | "batch" | "devices" | "platform" | "precision" | ...,
                      "serious": bool,           # whether it keeps something from being called best
                      "text": "the batch differs: 256 rows (runs/a), 512 rows (runs/b)", "words": Words}],
     "rows": [{"key": "samples_per_s", "title": "throughput", "title_words": Words, "unit": "samples/s",
               "group": "speed" | "memory" | "network" | "learning" | "fidelity",
               "description": str, "description_words": Words, "better": "higher" | "lower" | "none",
               "cells": [{"value": x | null, "low": x | null, "high": x | null,       # the interval, if there is one
                          "text": "12,345 samples/s", "text_words": Words | null,    # null for a finite number
                          "interval_text": "12,301 to 12,389" | "", "interval_words": Words | null,
                          "basis": "measured" | "predicted" | "compiler" | "proved" | null,
                          "detail": str,         # how it was found: "median of 9 repeats", "at step 400"
                          "detail_words": Words | null,
                          "why": str | null,     # why there is no value
                          "why_words": Words | null,
                          "best": bool}],        # one cell a subject
               "verdict": str,                   # "runs/a is best", why none is, or ""
               "verdict_words": Words | null}],
     "unknown": [{"key", "title", "title_words", # rows that no subject has a value for
                  "why": str, "why_words": [Words]}],
     "predictions": [{"key": "samples_per_s", "title", "title_words", "predicted": subject, "measured": subject,
                      "predicted_text", "measured_text",
                      "predicted_words": Words | null, "measured_words": Words | null,  # null for a finite number
                      "difference_percent": x,   # 100 (predicted/measured - 1)
                      "difference_points": x | null,    # percent points, of a share: 100 (predicted - measured)
                      "within": bool | null,     # whether the two intervals overlap; null without intervals
                      "conditions": ["another kind of device"],       # what else differs between the two
                      "condition_words": [Words],
                      "text": "plan.json says 4.2 % more than runs/a", "words": Words}],
     "not_predicted": [str],                     # why a plan has nothing to say of a measurement
     "not_predicted_words": [Words],
     "scaling": [{"subject": i, "label": str, "mode": "weak" | "strong", "basis": "measured" | "predicted",
                  "points": [{"devices": K, "batch": rows, "samples_per_s": Interval,
                              "ideal_samples_per_s": x,             # K S_1
                              "efficiency": Interval | null,        # a share of 1
                              "not_claimed": str | null,            # why there is no efficiency
                              "not_claimed_words": Words | null}]}],
     "waterfalls": [{"subject": i, "label": str, "mode": "weak" | "strong", "basis": "measured" | "predicted",
                     "devices": K, "efficiency_percent": x,
                     "terms": [{"name": "communication", "title": "communication that is not hidden",
                                "title_words": Words,
                                "percent": Interval}]}],   # percent points lost; below 0: won. 100 - sum = efficiency
     "curves": [{"key": "train/loss", "title": "training loss", "unit": "", "better": "lower",
                 "lines": [{"subject": i, "label": str, "step": [..], "value": [..]}]}],     # downsampled
     "fidelity": [{"subject": i, "label": str,
                   "verdict": "equal" | "differs"                         # of programs: from what one device does
                              | "replicas_equal" | "replicas_differ"      # of audits: from each other
                              | "unknown",
                   "text": "24 of 24 programs compute what one device would", "words": Words,
                   "rows": [{"case", "devices", "precision", "deviation": x | null, "tolerance": x,
                             "verdict": "equal" | "differs" | "drifts"}]}]}   # of `paceline verify`, worst first
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.base.units import format_count
from paceline.dashboard.compare.between_runs import with_efficiency
from paceline.dashboard.compare.judge import Contender, differences, judge
from paceline.dashboard.compare.labels import labels_of
from paceline.dashboard.compare.predictions import predictions
from paceline.dashboard.compare.quantities import DECLARED, EVALUATION, Quantity, evaluation_quantities
from paceline.dashboard.compare.subject import Interval, Number, Scaling, Subject, unknown
from paceline.dashboard.compare.told import told
from paceline.dashboard.compare.words import say
from paceline.dashboard.words import as_dict
from paceline.telemetry.document import plain
from paceline.telemetry.metrics import TRAIN_LOSS, describe


def compare_document(subjects: Sequence[Subject]) -> dict[str, Any]:
    """The comparison of one subject or more, JSON-ready."""
    contenders = _contenders(subjects)
    rows = [_row(quantity, contenders) for quantity in _quantities(contenders)]
    known = [row for row in rows if any(cell["value"] is not None for cell in row["cells"])]
    found, missing = predictions(contenders)
    content = {
        "title": _title(subjects),
        "subjects": [_subject(one) for one in contenders],
        "differences": [
            {"what": one.what, "serious": one.serious, "text": one.words.text, "words": one.words.as_dict()}
            for one in differences(contenders)
        ],
        "rows": known,
        "unknown": [_unknown(row) for row in rows if row not in known],
        "predictions": found,
        "not_predicted": [one.text for one in missing],
        "not_predicted_words": [one.as_dict() for one in missing],
        "scaling": [one for place, each in enumerate(contenders) for one in _scalings(place, each)],
        "waterfalls": [one for place, each in enumerate(contenders) for one in _waterfalls(place, each)],
        "curves": _curves(contenders),
        "fidelity": [_fidelity(place, each) for place, each in enumerate(contenders)],
    }
    return plain(content)


def _contenders(subjects: Sequence[Subject]) -> list[Contender]:
    """Each with the case that it is about; of a scaling, which is about all of them, the one most like the others."""
    labels = labels_of(subjects)
    return with_efficiency(
        [
            Contender(label, one, one.case_for(_devices_of(one, subjects) if one.kind == "scale" else None))
            for label, one in zip(labels, subjects, strict=True)
        ]
    )


def _devices_of(scaling: Subject, subjects: Sequence[Subject]) -> int | None:
    """The K at which it is shown: that of the runs of its task, else of the plans, else one that all have."""
    alike = [one for one in subjects if one.task == scaling.task]
    for kind in ("run", "plan"):
        asked = {one.case_for(None).setting.devices for one in alike if one.kind == kind}
        if len(asked) == 1 and asked <= _all_devices(scaling):
            return asked.pop()
    shared = [_all_devices(one) for one in alike if len(one.cases) > 1]
    return max((set.intersection(*shared) if shared else set()) - {None}, default=None)


def _all_devices(subject: Subject) -> set[int | None]:
    return {case.setting.devices for case in subject.cases}


def _title(subjects: Sequence[Subject]) -> str:
    kinds = [one.kind for one in subjects]
    nouns = {"run": "run", "scale": "scaling", "plan": "plan", "verify": "verification"}
    counted = [format_count(kinds.count(kind), nouns[kind]) for kind in dict.fromkeys(kinds)]
    words = counted[0] if len(counted) == 1 else f"{', '.join(counted[:-1])} and {counted[-1]}"
    tasks = list(dict.fromkeys(one.task for one in subjects if one.task))
    return f"{', '.join(tasks)}: {words}" if tasks else words


def _subject(contender: Contender) -> dict[str, Any]:
    one, setting = contender.subject, contender.case.setting
    return {
        "label": contender.label, "kind": one.kind, "path": os.path.abspath(os.path.expanduser(one.path)),
        "task": one.task, "state": one.state,
        "settings": {
            "scheme": setting.scheme, "placement": setting.placement, "precision": setting.precision,
            "accumulation": setting.accumulation, "devices": setting.devices, "batch": setting.batch,
            "platform": setting.platform,
        },
        "platform_words": None if setting.platform is None else told(setting.platform).as_dict(),
        "notes": [note.text for note in one.notes], "note_words": [note.as_dict() for note in one.notes],
    }  # fmt: skip


def _quantities(contenders: Sequence[Contender]) -> list[Quantity]:
    """The declared ones, and those of every evaluation metric that a run has."""
    found = {key.rpartition("/")[0] for one in contenders for key in one.case.numbers if key.startswith(EVALUATION)}
    evaluations = [quantity for key in sorted(found) for quantity in evaluation_quantities(key)]
    last = [quantity for quantity in DECLARED if quantity.group == "fidelity"]
    return [*(quantity for quantity in DECLARED if quantity not in last), *evaluations, *last]


def _row(quantity: Quantity, contenders: Sequence[Contender]) -> dict[str, Any]:
    numbers = [
        one.case.numbers.get(quantity.key) or unknown(say(f"compare.why.{one.subject.kind}_no_evaluation"))
        for one in contenders
    ]
    verdict = judge(quantity, numbers, contenders=contenders)
    return {
        "key": quantity.key, "title": quantity.title, "title_words": quantity.title_words.as_dict(),
        "unit": quantity.unit, "group": quantity.group,
        "description": quantity.description, "description_words": quantity.description_words.as_dict(),
        "better": quantity.better,
        "cells": [_cell(quantity, number, best=place in verdict.best) for place, number in enumerate(numbers)],
        "verdict": "" if verdict.words is None else verdict.words.text, "verdict_words": as_dict(verdict.words),
    }  # fmt: skip


def _cell(quantity: Quantity, number: Number, *, best: bool) -> dict[str, Any]:
    interval = quantity.interval(number.low, number.high)
    return {
        "value": number.value, "low": number.low, "high": number.high,
        "text": "" if number.value is None else quantity.text(number.value),
        "text_words": None if number.value is None else as_dict(quantity.words(number.value)),
        "interval_text": "" if interval is None else interval.text, "interval_words": as_dict(interval),
        "basis": number.basis,
        "detail": "" if number.detail is None else number.detail.text, "detail_words": as_dict(number.detail),
        "why": None if number.why is None else number.why.text, "why_words": as_dict(number.why), "best": best,
    }  # fmt: skip


def _unknown(row: Mapping[str, Any]) -> dict[str, Any]:
    reasons = {cell["why"]: cell["why_words"] for cell in row["cells"]}
    return {"key": row["key"], "title": row["title"], "title_words": row["title_words"], "why": "; ".join(reasons),
            "why_words": list(reasons.values())}  # fmt: skip


def _interval(interval: Interval) -> dict[str, Any]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _scalings(place: int, contender: Contender) -> list[dict[str, Any]]:
    return [
        {"subject": place, "label": contender.label, "mode": one.mode, "basis": one.basis, "points": _points(one)}
        for one in contender.subject.scalings
    ]


def _points(scaling: Scaling) -> list[dict[str, Any]]:
    single = scaling.points[0].samples_per_s.value / scaling.points[0].devices
    return [
        {
            "devices": point.devices, "batch": point.batch, "samples_per_s": _interval(point.samples_per_s),
            "ideal_samples_per_s": point.devices * single,
            "efficiency": None if point.efficiency is None else _interval(point.efficiency),
            "not_claimed": None if point.not_claimed is None else point.not_claimed.text,
            "not_claimed_words": as_dict(point.not_claimed),
        }
        for point in scaling.points
    ]  # fmt: skip


def _waterfalls(place: int, contender: Contender) -> list[dict[str, Any]]:
    return [
        {
            "subject": place, "label": contender.label, "mode": one.mode, "basis": one.basis,
            "devices": one.waterfall.devices, "efficiency_percent": one.waterfall.efficiency_percent,
            "terms": [
                {"name": term.name, "title": term.title.text, "title_words": term.title.as_dict(),
                 "percent": _interval(term.percent)}
                for term in one.waterfall.terms
            ],
        }
        for one in contender.subject.scalings
        if one.waterfall is not None
    ]  # fmt: skip


def _curves(contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    """Training loss first, then evaluation metrics, each with the runs that have it."""
    keys = sorted(
        {key for one in contenders for key in one.subject.curves}, key=lambda key: (key != TRAIN_LOSS.key, key)
    )
    found = []
    for key in keys:
        metric = describe(key)
        lines = [
            {"subject": place, "label": one.label, "step": list(curve.steps), "value": list(curve.values)}
            for place, one in enumerate(contenders)
            if (curve := one.subject.curves.get(key)) is not None
        ]
        title = "training loss" if key == TRAIN_LOSS.key else f"evaluation {metric.name}"
        found.append({"key": key, "title": title, "unit": metric.unit, "better": metric.better, "lines": lines})
    return found


def _fidelity(place: int, contender: Contender) -> dict[str, Any]:
    found = contender.subject.fidelity
    equal, unequal = ("equal", "differs") if found.of == "programs" else ("replicas_equal", "replicas_differ")
    verdict = "unknown" if found.differing is None else unequal if found.differing else equal
    return {"subject": place, "label": contender.label, "verdict": verdict,
            "text": found.words.text, "words": found.words.as_dict(), "rows": list(found.rows)}  # fmt: skip
