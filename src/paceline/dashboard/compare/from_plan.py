"""A result of `paceline plan` as a subject: the planned step whole, and the points of its curve.

Owns: the part of its JSON that is read, the waterfall of a prediction.
Not here: other ways that ``--compare`` planned, which the file holds too: a note says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from paceline.dashboard.compare import quantities
from paceline.dashboard.compare.result_file import Config, Devices, Real, options_of, real, typed
from paceline.dashboard.compare.ring import Use, sent_bytes
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

_HOW = say("compare.detail.by_model_interval")
_COUNTED = say("compare.detail.counted")


class _Parallel(msgspec.Struct):
    scheme: str
    precision: str
    accumulation: int
    placement: str


class _Memory(msgspec.Struct):
    peak_bytes: int


class _Collective(msgspec.Struct):
    bytes: Real
    times: Real
    blocking: bool
    kind: str = ""
    devices: int = 0
    exposed_s: Real = 0.0


class _Point(msgspec.Struct):
    devices: Devices
    samples_per_s: Real
    efficiency: Real
    efficiency_low: Real
    efficiency_high: Real


class _Plan(msgspec.Struct):
    machine: str
    devices: Devices
    parallel: _Parallel
    batch: int
    rows_per_device: int
    memory: _Memory
    fits: bool
    single_samples_per_s: Real
    single_interval_samples_per_s: tuple[Real, Real]
    samples_per_s: Real
    efficiency: Real
    efficiency_low: Real
    efficiency_high: Real
    step_s: Real
    terms: dict[str, Real]
    binding: str
    communication: list[_Collective]
    curve: list[_Point]
    single_is_measured: bool = False
    notes: list[str] = []


class _File(msgspec.Struct):
    plan: _Plan
    config: Config
    compare: list[Any] = []


def plan_subject(content: Mapping[str, Any], path: str) -> Subject:
    """The subject. Raises: SubjectError: the file is damaged or of another version."""
    file = typed(content, _File, path=path, command="plan")
    plan = file.plan
    own = Case(_setting(plan, plan.devices), _numbers(plan))
    others = [_curve_case(plan, point) for point in plan.curve if point.devices != plan.devices]
    return Subject(
        kind="plan",
        path=path,
        task=_task(file.config.target),
        cases=[*others, own],
        fidelity=Fidelity("programs", None, say("compare.programs.plan")),
        options=options_of(file.config),
        notes=[*_notes(file), *map(told, plan.notes)],
        scalings=[_scaling(plan)] if plan.curve else [],
    )


def _task(target: str) -> str | None:
    """``my_task`` for ``tasks/my_task.py``, as runs of a file without a name of its own are called."""
    return target.replace("\\", "/").rpartition("/")[2].removesuffix(".py") or None


def _notes(file: _File) -> list[Words]:
    plan = file.plan
    notes = [] if plan.fits else [say("compare.note.does_not_fit")]
    notes.append(say("compare.note.limited", what=told(plan.binding)))
    if plan.single_is_measured:
        notes.append(say("compare.note.single_measured"))
    if file.compare:
        notes.append(say("compare.note.other_ways", count=len(file.compare)))
    return notes


def _setting(plan: _Plan, devices: int) -> Setting:
    one = plan.parallel
    return Setting(one.scheme, one.placement, one.precision, one.accumulation, devices,
                   plan.rows_per_device * devices, plan.machine)  # fmt: skip


def _numbers(plan: _Plan) -> dict[str, Number]:
    wire = sum(real(use.bytes) * real(use.times) for use in plan.communication)
    blocking = sum(real(use.times) for use in plan.communication if use.blocking)
    rate = _rate(plan, plan)
    exposed = plan.terms.get("exposed_s")
    numbers = {
        quantities.SAMPLES_PER_S.key: rate,
        quantities.STEP_P50_S.key: Number(real(plan.step_s), *_inverse(plan.batch, rate), basis="predicted",
                                          detail=_HOW),
        quantities.EFFICIENCY.key: _efficiency(plan),
        quantities.MEMORY_COMPILED.key: Number(plan.memory.peak_bytes, basis="compiler",
                                               detail=say("compare.detail.compiled_for", machine=plan.machine)),
        quantities.SENT_BYTES.key: _sent(plan),
        quantities.WIRE_BYTES.key: Number(wire, basis="compiler", detail=_COUNTED),
        quantities.COLLECTIVES.key: Number(sum(real(use.times) for use in plan.communication), basis="compiler",
                                           detail=_COUNTED),
        quantities.BLOCKING_COLLECTIVES.key: Number(blocking, basis="compiler", detail=_COUNTED),
        quantities.COMMUNICATION_S.key: unknown(say("compare.why.file_silent")) if exposed is None
        else Number(real(exposed), basis="predicted", detail=say("compare.detail.by_model")),
    }  # fmt: skip
    return _filled(numbers, say("compare.why.not_planned"))


def _sent(plan: _Plan) -> Number:
    """A step that was compiled for fewer devices has its widest groups over all of them on K."""
    compiled = max((use.devices for use in plan.communication), default=0)
    sent = sent_bytes(
        Use(use.kind, real(use.bytes), plan.devices if use.devices == compiled > 0 else use.devices, real(use.times))
        for use in plan.communication
    )
    if sent is None:
        return unknown(say("compare.why.unknown_collective"))
    return Number(sent, basis="compiler", detail=say("compare.detail.ring"))


def _curve_case(plan: _Plan, point: _Point) -> Case:
    numbers = {
        quantities.SAMPLES_PER_S.key: _rate(plan, point),
        quantities.STEP_P50_S.key: Number(
            plan.rows_per_device * point.devices / real(point.samples_per_s), basis="predicted",
            detail=say("compare.detail.by_model_curve"),
        ),
        quantities.EFFICIENCY.key: _efficiency(point),
    }  # fmt: skip
    return Case(_setting(plan, point.devices), _filled(numbers, say("compare.why.other_devices")), whole=False)


def _filled(numbers: dict[str, Number], why: Words) -> dict[str, Number]:
    for quantity in quantities.DECLARED:
        numbers.setdefault(quantity.key, unknown(why))
    return numbers


def _rate(plan: _Plan, point: _Plan | _Point) -> Number:
    """S_K with the ends of S_1 times those of E_K: both at their ends at once, so rather too wide than too narrow."""
    low, high = (real(end) for end in plan.single_interval_samples_per_s)
    ends = (
        low * point.devices * real(point.efficiency_low),
        high * point.devices * real(point.efficiency_high),
    )
    return Number(real(point.samples_per_s), *ends, basis="predicted", detail=_HOW)


def _inverse(batch: int, rate: Number) -> tuple[int | float | None, int | float | None]:
    if not rate.low or not rate.high:
        return None, None
    return batch / rate.high, batch / rate.low


def _efficiency(point: _Plan | _Point) -> Number:
    if point.devices == 1:
        return Number(1.0, basis="predicted", detail=say("compare.detail.single"))
    return Number(real(point.efficiency), real(point.efficiency_low), real(point.efficiency_high), basis="predicted",
                  detail=_HOW)  # fmt: skip


def _scaling(plan: _Plan) -> Scaling:
    points = []
    for point in plan.curve:
        rate = _rate(plan, point)
        assert rate.value is not None, "a plan predicts it"
        share = Interval(real(point.efficiency), real(point.efficiency_low), real(point.efficiency_high))
        points.append(Point(point.devices, plan.rows_per_device * point.devices,
                            Interval(rate.value, rate.low, rate.high), share))  # fmt: skip
    return Scaling("weak", "predicted", points, _waterfall(plan) if plan.devices > 1 else None)


def _waterfall(plan: _Plan) -> Waterfall:
    """Each term's share of the step; what one device loses to the same thing is no loss of E_K.

    Only the host is on one device too, so its term is what is left: the terms add up to 100 % - E_K, as those that
    `paceline scale` measures.
    """
    step_s = real(plan.step_s)
    names = {"compute": "contention_s", "stragglers": "jitter_s", "communication": "exposed_s", "input": "input_s"}
    lost = {name: 100 * real(plan.terms.get(key, 0.0)) / step_s for name, key in names.items()}
    efficiency = 100 * real(plan.efficiency)
    lost["host"] = 100 - efficiency - sum(lost.values())
    titles = {name: say("compare.term.host_beyond" if name == "host" else f"compare.term.{name}") for name in lost}
    return Waterfall(plan.devices, efficiency, [Term(name, titles[name], Interval(lost[name])) for name in lost])
