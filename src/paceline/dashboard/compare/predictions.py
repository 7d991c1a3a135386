"""Predicted against measured: each plan beside each run or scaling of the same task.

Owns: the pairs, the difference in percent or, of shares, in points, what stands in the way of comparing them.
Not here: the judgement of what is best (`judge`), which never sets a prediction against a measurement.
Invariant: a pair is about the same number of devices, and the rows that each has on a device agree; else there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from paceline.base.units import whole_digits
from paceline.dashboard.compare import quantities
from paceline.dashboard.compare.judge import Contender, differs, overlap
from paceline.dashboard.compare.quantities import Quantity
from paceline.dashboard.compare.subject import Case, Number
from paceline.dashboard.compare.words import counted, say
from paceline.dashboard.words import Words, as_dict

COMPARED = (
    quantities.SAMPLES_PER_S, quantities.EFFICIENCY, quantities.STEP_P50_S, quantities.MEMORY_COMPILED,
    quantities.SENT_BYTES, quantities.COLLECTIVES, quantities.BLOCKING_COLLECTIVES,
)  # fmt: skip
_CONDITIONS = ("platform", "precision", "scheme", "placement", "accumulation")


def predictions(contenders: Sequence[Contender]) -> tuple[list[dict[str, Any]], list[Words]]:
    """Every number that a plan and a measurement of its task both have; why a plan says nothing of a measurement."""
    found: list[dict[str, Any]] = []
    missing: list[Words] = []
    for plan_place, plan in enumerate(contenders):
        for place, other in enumerate(contenders):
            if plan.subject.kind != "plan" or other.subject.kind not in ("run", "scale"):
                continue
            if plan.subject.task != other.subject.task:
                missing.append(say("compare.prediction.other_task", plan=plan.label, measured=other.label))
                continue
            case = plan.subject.case_for(other.case.setting.devices)
            if _shape(case) == _shape(other.case):
                pair = (Contender(plan.label, plan.subject, case), other)
                found += _pair(pair, places=(plan_place, place))
            else:
                missing.append(
                    say("compare.prediction.other_shape", plan=plan.label, predicted=_words_of(case),
                        measured=other.label, found=_words_of(other.case))
                )  # fmt: skip
    return found, missing


def _shape(case: Case) -> tuple[int | None, int | None]:
    return case.setting.devices, case.setting.batch


def _words_of(case: Case) -> Words:
    devices, batch = _shape(case)
    known = [counted(count, noun) for count, noun in ((batch, "row"), (devices, "device")) if count is not None]
    if len(known) == 2:
        return say("compare.prediction.rows_on", rows=known[0], devices=known[1])
    return known[0] if known else say("compare.nothing_told")


def _pair(pair: tuple[Contender, Contender], *, places: tuple[int, int]) -> list[dict[str, Any]]:
    plan, measured = pair
    conditions = [say(f"compare.condition.{what}") for what in _CONDITIONS if differs(pair, what)]
    found = []
    for quantity in COMPARED:
        ours, theirs = plan.case.numbers[quantity.key], measured.case.numbers[quantity.key]
        if ours.value is None or theirs.value is None or (quantity is quantities.EFFICIENCY and ours.low is None):
            continue
        found.append(_prediction(quantity, ours, theirs, conditions, names=(plan.label, measured.label), places=places))
    return found


def _prediction(
    quantity: Quantity, ours: Number, theirs: Number, conditions: Sequence[Words], *, names: tuple[str, str],
    places: tuple[int, int],
) -> dict[str, Any]:  # fmt: skip
    assert ours.value is not None and theirs.value is not None, "chosen so"
    percent = 100 * (ours.value / theirs.value - 1) if theirs.value else 0.0 if not ours.value else math.inf
    points = 100 * (ours.value - theirs.value) if quantity.form == "share" else None
    words = _words(percent, points, plan=names[0], measured=names[1])
    return {
        "key": quantity.key, "title": quantity.title, "title_words": quantity.title_words.as_dict(),
        "predicted": places[0], "measured": places[1],
        "predicted_text": quantity.text(ours.value), "measured_text": quantity.text(theirs.value),
        "predicted_words": as_dict(quantity.words(ours.value)), "measured_words": as_dict(quantity.words(theirs.value)),
        "difference_percent": percent, "difference_points": points, "within": overlap(ours, theirs),
        "conditions": [one.text for one in conditions], "condition_words": [one.as_dict() for one in conditions],
        "text": words.text, "words": words.as_dict(),
    }  # fmt: skip


def _words(percent: int | float, points: int | float | None, *, plan: str, measured: str) -> Words:
    """Of a share the points: a percentage of percentages would be read as these."""
    shown = percent if points is None else points
    if round(shown, 1) == 0:
        return say("compare.prediction.same", plan=plan, measured=measured)
    if not math.isfinite(percent):
        return say("compare.prediction.something", plan=plan, measured=measured)
    way = "more" if shown > 0 else "less"
    amount = f"{abs(shown):,.1f}" if abs(shown) < 1e6 else whole_digits(abs(shown))
    if points is not None:
        return say(f"compare.prediction.{way}_points", plan=plan, points=amount, measured=measured)
    return say(f"compare.prediction.{way}", plan=plan, percent=amount, measured=measured)
