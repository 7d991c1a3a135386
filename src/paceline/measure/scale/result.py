"""`ScaleResult`: what was measured, as data and as text.

Owns: the points of weak and strong scaling with all that was found for each, the keys of ``--json``, the report.
Not here: the arithmetic (`efficiency`), the figure and the page (`figure`, `page`).
Invariant: a number that was not measured or may not be claimed is absent, with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.base.units import format_count, format_duration, format_percent, format_rate, rate_digits
from paceline.insight.noise import TwoNumbers, format_rows
from paceline.measure.scale.efficiency import (
    TERMS,
    LittlesLaw,
    Waterfall,
    efficiency,
    littles_law,
    throughput,
    waterfall,
)
from paceline.measure.scale.prediction import Planned, Prediction
from paceline.measure.scale.rounds import Measurements, Setting
from paceline.measure.scale.subject import Mode, Noise
from paceline.measure.scale.trace import DeviceTimes
from paceline.measure.scale.useful import TimeToLoss, time_to_loss, verdict
from paceline.measure.timing import Interval, median_interval


@dataclass(frozen=True)
class Point:
    """K devices.

    Args:
      setting: K and the rows of the global batch.
      samples_per_s: S_K.
      step_s: time of a step by stage [s].
      efficiency: E_K as a share; None if it may not be claimed.
      not_claimed: why not.
      waterfall: from 100 % to E_K; None for one device, and where nothing is claimed.
      flow: Little's law.
      predicted: by a plan.
    """

    setting: Setting
    samples_per_s: Interval
    step_s: Mapping[str, Interval]
    efficiency: Interval | None
    not_claimed: str | None
    waterfall: Waterfall | None
    flow: LittlesLaw
    predicted: Prediction | None = None


@dataclass(frozen=True)
class Scaling:
    """One mode over all numbers of devices.

    Args:
      mode: weak or strong.
      points: in rising K; the first is one device.
      useful: how far more devices shorten the time to a loss, over the K that may be claimed; None if the gradient
        noise scale is unknown.
    """

    mode: Mode
    points: tuple[Point, ...]
    useful: TimeToLoss | None = None


@dataclass(frozen=True)
class PlanNotes:
    """The plan that stands beside.

    Args:
      machine: that it is for.
      notes: how it differs from what was measured, as sentences.
    """

    machine: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScaleResult:
    """All that a call of `paceline scale` found.

    Args:
      task: the task's name.
      platform: ``cpu``, ``gpu`` ... with the kind of device.
      conditions: how it was measured, as sentences.
      rounds: that count.
      total_s: time of it all, compilation included.
      other_load: share of the cores that other programs used meanwhile; None if unknown.
      scalings: weak, strong or both.
      noise: None if it was not asked for.
      traces: times by device from the profiler, by K.
      network: curves of collectives, as `insight.network` writes them.
      network_lines: the same for people.
      plan: None if none was given.
    """

    task: str
    platform: str
    conditions: tuple[str, ...]
    rounds: int
    total_s: float
    scalings: tuple[Scaling, ...]
    noise: Noise | None = None
    traces: Mapping[int, Sequence[DeviceTimes]] = dataclasses.field(default_factory=dict)
    network: Mapping[str, Any] | None = None
    network_lines: tuple[str, ...] = ()
    other_load: float | None = None
    plan: PlanNotes | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data; the keys are documented in docs/scale.md."""
        content = dataclasses.asdict(self)
        del content["network_lines"]
        content["scalings"] = [_scaling_dict(scaling) for scaling in self.scalings]
        content["traces"] = {count: [dataclasses.asdict(t) for t in times] for count, times in self.traces.items()}
        return content

    def lines(self) -> list[str]:
        """The report as people read it."""
        lines = [f"{self.task}: scaling measured on {self.platform}"]
        lines += [f"  {text}" for text in self.conditions]
        machine = None if self.plan is None else self.plan.machine
        if self.plan is not None:
            lines += [f"  {text}" for text in self.plan.notes]
        for scaling in self.scalings:
            lines += ["", *_scaling_lines(scaling, machine)]
        if self.noise is not None:
            lines += ["", noise_text(self.noise)]
        if self.traces:
            lines += ["", *trace_lines(self.traces)]
        if self.network_lines:
            lines += ["", *self.network_lines]
        return lines


def make_scaling(
    mode: Mode, settings: Sequence[Setting], *, measured: Measurements, not_claimed: Callable[[int], str | None],
    planned: Planned | None, noise: Noise | None, shares_cores: bool = False,
) -> Scaling:  # fmt: skip
    """One mode, from the measurements of its settings; the first is one device.

    Args:
      noise: None if it was not asked for.
      shares_cores: the feed runs on the cores that compute.
    """
    points = tuple(
        _point(setting, settings[0], measured, not_claimed(setting.devices), planned, shares_cores)
        for setting in settings
    )
    return Scaling(mode, points, _useful(points, measured, noise))


def _point(
    setting: Setting, one: Setting, measured: Measurements, reason: str | None, planned: Planned | None,
    shares_cores: bool,
) -> Point:  # fmt: skip
    stages = measured[setting]
    several = reason is None and setting.devices > 1
    return Point(
        setting=setting,
        samples_per_s=throughput(stages["fit"], batch=setting.batch),
        step_s={stage: median_interval([sample.step_s for sample in samples]) for stage, samples in stages.items()},
        efficiency=efficiency(measured[one], stages, one=one, many=setting) if reason is None else None,
        not_claimed=reason,
        waterfall=waterfall(measured[one], stages, one=one, many=setting, shares_cores=shares_cores)
        if several
        else None,
        flow=littles_law([sample.flow for sample in stages["feed"] if sample.flow is not None], batch=setting.batch),
        predicted=None if planned is None else planned.at(setting, one=one),
    )


def _useful(points: Sequence[Point], measured: Measurements, noise: Noise | None) -> TimeToLoss | None:
    claimed = {point.setting: point.efficiency.value for point in points if point.efficiency is not None}
    if noise is None or noise.rows is None or len(claimed) < 2:
        return None
    fits = {setting: measured[setting]["fit"] for setting in claimed}
    return time_to_loss(
        claimed, fits, single=points[0].samples_per_s.value, noise_rows=noise.rows,
        noise_error=noise.relative_error or 0.0,
    )  # fmt: skip


def _scaling_dict(scaling: Scaling) -> dict[str, Any]:
    points = [
        {
            "devices": point.setting.devices,
            "batch": point.setting.batch,
            "samples_per_s": point.samples_per_s._asdict(),
            "step_s": {stage: interval._asdict() for stage, interval in point.step_s.items()},
            "efficiency": None if point.efficiency is None else point.efficiency._asdict(),
            "not_claimed": point.not_claimed,
            "waterfall_percent": None if point.waterfall is None
            else {name: interval._asdict() for name, interval in point.waterfall.terms.items()},
            "littles_law": {**dataclasses.asdict(point.flow), "ratio": point.flow.ratio._asdict(),
                            "agrees": point.flow.agrees},
            "predicted": None if point.predicted is None else dataclasses.asdict(point.predicted),
        }
        for point in scaling.points
    ]  # fmt: skip
    useful = None if scaling.useful is None else dataclasses.asdict(scaling.useful)
    if useful is not None and scaling.useful is not None:
        useful["saved"] = [gain._asdict() for gain in scaling.useful.saved]
    return {"mode": scaling.mode, "points": points, "time_to_loss": useful}


UNEXPLAINED = "the rest is larger than every term that has a name: these stages do not explain the loss"


def format_interval(interval: Interval, text: Callable[[float], str]) -> str:
    """``95.1 % (93.8 to 96.0)``."""
    return f"{text(interval.value)} ({_number(text(interval.low))} to {_number(text(interval.high))})"


def _number(text: str) -> str:
    return text.partition(" ")[0]


def percent_text(share: float) -> str:
    """``95.1 %``, one digit behind the point."""
    return f"{100 * share:.1f} %"


def points_text(percent: float) -> str:
    """``-4.2``: percent points that are lost, or won; no sign for what rounds to nothing."""
    rounded = round(-percent, 1)
    return f"{rounded:+.1f}" if rounded else "0.0"


def mode_words(scaling: Scaling) -> str:
    """``weak scaling: 32 rows a device``."""
    last = scaling.points[-1].setting
    if scaling.mode == "weak":
        return f"weak scaling: {format_count(last.batch // last.devices, 'row')} a device"
    return f"strong scaling: {format_count(last.batch, 'row')} shared by all devices"


def coverage_text(scaling: Scaling) -> str:
    """``96.1 % intervals of the median``."""
    return f"{format_percent(scaling.points[-1].samples_per_s.coverage)} intervals of the median"


def planned_text(machine: str) -> str:
    """``predicted for 2 x A100 SXM 80 GB``."""
    return f"predicted for {machine}"


def _scaling_lines(scaling: Scaling, machine: str | None) -> list[str]:
    lines = [f"{mode_words(scaling)} (in brackets: {coverage_text(scaling)})"]
    planned = machine is not None and any(point.predicted is not None for point in scaling.points)
    head = f"  {'K':>4} {'batch':>7}  {'S_K, samples/s':<32} {'E_K':<26}"
    lines.append(head + f" {planned_text(machine or '')}: S_K, E_K" if planned else head.rstrip())
    lines += [_point_line(point, planned=planned) for point in scaling.points]
    lines += [
        f"  {format_count(point.setting.devices, 'device')}: no efficiency is claimed, {point.not_claimed}"
        for point in scaling.points
        if point.not_claimed
    ]
    for point in scaling.points:
        if point.waterfall is not None:
            lines += ["", *_waterfall_lines(point)]
    lines += ["", "  rows in flight: L x T against the count (Little's law), medians of the stage 'feed'"]
    lines += [_flow_line(point) for point in scaling.points]
    if scaling.useful is not None:
        lines += ["", "  time to a loss, against one device", *(f"    {text}" for text in useful_lines(scaling.useful))]
    return lines


def _point_line(point: Point, *, planned: bool) -> str:
    speed = format_interval(point.samples_per_s, rate_digits)
    share = "not claimed" if point.efficiency is None else format_interval(point.efficiency, percent_text)
    if point.setting.devices == 1 and point.efficiency is not None:
        share = "100 %"
    line = f"  {point.setting.devices:>4} {point.setting.batch:>7,}  {speed:<32} {share:<26}"
    return (line + f" {predicted_text(point.predicted):<32}").rstrip() if planned else line.rstrip()


def predicted_text(predicted: Prediction | None) -> str:
    """``12,300 samples/s, 93.0 % (90.1 to 95.2)``; ``unknown`` where the plan has no such K."""
    if predicted is None:
        return "unknown"
    text = format_rate(predicted.samples_per_s)
    if predicted.efficiency is None:
        return text
    text += f", {percent_text(predicted.efficiency)}"
    low, high = predicted.efficiency_low, predicted.efficiency_high
    return text if low is None or high is None else f"{text} ({100 * low:.1f} to {100 * high:.1f})"


def _waterfall_lines(point: Point) -> list[str]:
    assert point.waterfall is not None, "asked for where there is one"
    lines = [f"  {point.setting.devices} devices: from 100 % to {point.waterfall.efficiency:.1f} %, in percent points"]
    for name, term in point.waterfall.terms.items():
        words = TERMS[name]
        low, high = points_text(term.high), points_text(term.low)  # a loss is printed negative, so the ends change
        lines.append(f"    {words:<51} {points_text(term.value):>6}   ({low} to {high})")
    return lines + ([f"    {UNEXPLAINED}"] if point.waterfall.is_unexplained else [])


def _flow_line(point: Point) -> str:
    flow = point.flow
    verdict = "agrees" if flow.agrees else "DISAGREES: rows wait where nothing counts them, or the count is late"
    return (
        f"  {point.setting.devices:>4}  {format_duration(flow.latency_s)} x {format_rate(flow.samples_per_s)} "
        f"is about {format_count(round(flow.rows), 'row')}, counted {flow.counted_rows:,.0f} "
        f"({format_interval(flow.ratio, percent_text)}): {verdict}"
    )


def two_numbers_text(numbers: TwoNumbers) -> str:
    """``2 devices: hardware 92.1 % x statistical 99.0 % = 91.2 %``."""
    return (
        f"{format_count(numbers.devices, 'device')}: hardware {percent_text(numbers.hardware)} "
        f"x statistical {percent_text(numbers.statistical)} = {percent_text(numbers.product)}"
    )


def useful_lines(useful: TimeToLoss) -> list[str]:
    """The two numbers of each K, and how far more devices help."""
    lines = [f"{two_numbers_text(numbers)}, {numbers.speed_up:.2f} times as fast" for numbers in useful.curve]
    return [*lines, verdict(useful)]


def noise_text(noise: Noise) -> str:
    """``gradient noise scale: 1,240 rows (± 12 %), over the first 100 steps``; or why it is unknown."""
    if noise.rows is None:
        return f"statistical efficiency: unknown, {noise.why_unknown}"
    error = "" if noise.relative_error is None else f" (± {format_percent(noise.relative_error)})"
    return f"gradient noise scale: {format_rows(noise.rows)}{error}, over the first {format_count(noise.steps, 'step')}"


def trace_lines(traces: Mapping[int, Sequence[DeviceTimes]]) -> list[str]:
    """Times of each device, from the profiler."""
    lines = ["from the profiler's trace, a step on each device"]
    for count, times in traces.items():
        if not times:
            lines.append(f"  {format_count(count, 'device')}: the trace names no operation")
        for one in times:
            lines.append(
                f"  {format_count(count, 'device')}, device {one.device}: compute {format_duration(one.compute_s)}, "
                f"collectives {format_duration(one.communication_s)}, of it exposed {format_duration(one.exposed_s)}"
            )
    return lines
