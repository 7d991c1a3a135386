"""The result as one HTML file that needs nothing else: the figure inlined, the tables, the conditions.

Owns: the page.
Not here: the numbers (`result`), the figure (`figure`).
Invariant: no script, no address is loaded, and every text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from paceline.base.figures import drawing
from paceline.base.units import format_duration, format_rate, rate_digits
from paceline.measure.scale.efficiency import TERMS
from paceline.measure.scale.figure import figure_svg
from paceline.measure.scale.result import (
    UNEXPLAINED,
    Point,
    ScaleResult,
    Scaling,
    coverage_text,
    format_interval,
    mode_words,
    noise_text,
    percent_text,
    planned_text,
    points_text,
    predicted_text,
    trace_lines,
    useful_lines,
)
from paceline.measure.scale.subject import STAGES

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; max-width: 1180px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; margin: 0.6em 0 1.4em; }
th, td { text-align: right; padding: 0.25em 0.9em; border-bottom: 1px solid #e4e6ea; }
th { color: #5d6470; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; } li { color: #5d6470; } pre { background: #f5f6f8; padding: 0.8em; overflow: auto; }
caption { text-align: left; color: #5d6470; padding-bottom: 0.3em; }
"""


def write_page(result: ScaleResult, path: str) -> None:
    """Write the page. Raises: FigureError."""
    with drawing(path) as temporary:
        temporary.write_text(page(result), encoding="utf-8")


def page(result: ScaleResult) -> str:
    """The page as text."""
    title = escape(f"{result.task}: scaling on {result.platform}")
    plan = result.plan
    conditions = (*result.conditions, *(() if plan is None else plan.notes))
    predicted = "predicted" if plan is None else planned_text(plan.machine)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head><body>',
        f"<h1>{title}</h1>",
        "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in conditions) + "</ul>",
        figure_svg(result),
        *(part for scaling in result.scalings for part in _scaling(scaling, predicted)),
    ]
    if result.noise is not None:
        parts.append(f"<p>{escape(noise_text(result.noise))}</p>")
    if result.traces:
        parts += ["<h2>Profiler</h2>", f"<pre>{escape(chr(10).join(trace_lines(result.traces)))}</pre>"]
    if result.network_lines:
        parts += ["<h2>Collectives</h2>", f"<pre>{escape(chr(10).join(result.network_lines))}</pre>"]
    return "\n".join([*parts, "</body></html>", ""])


def _scaling(scaling: Scaling, predicted: str) -> Iterable[str]:
    yield f"<h2>{escape(mode_words(scaling))}</h2>"
    caption = f"throughput and efficiency (in brackets: {coverage_text(scaling)})"
    yield _table(caption, ["K", "batch", "S_K, samples/s", "E_K", predicted], [
        [str(p.setting.devices), f"{p.setting.batch:,}", format_interval(p.samples_per_s, rate_digits), _share(p),
         "" if p.predicted is None else predicted_text(p.predicted)]
        for p in scaling.points
    ])  # fmt: skip
    shown = [point for point in scaling.points if point.waterfall is not None]
    falls = [point.waterfall for point in shown if point.waterfall is not None]
    if falls:
        yield _table(
            "from 100 % to E_K, percent points of K S_1",
            ["", *(f"{point.setting.devices} devices" for point in shown)],
            [[TERMS[name], *(_term(point, name) for point in shown)] for name in falls[0].terms],
        )
        if any(fall.is_unexplained for fall in falls):
            yield f"<p>{escape(UNEXPLAINED)}</p>"
    yield _table(
        "a step by stage", ["K", *STAGES],
        [[str(p.setting.devices), *(_stage(p, stage) for stage in STAGES)] for p in scaling.points],
    )  # fmt: skip
    caption = "rows in flight: L x T against the count, medians of the stage feed"
    yield _table(caption, ["K", "L", "T", "L x T, rows", "counted, rows", ""], [
        [str(p.setting.devices), format_duration(p.flow.latency_s), format_rate(p.flow.samples_per_s),
         f"{p.flow.rows:,.0f}", f"{p.flow.counted_rows:,.0f}", "agrees" if p.flow.agrees else "DISAGREES"]
        for p in scaling.points
    ])  # fmt: skip
    if scaling.useful is not None:
        yield "<p>time to a loss, against one device</p>"
        yield "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in useful_lines(scaling.useful)) + "</ul>"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    return f"<table><caption>{escape(caption)}</caption><tr>{top}</tr>{body}</table>"


def _share(point: Point) -> str:
    if point.efficiency is None:
        return f"not claimed: {point.not_claimed}"
    return "100 %" if point.setting.devices == 1 else format_interval(point.efficiency, percent_text)


def _term(point: Point, name: str) -> str:
    assert point.waterfall is not None, "asked for where there is one"
    term = point.waterfall.terms[name]
    return f"{points_text(term.value)} ({points_text(term.high)} to {points_text(term.low)})"


def _stage(point: Point, stage: str) -> str:
    interval = point.step_s.get(stage)
    return "" if interval is None else format_duration(interval.value)
