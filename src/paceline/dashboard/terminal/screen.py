"""A frame as lines of text.

Owns: what stands where, in how many columns and rows.
Not here: the numbers (`terminal.frame`), drawing again and again (`terminal.live`).
Invariant: no line is wider than the terminal and, with a height, there are no more lines than it has; nothing is told
by colour or weight alone; text from files reaches the terminal without control characters.

From the top: the runs, the pipeline of the shown one, its curves, its replicas, what happened. Where rows are short,
the oldest events go first, then runs.
"""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from paceline.base.units import format_count, format_duration, format_percent, rate_digits
from paceline.dashboard.follow.derived import RECENT_SAMPLES_PER_S
from paceline.dashboard.terminal.frame import CURVES, Frame
from paceline.dashboard.terminal.sparkline import BLOCKS, sparkline
from paceline.dashboard.words import printable

_NAMES = {
    "input": "input", "prefetch": "prefetch", "shard": "shard", "forward_backward": "fwd/bwd",
    "all_reduce": "all-reduce", "update": "update", "output": "output",
}  # fmt: skip
_LABELS = {
    "train/loss": "loss", "speed/recent_samples_per_s": "samples/s", "speed/step_p50_s": "step p50",
    "speed/step_p95_s": "step p95", "input/wait_s": "input wait",
}  # fmt: skip
_TILES = {"equal": "=", "odd": "X", "unknown": "?", "not_audited": "."}
_LEAST_RUNS = 2
_LEAST_EVENTS = 3
_MOST_RUNS = 8  # with the line that says how many more
_MOST_PROBLEMS = 2
_LEAST_COLUMNS = 20
_MOST_TILES = 64


def screen(
    frame: Frame, *, width: int, height: int | None = None, blocks: str = BLOCKS, keys: bool = False
) -> list[Text]:
    """The lines of a frame.

    Args:
      width: columns of the terminal.
      height: its rows; None for a snapshot that may scroll.
      blocks: characters of the curves, from low to high.
      keys: say which keys do what.
    """
    about = [] if frame.shown is None else _about(frame, width=width, blocks=blocks)
    foot = [Text("up/down: another run   q: quit", style="dim")] if keys else []
    problems = _problems(frame, most=None if height is None else _MOST_PROBLEMS)
    rows = len(frame.runs)
    if height is not None:
        room = height - len(about) - len(foot) - len(problems) - 2 - _LEAST_EVENTS
        if rows > min(_MOST_RUNS, room):  # one line then says how many more
            rows = min(rows, max(_LEAST_RUNS, min(_MOST_RUNS, room) - 1))
    top = [_head(frame), *_runs(frame, width=width, rows=rows), *problems]
    left = 10 if height is None else height - len(top) - len(about) - len(foot)
    told = _events(frame, rows=left)
    filler = [] if height is None else [Text("")] * (left - len(told))
    lines = [*top, *about, *told, *filler, *foot]
    for line in lines:
        line.truncate(width, overflow="ellipsis" if blocks == BLOCKS else "crop")
    return lines[:height]


def _head(frame: Frame) -> Text:
    running = sum(one["state"] == "running" for one in frame.runs)
    count = f"{len(frame.runs)} run{'' if len(frame.runs) == 1 else 's'}, {running} running"
    return Text(f"paceline watch  {printable(frame.root)}  {count}", style="bold")


def _problems(frame: Frame, *, most: int | None) -> list[Text]:
    """That the run is gone, what is wrong with the shown one, then with the folder; ``most`` of them, None for all."""
    gone = [] if frame.removed is None else [f"run {frame.removed} was removed"]
    problems = [*gone, *frame.summary.get("problems", []), *frame.problems]
    told = [Text(f"! {printable(problem)}") for problem in problems[:most]]
    more = len(problems) - len(told)
    return [*told, Text(f"! and {more} more: --terminal --once shows all")] if more else told


def _runs(frame: Frame, *, width: int, rows: int) -> list[Text]:
    """The shown run and those around it."""
    if not frame.runs:
        return [Text("no run here yet; it will show when it begins")]
    ids = [one["id"] for one in frame.runs]
    place = ids.index(frame.shown) if frame.shown in ids else 0
    start = max(0, min(place - rows // 2, len(ids) - rows))
    name_columns = max(12, min(max(cell_len(printable(id)) for id in ids) + 1, width - 55))
    heading = f"  {set_cell_size('run', name_columns)}{'state':<9}{'step':>15} {'loss':>9} {'samples/s':>11}"
    lines = [Text(heading, style="dim")]
    for one in frame.runs[start : start + rows]:
        mark = ">" if one["id"] == frame.shown else " "
        step = _whole(one["step"]) + ("" if one["steps"] is None else f"/{one['steps']:,}")
        loss, rate = _number(one["loss"]), _rate(one["samples_per_s"])
        name = set_cell_size(printable(one["id"]), name_columns - 1) + " "
        line = f"{mark} {name}{one['state']:<9}{step:>15} {loss:>9} {rate:>11}"
        lines.append(Text(line, style="bold" if mark == ">" else ""))
    if more := len(ids) - rows:
        lines.append(Text(f"  {more} more", style="dim"))
    return lines


def _about(frame: Frame, *, width: int, blocks: str) -> list[Text]:
    return [
        Text(""),
        *_pipeline(frame.pipeline, width=width),
        *_flow(frame, width=width),
        Text(""),
        *_curves(frame, width=width, blocks=blocks),
        *_replicas(frame.replicas, width=width),
    ]


def _pipeline(document: dict[str, Any], *, width: int) -> list[Text]:
    """Names, times and shares of the stages, one below the other, the bottleneck between stars."""
    stages = document.get("stages", [])
    bottleneck = (document.get("bottleneck") or {}).get("stage")
    names = [f"*{_NAMES[one['id']]}*" if one["id"] == bottleneck else _NAMES[one["id"]] for one in stages]
    times = [_stage_time(one, document) for one in stages]
    shares = ["" if one["share"] is None else format_percent(one["share"]) for one in stages]
    widths = [max(map(cell_len, cells)) for cells in zip(names, times, shares, strict=True)]
    spare = max(0, width - sum(widths) - 2 * len(widths)) // max(1, len(widths) - 1)
    arrow = {0: " ", 1: " > "}.get(spare, " " + "-" * min(spare - 1, 6) + "> ")
    gap = " " * len(arrow)
    lines = [
        Text(joint.join(set_cell_size(cell, size) for cell, size in zip(cells, widths, strict=True)))
        for joint, cells in ((arrow, names), (gap, times), (gap, shares))
    ]
    if bottleneck is not None:
        place = names.index(f"*{_NAMES[bottleneck]}*")
        start = sum(widths[:place]) + place * len(arrow)
        lines[0].stylize("bold reverse", start, start + len(names[place]))
    return lines


def _stage_time(stage: dict[str, Any], document: dict[str, Any]) -> str:
    """Seconds; of prefetch what is ready, of the output the loss."""
    if stage["id"] == "prefetch":
        queue = document["queue"]
        return f"{_ready(queue['batches'])} of {_whole(queue['depth'])}"
    if stage["id"] == "output":
        return _number(document["loss"])
    modelled = "~" if stage["basis"] == "modelled" else ""
    return "-" if stage["seconds"] is None else modelled + _duration(stage["seconds"])


def _flow(frame: Frame, *, width: int) -> list[Text]:
    """Shapes, L, T, P and the rows in flight, and the bottleneck in words."""
    document = frame.pipeline
    lines = []
    for whole, part in list(zip(document["shapes"]["input"], document["shapes"]["shard"], strict=True))[:1]:
        name = printable(whole["name"]) or "batch"
        lines.append(Text(f"{name} {_shape(whole)} -> {_whole(document['devices'])} x {_shape(part)}"))
    rate, latency = _rate(document["samples_per_s"]), _duration(document["latency_s"])
    flight = f"L {latency} x T {rate} samples/s = P {_whole(document['little_rows'])} rows"
    if document["rows_in_flight"] is not None:
        flight += f"; really in flight {_whole(document['rows_in_flight'])}"
    lines.append(Text(flight))
    if document["bottleneck"]:
        lines += _wrapped(f"*bottleneck*: {printable(document['bottleneck']['why'])}", width=width)
    elif frame.unread:
        lines.append(Text(f"reading: {format_percent(1 - frame.unread)} of the events"))
    return lines


def _curves(frame: Frame, *, width: int, blocks: str) -> list[Text]:
    """A line each: the curve, its last value, its lowest and highest. The last rate is the one in the list of runs,
    which is of several steps: that of one step leaps."""
    lines = []
    for metric in CURVES:
        curve = frame.series.get(metric.key)
        if curve is None or not curve["step"]:
            continue
        values = [float(value) for value in curve["value"]]
        finite = [value for value in values if math.isfinite(value)]
        shown = _duration if metric.unit == "s" else _rate if metric.unit == "samples/s" else _number
        low, high = shown(min(finite, default=math.nan)), shown(max(finite, default=math.nan))
        last = frame.summary["samples_per_s"] if metric is RECENT_SAMPLES_PER_S else values[-1]
        words = f"{shown(last):>9}  {low} to {high}"
        drawn = sparkline(curve["step"], values, width=max(10, width - 11 - 32), blocks=blocks)
        lines.append(Text(f"{_LABELS[metric.key]:<11}{set_cell_size(drawn, max(10, width - 43))} {words}"))
    return lines


def _replicas(document: dict[str, Any], *, width: int) -> list[Text]:
    """Tiles of the devices with the last audit, then processes that lag."""
    tiles = document["tiles"]
    drawn = "".join(_TILES[tile["state"]] for tile in tiles[:_MOST_TILES]) + ("+" if len(tiles) > _MOST_TILES else "")
    audit, counts = document["audit"], document["counts"]
    odd = [tile for tile in tiles if tile["state"] == "odd"]
    if audit is None:
        said = "one device: there is nothing to compare" if len(tiles) == 1 else "not compared yet"
    elif odd:
        leaves = ", ".join(printable(leaf) for leaf in odd[0]["leaves"][:2])
        said = f"device {odd[0]['device']} DIFFERS in {leaves} (audit at step {audit['step']:,})"
    elif audit["differing"]:
        said = f"{_whole(audit['differing'])} leaves DIFFER (audit at step {audit['step']:,})"
    else:
        said = f"equal (audit of {_whole(audit['compared'])} leaves at step {audit['step']:,})"
    several = ", ".join(
        format_count(count, name.removesuffix("s")) for name, count in counts.items() if count and name != "divergences"
    )
    lines = [Text(f"replicas   [{drawn}] {said}" + (f"; {several}" if several else ""))]
    slow = [process for process in document["processes"] if process["straggler"]]
    return lines + [
        line for process in slow[:2] for line in _wrapped(f"! slow: {printable(process['why'])}", width=width)
    ]


def _wrapped(sentence: str, *, width: int) -> list[Text]:
    """A sentence that is worth more lines than one."""
    return [Text(line) for line in textwrap.wrap(sentence, max(_LEAST_COLUMNS, width), subsequent_indent="  ")]


def _events(frame: Frame, *, rows: int) -> list[Text]:
    """The last that happened, the newest below."""
    lines = []
    for event in frame.events[-rows:] if rows > 0 else []:
        clock = _clock(event["time_s"])
        words = event["text"] or ", ".join(f"{key} {_number(value)}" for key, value in event["values"].items())
        process = f"process {event['process']}: " if event["process"] else ""
        lines.append(Text(f"{clock} step {event['step']:>9,}  {event['kind']:<10} {process}{printable(words)}"))
    return lines


def _clock(time_s: float | str) -> str:
    """The time of day, with the date unless it is of today. What no calendar has is shown as the number it is."""
    try:
        local = time.localtime(float(time_s))
        at = time.strftime("%H:%M:%S", local)
        return at if local[:3] == time.localtime()[:3] else f"{local[0]}-{local[1]:02}-{local[2]:02} {at}"
    except (OverflowError, OSError, ValueError):
        return f"{_number(time_s)} s"


def _shape(leaf: dict[str, Any]) -> str:
    return "(" + ", ".join("?" if size is None else str(size) for size in leaf["shape"]) + ")"


def _whole(value: int | float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:,.0f}"


def _ready(batches: int | float | str | None) -> str:
    """A mean: 1.5 batches are not 2."""
    return "-" if batches is None else f"{float(batches):.2g}"


def _number(value: int | float | str | None) -> str:
    return "-" if value is None else f"{float(value):.4g}"


def _duration(value: int | float | str | None) -> str:
    return "-" if value is None else format_duration(float(value))


def _rate(value: int | float | str | None) -> str:
    return "-" if value is None else rate_digits(float(value))


def as_text(lines: Sequence[Text]) -> str:
    """The lines without any style, as a pipe gets them."""
    return "\n".join(line.plain.rstrip() for line in lines)
