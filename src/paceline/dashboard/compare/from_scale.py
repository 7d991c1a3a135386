"""A result of `paceline scale` as a subject: one case for each K, with the intervals that it found.

Owns: the part of its JSON that is read, and what a measurement of throughput does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from paceline.dashboard.compare import quantities
from paceline.dashboard.compare.result_file import Config, Devices, Real, damaged, options_of, real, typed
from paceline.dashboard.compare.subject import (
    Case,
    Fidelity,
    Interval,
    Number,
    Point,
    Scaling,
    Setting,
    Subject,
    Term,
    Waterfall,
    unknown,
)
from paceline.dashboard.compare.told import told
from paceline.dashboard.compare.words import say
from paceline.dashboard.words import Words

TERMS = frozenset({"compute", "stragglers", "communication", "input", "host", "rest", "step", "feed"})
"""Those of a waterfall that have words."""


class _Interval(msgspec.Struct):
    value: Real
    low: Real
    high: Real
    coverage: float = 0.0

    def plain(self) -> Interval:
        return Interval(real(self.value), real(self.low), real(self.high))


class _Point(msgspec.Struct):
    devices: Devices
    batch: int
    samples_per_s: _Interval
    step_s: dict[str, _Interval]
    efficiency: _Interval | None = None
    not_claimed: str | None = None
    waterfall_percent: dict[str, _Interval] | None = None


class _Scaling(msgspec.Struct):
    mode: Literal["weak", "strong"]
    points: list[_Point]


class _File(msgspec.Struct):
    task: str
    platform: str
    scalings: list[_Scaling]
    rounds: int = 0
    conditions: list[str] = []
    config: Config = msgspec.field(default_factory=Config)


def scale_subject(content: Mapping[str, Any], path: str) -> Subject:
    """The subject. Raises: SubjectError: the file is damaged or of another version."""
    file = typed(content, _File, path=path, command="scale")
    if not file.scalings or not all(scaling.points for scaling in file.scalings):
        raise damaged(path, command="scale", reason="a scaling without a point")
    ordered = sorted(file.scalings, key=lambda one: one.mode, reverse=True)  # weak first, so that it is the last resort
    return Subject(
        kind="scale",
        path=path,
        task=file.task,
        cases=[_case(point, scaling, file) for scaling in reversed(ordered) for point in scaling.points],
        fidelity=Fidelity("programs", None, say("compare.programs.scale")),
        options=options_of(file.config),
        notes=[told(text) for text in file.conditions],
        scalings=[_scaling(one) for one in ordered],
    )


def _case(point: _Point, scaling: _Scaling, file: _File) -> Case:
    options = file.config.options
    setting = Setting(
        scheme=options.get("scheme"), placement=options.get("placement"), precision=options.get("precision"),
        accumulation=options.get("accumulation"), devices=point.devices, batch=point.batch, platform=file.platform,
    )  # fmt: skip
    how = {"mode": say(f"compare.mode.{scaling.mode}"), "repeats": file.rounds}
    loop = point.step_s.get("fit")
    numbers = {
        quantities.SAMPLES_PER_S.key: _number(point.samples_per_s, how),
        quantities.STEP_P50_S.key: unknown(say("compare.why.scale_no_fit")) if loop is None else _number(loop, how),
        quantities.EFFICIENCY.key: _efficiency(point, how),
    }
    for quantity in quantities.DECLARED:
        numbers.setdefault(quantity.key, unknown(say("compare.why.scale_not_recorded")))
    return Case(setting, numbers)


def _number(interval: _Interval, how: Mapping[str, Any]) -> Number:
    return Number(real(interval.value), real(interval.low), real(interval.high), basis="measured",
                  detail=say("compare.detail.repeats", **how, percent=f"{100 * interval.coverage:.0f}"))  # fmt: skip


def _efficiency(point: _Point, how: Mapping[str, Any]) -> Number:
    if point.efficiency is None:
        return unknown(say("compare.why.not_claimed", reason=_reason(point) or say("compare.why.file_silent_why")))
    if point.devices == 1:
        return Number(1.0, basis="measured", detail=say("compare.detail.single"))
    return _number(point.efficiency, how)


def _reason(point: _Point) -> Words | None:
    return None if point.not_claimed is None else told(point.not_claimed)


def _scaling(scaling: _Scaling) -> Scaling:
    points = [
        Point(
            point.devices, point.batch, point.samples_per_s.plain(),
            None if point.efficiency is None else point.efficiency.plain(), _reason(point),
        )
        for point in scaling.points
    ]  # fmt: skip
    fallen = [point for point in scaling.points if point.waterfall_percent]
    return Scaling(scaling.mode, "measured", points, _waterfall(fallen[-1]) if fallen else None)


def _waterfall(point: _Point) -> Waterfall:
    assert point.waterfall_percent is not None, "chosen so"
    terms = [Term(name, _title(name), term.plain()) for name, term in point.waterfall_percent.items()]
    return Waterfall(point.devices, 100 - sum(term.percent.value for term in terms), terms)


def _title(name: str) -> Words:
    return say(f"compare.term.{name}") if name in TERMS else told(name)
