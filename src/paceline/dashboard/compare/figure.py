"""The comparison as a picture: speed, latency, memory and traffic, E_K, where the rest goes, losses.

Owns: the choice of panels, colours and labels; PNG and SVG by matplotlib (extra ``report``), loaded when it is drawn.
Not here: the numbers (`document`), the HTML file around it (`page`).
Invariant: a number that is not known has no bar, but its reason in its place; names are never read as formulas.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.base.figures import drawing, format_of
from paceline.dashboard.compare.panels import LIGHT, Panel, Theme, panels, style

_COLUMNS = 3
_PANEL_INCHES = 5.2
_HEAD_POINTS = 11.0
_LINE_CHARACTERS = 56
"""That fit over one panel."""
_MOST_LINES = 8
_ADDRESSES = re.compile(r'\s+xmlns(:\w+)?="[^"]*"|<metadata>.*?</metadata>', re.DOTALL)
"""Namespaces, which HTML does not need, and where they are explained: a file that is read offline names no address."""


def write_figure(document: Mapping[str, Any], path: str) -> None:
    """Draw into a file; its ending says the format. Raises: FigureError."""
    with drawing(path) as temporary:
        figure(document, LIGHT).savefig(temporary, dpi=150, format=format_of(path))


def panel_svg(panel: Panel, theme: Theme) -> str:
    """One panel as an ``<svg>`` element: text as text, no address, the same bytes for the same document."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"paceline {panel.title}"}):
        sheet = _sheet([panel], theme, columns=1)
        sheet.savefig(
            buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")), transparent=True
        )
    text = buffer.getvalue()
    return _ADDRESSES.sub("", text[text.index("<svg") :])


def figure(document: Mapping[str, Any], theme: Theme) -> Any:
    """All panels on one sheet, with what differs between the subjects in words above them."""
    chosen = panels(document)
    columns = min(_COLUMNS, max(1, len(chosen)))
    differing = [one["text"] for one in document["differences"]]
    characters = _LINE_CHARACTERS * columns
    title = textwrap.wrap(document["title"], characters)
    wide = [line for text in differing for line in textwrap.wrap(text, characters)]
    if len(wide) > _MOST_LINES:
        wide = [*wide[: _MOST_LINES - 1], "... (the text and the page list all that differs)"]
    return _sheet(chosen, theme, columns=columns, lines=[*title, *wide])


def _head_points(lines: Sequence[str], columns: int) -> float:
    """The size of the text above the panels with which its widest line, whatever its letters, fits the sheet."""
    from matplotlib.textpath import TextPath

    plain = (line.replace("$", "S") for line in lines)  # ``$`` would begin a formula
    widest = max(TextPath((0, 0), line, size=_HEAD_POINTS).get_extents().width for line in plain)
    return min(_HEAD_POINTS, 0.97 * 72 * _PANEL_INCHES * columns / max(widest, 1) * _HEAD_POINTS)


def _sheet(chosen: Sequence[Panel], theme: Theme, *, columns: int, lines: Sequence[str] = ()) -> Any:
    from matplotlib.figure import Figure

    rows = [chosen[first : first + columns] for first in range(0, len(chosen), columns)] or [[]]
    heights = [max((one.height for one in row), default=1.0) for row in rows]
    head = 0.3 * bool(lines) + 0.2 * len(lines)
    sheet = Figure(figsize=(_PANEL_INCHES * columns, sum(heights) + head), layout="constrained", facecolor=theme.paper)
    if lines:
        sheet.suptitle("\n".join(lines), fontsize=_head_points(lines, columns), color=theme.ink, parse_math=False)
    grid = sheet.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for row, places in zip(rows, grid, strict=True):
        for place, axes in enumerate(places):
            if place < len(row):
                style(axes, title=row[place].title, theme=theme)
                row[place].draw(axes, theme)
            else:
                axes.set_axis_off()
    return sheet
