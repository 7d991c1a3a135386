"""The figure of a measurement: S_K against the ideal line, E_K with its intervals, the waterfall.

Owns: the choice of panels, colours and labels; PNG and SVG by matplotlib (extra ``report``), loaded when it is drawn.
Not here: the numbers (`result`), the HTML page around it (`page`).
Invariant: a point without a claimed efficiency stands in the first panel, hollow, and in no other.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from paceline.base.figures import drawing, format_of
from paceline.base.units import format_count, format_percent
from paceline.measure.scale.load import BUSY
from paceline.measure.scale.result import Point, ScaleResult, Scaling, mode_words, planned_text, points_text

_BLUE, _GREY, _RED, _GREEN, _ORANGE = "#1f6fb4", "#8a8f98", "#c8553d", "#3a8f5d", "#d9922e"
_SHORT = {
    "compute": "compute\nslower",
    "stragglers": "stragglers",
    "communication": "exposed\ncommun.",
    "input": "input\nwait",
    "host": "host",
    "rest": "rest",
    "step": "the step",
    "feed": "feed",
}


def write_figure(result: ScaleResult, path: str) -> None:
    """Draw into a file; its ending says the format. Raises: FigureError."""
    with drawing(path) as temporary:
        _figure(result).savefig(temporary, dpi=150, format=format_of(path))


def figure_svg(result: ScaleResult) -> str:
    """The figure as one ``<svg>`` element, text as text, the same bytes for the same result."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "paceline"}):
        _figure(result).savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _figure(result: ScaleResult) -> Any:
    from matplotlib.figure import Figure

    rows = len(result.scalings)
    figure = Figure(figsize=(14, 0.9 + 3.9 * rows), layout="constrained")
    load = result.other_load
    busy = "" if load is None or load < BUSY else f"; other programs used {format_percent(load)} of the cores meanwhile"
    figure.suptitle(f"{result.task} on {result.platform}{busy}", fontsize=13, parse_math=False)
    planned = "predicted" if result.plan is None else planned_text(result.plan.machine)
    parts = figure.subfigures(rows, 1, squeeze=False)
    for part, scaling in zip(parts[:, 0], result.scalings, strict=True):
        part.suptitle(mode_words(scaling), fontsize=11, color=_GREY)
        left, middle, right = part.subplots(1, 3, width_ratios=(1, 1, 1.5))
        _throughput_panel(left, scaling, planned)
        _efficiency_panel(middle, scaling, planned)
        _waterfall_panel(right, scaling)
    return figure


def _style(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.yaxis.grid(True, color="#e4e6ea", linewidth=0.8)
    axes.set_axisbelow(True)


def _device_axis(axes: Any, points: Sequence[Point]) -> None:
    counts = [point.setting.devices for point in points]
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_xlim(counts[0] / 1.4, counts[-1] * 1.4)
    axes.set_xlabel("devices K", fontsize=9)


def _bars(points: Sequence[Point], choose: Callable[[Point], Any], *, factor: int | float = 1) -> dict[str, Any]:
    """Places, medians and distances to the ends of the intervals, as `errorbar` takes them."""
    found = [choose(point) for point in points]
    values = [factor * interval.value for interval in found]
    low = [factor * (interval.value - interval.low) for interval in found]
    high = [factor * (interval.high - interval.value) for interval in found]
    return {"x": [point.setting.devices for point in points], "y": values, "yerr": [low, high]}


def _legend(axes: Any, place: str) -> None:
    """With names of the user's in it as they are: ``$`` begins no formula."""
    for text in axes.legend(fontsize=8, frameon=False, loc=place).get_texts():
        text.set_parse_math(False)


def _throughput_panel(axes: Any, scaling: Scaling, planned_as: str) -> None:
    points = scaling.points
    from matplotlib.ticker import LogLocator, NullLocator

    _style(axes, "throughput S_K, samples/s")
    single = points[0].samples_per_s.value
    counts = [point.setting.devices for point in points]
    axes.plot(counts, [single * count for count in counts], "--", color=_GREY, linewidth=1.2, label="ideal: K S_1")
    claimed = [point for point in points if point.not_claimed is None]
    rest = [point for point in points if point.not_claimed is not None]
    look = {"fmt": "o", "capsize": 4, "markersize": 6, "color": _BLUE}
    axes.errorbar(**_bars(claimed, lambda point: point.samples_per_s), **look, linestyle="-", label="measured")
    if rest:
        hollow = {**look, "markerfacecolor": "white", "color": _GREY}
        axes.errorbar(**_bars(rest, lambda point: point.samples_per_s), **hollow, label="devices share cores")
    planned = [(p.setting.devices, p.predicted.samples_per_s) for p in points if p.predicted is not None]
    if planned:
        axes.plot(*zip(*planned, strict=True), "x", color=_ORANGE, markersize=8, markeredgewidth=2, label=planned_as)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:.2g}")
    _device_axis(axes, points)
    _legend(axes, "upper left")


def _efficiency_panel(axes: Any, scaling: Scaling, planned_as: str) -> None:
    _style(axes, "efficiency E_K, %")
    points = [point for point in scaling.points if point.efficiency is not None]
    axes.axhline(100, linestyle="--", color=_GREY, linewidth=1.2)
    bars = _bars(points, lambda point: point.efficiency, factor=100)
    axes.errorbar(**bars, fmt="o-", capsize=4, markersize=6, color=_BLUE)
    for count, value in zip(bars["x"], bars["y"], strict=True):
        if count > 1:
            axes.annotate(f"{value:.1f} %", (count, value), xytext=(8, 6), textcoords="offset points", fontsize=9)
    planned = [point for point in points if point.predicted is not None and point.predicted.efficiency is not None]
    if planned:
        _predicted_shares(axes, planned, planned_as)
    low, high = axes.dataLim.intervaly
    axes.set_ylim(max(0, min(80, low - 5)), max(105, high + 3))
    _device_axis(axes, scaling.points)
    across = axes.get_xaxis_transform()
    for point in scaling.points:
        if point.efficiency is None:
            axes.axvline(point.setting.devices, linestyle=":", color=_GREY, linewidth=1)
            axes.text(point.setting.devices, 0.5, " not claimed", transform=across, rotation=90, ha="right",
                      va="center", fontsize=8, color=_GREY)  # fmt: skip


def _predicted_shares(axes: Any, points: Sequence[Point], planned_as: str) -> None:
    """With the interval of the plan, a little to the side of what was measured."""
    for number, point in enumerate(points):
        plan = point.predicted
        assert plan is not None and plan.efficiency is not None, "chosen so"
        place, label = 0.94 * point.setting.devices, planned_as if number == 0 else None
        ends = [plan.efficiency if end is None else end for end in (plan.efficiency_low, plan.efficiency_high)]
        axes.plot([place, place], [100 * end for end in ends], color=_ORANGE, linewidth=1.2)
        axes.plot(place, 100 * plan.efficiency, "x", color=_ORANGE, markersize=8, markeredgewidth=2, label=label)
    _legend(axes, "lower left")


def _waterfall_panel(axes: Any, scaling: Scaling) -> None:
    shown = [point for point in scaling.points if point.waterfall is not None]
    if not shown:
        _style(axes, "where the rest goes")
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no efficiency is claimed", ha="center", va="center", color=_GREY, transform=axes.transAxes)
        return
    point = shown[-1]
    assert point.waterfall is not None, "chosen so"
    _style(axes, f"from 100 % to E_K on {format_count(point.setting.devices, 'device')}, percent points")
    tops = [100.0]
    terms = point.waterfall.terms
    for term in terms.values():
        tops.append(tops[-1] - term.value)
    axes.bar(0, 100, color=_GREY, width=0.7)
    for place, term in enumerate(terms.values(), start=1):
        lost = term.value
        colour = _RED if lost > 0 else _GREEN
        axes.bar(place, lost, bottom=tops[place], color=colour, width=0.7)
        axes.plot([place - 1.35, place + 0.35], [tops[place - 1]] * 2, color=_GREY, linewidth=0.8)
        height = max(tops[place], tops[place - 1])
        axes.annotate(
            points_text(lost), (place, height), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9
        )
    axes.bar(len(terms) + 1, tops[-1], color=_BLUE, width=0.7)
    for place, value in ((0, 100.0), (len(terms) + 1, tops[-1])):
        axes.annotate(
            f"{value:.1f}", (place, value), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9
        )
    axes.set_xticks(range(len(terms) + 2), ["ideal", *(_SHORT[name] for name in terms), "E_K"], fontsize=8)
    axes.set_ylim(min(0, 1.1 * min(tops)), 1.1 * max(tops))  # from 0: the areas of bars are compared
