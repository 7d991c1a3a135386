"""The panels of a comparison, each drawn on axes of matplotlib.

Owns: which panels there are, what stands in them, colours in light and dark.
Not here: files and sheets (`figure`), the HTML file (`page`).
Invariant: a subject has one colour in all panels; what is predicted is hatched; what is not known has words, no bar.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.base.units import format_bytes, format_count, format_duration, rate_digits, whole_digits
from paceline.dashboard.compare.quantities import SHARES
from paceline.dashboard.compare.text import points_text

_NAME_CHARACTERS = 24
_TERM_CHARACTERS = 8
_TITLE_CHARACTERS = 50
"""That fit over a panel."""
_BAR_INCHES = 0.42
_LEAST_INCHES = 3.2
_LINES = ("-", "--", "-.", ":")
_NAMED = 3
_WIDE_RANGE = 50
"""Greatest over least value from which a logarithmic axis shows more."""
_MOST_DRAWN = 1e100
"""Beyond it the axes of matplotlib, which square and subtract, come to infinities and nothing is drawn at all."""


@dataclass(frozen=True)
class Theme:
    """Colours; in the HTML file each becomes a variable, so that it can be dark too."""

    name: str
    paper: str
    ink: str
    grey: str
    grid: str
    lost: str
    won: str
    subjects: tuple[str, ...]

    def subject(self, place: int) -> str:
        """The colour of a subject."""
        return self.subjects[place % len(self.subjects)]


LIGHT = Theme(
    "light", paper="#ffffff", ink="#1d2430", grey="#5d6470", grid="#e4e6ea", lost="#c8553d", won="#3a8f5d",
    subjects=("#1f6fb4", "#b5561f", "#2f7d4f", "#8a4fa8", "#8c6d12", "#15808d", "#a83f6f", "#4f5b8c"),
)  # fmt: skip
DARK = Theme(
    "dark", paper="#14181f", ink="#e8ebf0", grey="#a4acb9", grid="#2c333e", lost="#f08a72", won="#6fcf97",
    subjects=("#62b0f0", "#f0a368", "#74cf98", "#c99be3", "#e0c25a", "#5fcbd8", "#f08db6", "#a4b0ea"),
)  # fmt: skip

Draw = Callable[[Any, Theme], None]


@dataclass(frozen=True)
class Panel:
    """One panel; `draw` draws it on axes, `height` is in inches."""

    title: str
    draw: Draw
    height: int | float = _LEAST_INCHES


def panels(document: Mapping[str, Any]) -> list[Panel]:
    """Those for which there is something to draw."""
    rows = {row["key"]: row for row in document["rows"]}
    labels = short_labels([one["label"] for one in document["subjects"]])
    found: list[Panel] = []
    for title, keys, text in _BARS:
        shown = [rows[key] for key in keys if key in rows]
        places = [
            place for place in range(len(labels)) if any(row["cells"][place]["value"] is not None for row in shown)
        ]
        if shown:
            height = max(_LEAST_INCHES, 1 + _BAR_INCHES * len(places) * len(shown))
            found.append(
                Panel(
                    title if len(shown) == len(keys) else shown[0]["title"], _bars(shown, labels, places, text), height
                )
            )
    if document["scaling"]:
        found.append(Panel("scaling efficiency E_K, %", _efficiency(document["scaling"], labels)))
    for one in document["waterfalls"]:
        words = f"{labels[one['subject']]}: from 100 % to E_{one['devices']}, {one['basis']}, percent points"
        found.append(Panel(words, _waterfall(one)))
    found += [Panel(one["title"], _curve(one, labels)) for one in document["curves"]]
    return found


def _count_text(count: int | float) -> str:
    return whole_digits(count)


_BARS: tuple[tuple[str, tuple[str, ...], Callable[[int | float], str]], ...] = (
    ("throughput, samples/s", ("samples_per_s",), rate_digits),
    ("step latency: median, 95 % (pale)", ("step_p50_s", "step_p95_s"), format_duration),
    (
        "peak memory a device: measured, compiled (pale)",
        ("memory_measured_bytes", "memory_compiled_bytes"),
        format_bytes,
    ),
    ("sent by a device a step (ring)", ("sent_bytes",), format_bytes),
    ("collectives a step, of them blocking (pale)", ("collectives", "blocking_collectives"), _count_text),
)


def short_labels(labels: Sequence[str]) -> list[str]:
    """Long names without their middle, their begin or their end, whichever leaves them different; else numbered."""
    half = (_NAME_CHARACTERS - 1) // 2
    for begin, end in ((half, half), (0, 2 * half), (2 * half, 0)):
        found = [label if len(label) <= _NAME_CHARACTERS else _cut(label, begin, end) for label in labels]
        if len(set(found)) == len(set(labels)):
            return found
    return [f"{number}: {_cut(label, 0, 2 * half - 4)}" for number, label in enumerate(labels, start=1)]


def _cut(label: str, begin: int, end: int) -> str:
    return f"{label[:begin]}…{label[len(label) - end :]}"


def style(axes: Any, *, title: str, theme: Theme) -> None:
    """Title, colours, and no more lines than are read."""
    axes.set_title(textwrap.fill(title, _TITLE_CHARACTERS), fontsize=11, loc="left", color=theme.ink, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.grey)
    axes.tick_params(labelsize=9, colors=theme.grey, labelcolor=theme.ink)
    axes.set_facecolor("none")
    axes.set_axisbelow(True)


def _bars(
    rows: Sequence[Mapping[str, Any]], labels: Sequence[str], places: Sequence[int], text: Callable[[int | float], str]
) -> Draw:  # fmt: skip
    """Bars of the subjects at ``places``; the others are named below them."""

    def draw(axes: Any, theme: Theme) -> None:
        axes.xaxis.grid(True, color=theme.grid, linewidth=0.8)
        most = max((_top(cell) for row in rows for cell in row["cells"]), default=0) or 1
        step = len(rows) + 0.6
        for line, place in enumerate(places):
            for number, row in enumerate(rows):
                at = line * step + number
                _bar(axes, theme, row["cells"][place], at=at, place=place, faint=number > 0, most=most, text=text)
        middles = [line * step + (len(rows) - 1) / 2 for line in range(len(places))]
        axes.set_yticks(middles, [labels[place] for place in places])
        for tick in axes.get_yticklabels():
            tick.set_parse_math(False)
        axes.set_ylim(max(step * len(places), 3 * step) - 0.9, -0.7)
        axes.set_xlim(0, 1.38 * most)
        axes.xaxis.set_major_locator(_few_ticks(whole=text is _count_text))
        axes.xaxis.set_major_formatter(lambda value, _: text(value))
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        rest = [label for place, label in enumerate(labels) if place not in places]
        if rest:
            named = ", ".join(rest[:_NAMED]) + (f" and {len(rest) - _NAMED} more" if len(rest) > _NAMED else "")
            axes.set_xlabel(f"not known: {named}", fontsize=8, color=theme.grey, style="italic", parse_math=False)

    return draw


def _few_ticks(*, whole: bool = False) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=4, min_n_ticks=1 if whole else 2, integer=whole)


def _top(cell: Mapping[str, Any]) -> int | float:
    ends = [float(cell[name]) for name in ("value", "high") if cell[name] is not None]
    return max((end for end in ends if _is_drawn(end)), default=0.0)


def _is_drawn(value: int | float) -> bool:
    """Whether a value has a place on an axis; if not, words stand for it."""
    return abs(value) <= _MOST_DRAWN


def _bar(
    axes: Any, theme: Theme, cell: Mapping[str, Any], *, at: int | float, place: int, faint: bool, most: int | float,
    text: Callable[[int | float], str],
) -> None:  # fmt: skip
    value = None if cell["value"] is None else float(cell["value"])
    if value is None or not _is_drawn(value):
        words = "not known" if value is None else text(value) if math.isfinite(value) else "not finite"
        axes.text(0.01 * most, at, words, va="center", fontsize=8, color=theme.grey, style="italic")
        return
    colour = theme.subject(place)
    predicted = cell["basis"] == "predicted"
    look = {"facecolor": "none", "hatch": "////"} if predicted else {"facecolor": colour, "alpha": 0.55 if faint else 1}
    axes.barh(at, value, height=0.8, edgecolor=colour, linewidth=1, **look)
    end = value
    ends = (cell["low"], cell["high"])
    if all(tip is not None and _is_drawn(float(tip)) for tip in ends):
        end = max(end, float(cell["high"]))
        axes.plot([cell["low"], cell["high"]], [at, at], color=theme.ink, linewidth=1.2, solid_capstyle="butt")
        for tip in ends:
            axes.plot([tip, tip], [at - 0.15, at + 0.15], color=theme.ink, linewidth=1.2)
    words = text(value) + (" predicted" if predicted else "") + (", best" if cell["best"] else "")
    axes.annotate(words, (end, at), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5,
                  color=theme.ink, weight="bold" if cell["best"] else "normal")  # fmt: skip


def _efficiency(scalings: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Draw:
    def draw(axes: Any, theme: Theme) -> None:
        axes.yaxis.grid(True, color=theme.grid, linewidth=0.8)
        counts = sorted({point["devices"] for one in scalings for point in one["points"]})
        width = 0.8 / len(scalings)
        for number, one in enumerate(scalings):
            known = [point for point in one["points"] if _has_bar(point["efficiency"])]
            places = [counts.index(point["devices"]) + (number - (len(scalings) - 1) / 2) * width for point in known]
            values = [100 * point["efficiency"]["value"] for point in known]
            colour, predicted = theme.subject(one["subject"]), one["basis"] == "predicted"
            look = {"facecolor": "none", "hatch": "////"} if predicted else {"facecolor": colour}
            label = f"{labels[one['subject']]}, {one['mode']}, {one['basis']}"
            axes.bar(places, values, width=0.92 * width, edgecolor=colour, linewidth=1, label=label, **look)
            for place, point in zip(places, known, strict=True):
                _whisker(axes, theme, place, point["efficiency"])
        axes.axhline(100, linestyle="--", color=theme.grey, linewidth=1.3, label="ideal: 100 %")
        axes.set_xticks(range(len(counts)), [_count(count) for count in counts],
                        fontsize=9 if len(counts) <= 8 else 7.5)  # fmt: skip
        axes.set_xlabel("devices K", fontsize=9, color=theme.ink)
        axes.set_ylim(0, 112 + 11 * (len(scalings) + 1))
        axes.set_yticks([0, 25, 50, 75, 100])
        _legend(axes, theme, place="upper left")

    return draw


def _has_bar(interval: Mapping[str, Any] | None) -> bool:
    return interval is not None and all(end is None or _is_drawn(float(end)) for end in interval.values())


def _count(count: int) -> str:
    return f"{count / 1024:g}k" if count >= 1024 and count % 1024 == 0 else str(count)


def _whisker(axes: Any, theme: Theme, place: int | float, interval: Mapping[str, Any]) -> None:
    if interval["low"] is None or interval["high"] is None or interval["low"] == interval["high"]:
        return
    axes.plot([place, place], [100 * interval["low"], 100 * interval["high"]], color=theme.ink, linewidth=1.1)


def _legend(axes: Any, theme: Theme, *, place: str) -> None:
    legend = axes.legend(fontsize=8, frameon=False, loc=place, labelcolor=theme.ink)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names of the user's: ``$`` begins no formula


_SHORT = {
    "compute": "compute\nslower", "stragglers": "slowest\ndevice", "communication": "exposed\ncommun.",
    "input": "input\nwait", "host": "host", "rest": "rest", "step": "step", "feed": "feed",
}  # fmt: skip


def _term(name: str) -> str:
    """The name of a term in lines that fit below its bar."""
    return _SHORT.get(name) or "\n".join(textwrap.wrap(name, _TERM_CHARACTERS))


def _waterfall(one: Mapping[str, Any]) -> Draw:
    def draw(axes: Any, theme: Theme) -> None:
        terms = one["terms"]
        if not all(_has_bar(term["percent"]) for term in terms):
            axes.set_axis_off()
            axes.text(0, 0.5, f"a term beyond {_MOST_DRAWN:g} is not drawn", fontsize=9, color=theme.lost)
            return
        axes.yaxis.grid(True, color=theme.grid, linewidth=0.8)
        tops = [100.0]
        for term in terms:
            tops.append(tops[-1] - term["percent"]["value"])
        for place, value, colour in ((0, 100.0, theme.grey), (len(terms) + 1, tops[-1], theme.subject(one["subject"]))):
            axes.bar(place, value, color=colour, width=0.7)
            _above(axes, theme, place, value, f"{value:.1f}")
        for place, term in enumerate(terms, start=1):
            points = term["percent"]["value"]
            axes.bar(place, points, bottom=tops[place], color=theme.lost if points > 0 else theme.won, width=0.7)
            axes.plot([place - 1.35, place + 0.35], [tops[place - 1]] * 2, color=theme.grey, linewidth=0.8)
            _above(axes, theme, place, max(tops[place], tops[place - 1]), points_text(-points))
        names = ["ideal", *(_term(term["name"]) for term in terms), f"E_{one['devices']}"]
        axes.set_xticks(range(len(names)), names, fontsize=min(7.5, 52 / len(names)))
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_ylim(min(0, 1.1 * min(tops)), 1.12 * max(tops))

    return draw


def _above(axes: Any, theme: Theme, place: int | float, height: int | float, words: str) -> None:
    axes.annotate(words, (place, height), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8.5,
                  color=theme.ink)  # fmt: skip


def _curve(curve: Mapping[str, Any], labels: Sequence[str]) -> Draw:
    def draw(axes: Any, theme: Theme) -> None:
        axes.yaxis.grid(True, color=theme.grid, linewidth=0.8)
        drawn: list[int | float] = []
        missing = beyond = 0
        for number, line in enumerate(curve["lines"]):
            values = [float(value) for value in line["value"]]  # "nan" leaves a gap
            finite = [value if _is_drawn(value) else math.nan for value in values]
            missing += sum(not math.isfinite(value) for value in values)
            beyond += sum(map(math.isfinite, values)) - sum(map(_is_drawn, values))
            drawn += [value for value in finite if not math.isnan(value)]
            look = {"marker": "o", "markersize": 3.5} if len(values) <= 30 else {}
            rounds = number // len(theme.subjects)
            wide = (
                max(1.1, 2.6 - 0.6 * number) if len(curve["lines"]) > 1 else 1.4
            )  # a line that lies on another does not hide it
            axes.plot(line["step"], finite, color=theme.subject(line["subject"]), linewidth=wide,
                      linestyle=_LINES[rounds % len(_LINES)], label=labels[line["subject"]], **look)  # fmt: skip
        if drawn and min(drawn) > 0 and max(drawn) > _WIDE_RANGE * min(drawn):
            axes.set_yscale("log")
        elif curve["key"].endswith(SHARES):
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        said = [f"{format_count(missing, 'value')} not finite"] if missing else []
        said += [f"{format_count(beyond, 'value')} beyond {_MOST_DRAWN:g}, not drawn"] if beyond else []
        told = f"step ({'; '.join(said)})" if said else "step"
        axes.set_xlabel(told, fontsize=9, color=theme.lost if said else theme.ink)
        axes.xaxis.set_major_locator(_few_ticks(whole=True))
        axes.xaxis.set_major_formatter(lambda value, _: _count_text(value))
        _legend(axes, theme, place="best")

    return draw
