"""Scaling efficiency from two runs: one on one device, one on K.

Owns: which run is another's baseline, E_K and its interval from the two.
Not here: E_K that `paceline scale` measured in turns, which is surer.
Invariant: nothing is claimed on CPU devices: whether simulated ones share cores, no run says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from paceline.dashboard.compare import quantities
from paceline.dashboard.compare.judge import Contender
from paceline.dashboard.compare.subject import Case, Interval, Number, Point, Scaling, unknown
from paceline.dashboard.compare.words import say


def with_efficiency(contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders, where a run on several devices has its E_K if its run on one device is among them."""
    return [_against(one, _baseline(one, contenders)) if one.subject.kind == "run" else one for one in contenders]


def _baseline(one: Contender, contenders: Sequence[Contender]) -> Contender | None:
    """The first run on one device of the same task, platform and precision, with as many rows a device or in all."""
    if (one.case.setting.devices or 0) < 2:
        return None
    alike = [
        other
        for other in contenders
        if other.subject.kind == "run" and other.case.setting.devices == 1 and _mode(one.case, other.case) is not None
        and other.subject.task == one.subject.task
        and other.case.setting.platform == one.case.setting.platform
        and other.case.setting.precision == one.case.setting.precision
    ]  # fmt: skip
    return alike[0] if alike else None


def _mode(many: Case, one: Case) -> Literal["weak", "strong"] | None:
    devices, rows, single_rows = many.setting.devices, many.setting.batch, one.setting.batch
    if devices is None or rows is None or single_rows is None:
        return None
    if rows == devices * single_rows:
        return "weak"
    return "strong" if rows == single_rows else None


def _against(many: Contender, baseline: Contender | None) -> Contender:
    if baseline is None:
        return many
    mode, devices = _mode(many.case, baseline.case), many.case.setting.devices
    rate = many.case.numbers[quantities.SAMPLES_PER_S.key]
    single = baseline.case.numbers[quantities.SAMPLES_PER_S.key]
    assert mode is not None and devices is not None, "chosen so"
    if rate.value is None or not single.value:
        return many
    on_cpu = "cpu" in (many.case.setting.platform or "").lower()  # JAX calls it ``TFRT_CPU`` too
    share = _efficiency(rate, single, devices=devices)
    number = unknown(say("compare.why.shared_cores")) if on_cpu else replace(
        share, basis="measured",
        detail=say("compare.detail.two_runs", subject=baseline.label, mode=say(f"compare.mode.{mode}")),
    )  # fmt: skip
    case = replace(many.case, numbers={**many.case.numbers, quantities.EFFICIENCY.key: number})
    subject = many.subject
    if not on_cpu:
        assert share.value is not None, "a quotient"
        points = [
            Point(1, baseline.case.setting.batch or 0, _interval(single), Interval(1.0, 1.0, 1.0)),
            Point(devices, many.case.setting.batch or 0, _interval(rate), _interval(share)),
        ]
        subject = replace(subject, scalings=[Scaling(mode, "measured", points)])
    return Contender(many.label, subject, case)


def _efficiency(rate: Number, single: Number, *, devices: int) -> Number:
    """The widest that the two intervals allow."""
    assert rate.value is not None and single.value, "looked at before"
    value = rate.value / (devices * single.value)
    if rate.low is None or rate.high is None or not single.low or single.high is None:
        return Number(value)
    return Number(value, rate.low / (devices * single.high), rate.high / (devices * single.low))


def _interval(number: Number) -> Interval:
    assert number.value is not None, "looked at before"
    return Interval(number.value, number.low, number.high)
