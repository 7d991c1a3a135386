"""The comparison as lines for a terminal.

Owns: the order and the words of the text, tables that turn into lists where they would be too wide.
Not here: the numbers (`document`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.base.units import format_count, rate_digits
from paceline.dashboard.words import printable

KIND_WORDS = {"run": "run", "scale": "scaling", "plan": "plan", "verify": "verification"}
SETTING_WORDS = {
    "scheme": "scheme", "placement": "placement", "precision": "precision", "accumulation": "microbatches",
    "devices": "devices", "batch": "batch, rows", "platform": "device",
}  # fmt: skip
FIDELITY_WORDS = {
    "equal": "equal", "differs": "differs", "replicas_equal": "replicas equal", "replicas_differ": "replicas differ",
    "unknown": "not known",
}  # fmt: skip
_BEST = "*"
_VERDICT = "= "
_SHOWN_CASES = 5
_LISTED = 6


def compare_lines(document: Mapping[str, Any], *, width: int) -> list[str]:
    """All that the document holds, but the curves.

    Args:
      width: columns of the terminal; tables that are wider become lists.
    """
    lines = [
        document["title"],
        *_section("What differs", [one["text"] for one in document["differences"]]),
        "",
        *_table(document, width=width),
        *_section("Subjects", list(_subjects(document))),
        *_unknown(document),
        *_predictions(document),
        *_scaling(document),
        *_waterfalls(document),
        *_fidelity(document),
    ]
    return [printable(line) for line in lines]  # names and reasons come from files


def setting_rows(document: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """What each subject is: title and one text a subject."""
    subjects = document["subjects"]
    rows = [("what", [_what(one) for one in subjects])]
    for name, words in SETTING_WORDS.items():
        values = [one["settings"][name] for one in subjects]
        if any(value is not None for value in values):
            rows.append((words, ["-" if value is None else _setting(value) for value in values]))
    return rows


def _what(subject: Mapping[str, Any]) -> str:
    words = KIND_WORDS[subject["kind"]]
    return words if subject["state"] is None else f"{words}, {subject['state']}"


def _setting_words(subject: Mapping[str, Any]) -> Iterator[str]:
    """``run, finished``, ``per_device``, ``4 devices``, ``256 rows`` ..."""
    nouns = {"accumulation": "microbatch", "devices": "device", "batch": "row"}
    yield _what(subject)
    for name, value in subject["settings"].items():
        if value is not None:
            yield format_count(value, nouns[name]) if name in nouns else str(value)


def _setting(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _section(head: str, lines: Sequence[str]) -> list[str]:
    return ["", head, *(f"  {line}" for line in lines)] if lines else []


def _subjects(document: Mapping[str, Any]) -> Iterator[str]:
    """Where each lies, and below it what is to be known of it."""
    for subject in document["subjects"]:
        yield f"{subject['label']}: {subject['path']}"
        yield from (f"  {note}" for note in subject["notes"])


def _table(document: Mapping[str, Any], *, width: int) -> list[str]:
    labels = [one["label"] for one in document["subjects"]]
    rows: list[tuple[str, list[str]]] = [("", labels), *setting_rows(document)]
    for row in document["rows"]:
        rows.append((row["title"], [cell_text(cell) for cell in row["cells"]]))
        intervals = [cell["interval_text"] for cell in row["cells"]]
        if any(intervals):
            rows.append(("", [f"({text})" if text else "" for text in intervals]))
        if row["verdict"]:
            rows.append((f"{_VERDICT}{row['verdict']}", []))
    wide = _columns(rows)
    if max(map(len, wide)) > width:
        wide = _lists(document, labels)
    return [*wide, *_legend(document)]


def cell_text(cell: Mapping[str, Any]) -> str:
    """``12,345 samples/s *``, where the star marks the best; ``-`` for what is not known."""
    if cell["value"] is None:
        return "-"
    basis = " (predicted)" if cell["basis"] == "predicted" else ""
    return cell["text"] + basis + (f" {_BEST}" if cell["best"] else "")


def _columns(rows: Sequence[tuple[str, list[str]]]) -> list[str]:
    """A row without cells is a verdict, which stands below its row: as a column it would double the width."""
    table = [(title, texts) for title, texts in rows if texts]
    first = max(len(title) for title, _ in table)
    widths = [max(len(texts[place]) for _, texts in table) for place in range(len(table[0][1]))]
    lines: list[str] = []
    for title, texts in rows:
        cells = "   ".join(text.ljust(size) for text, size in zip(texts, widths, strict=False))
        lines.append(f"  {title.ljust(first)}   {cells}".rstrip() if texts else f"  {''.ljust(first)}   {title}")
    return lines


def _lists(document: Mapping[str, Any], labels: Sequence[str]) -> list[str]:
    """One block a row, one line a subject that has a value."""
    first = max(map(len, labels))
    lines = [f"  {one['label'].ljust(first)}  {', '.join(_setting_words(one))}" for one in document["subjects"]]
    for row in document["rows"]:
        lines += ["", row["title"] + (f": {row['verdict']}" if row["verdict"] else "")]
        for label, cell in zip(labels, row["cells"], strict=True):
            interval = f" ({cell['interval_text']})" if cell["interval_text"] else ""
            lines += [f"  {label.ljust(first)}  {cell_text(cell)}{interval}"] if cell["value"] is not None else []
    return lines


def _legend(document: Mapping[str, Any]) -> list[str]:
    cells = [cell for row in document["rows"] for cell in row["cells"]]
    best = [f"  {_BEST} best beyond the noise"] if any(cell["best"] for cell in cells) else []
    reasons = _reasons(document)
    return [*best, *(["", "Not known", *reasons] if reasons else [])]


def _reasons(document: Mapping[str, Any]) -> list[str]:
    """Why cells are empty, once for each reason and the subjects that lack the same numbers for it."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in document["rows"]:
        for subject, cell in zip(document["subjects"], row["cells"], strict=True):
            if cell["why"]:
                found.setdefault((subject["label"], cell["why"]), []).append(row["title"])
    alike: dict[tuple[str, str], list[str]] = {}
    for (label, why), titles in found.items():
        rest = len(titles) - _LISTED
        numbers = ", ".join(titles[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
        alike.setdefault((numbers, why), []).append(label)
    return [f"  {', '.join(labels)}: {numbers}: {why}" for (numbers, why), labels in alike.items()]


def _unknown(document: Mapping[str, Any]) -> list[str]:
    return _section("Not known of any", [f"{one['title']}: {one['why']}" for one in document["unknown"]])


def _predictions(document: Mapping[str, Any]) -> list[str]:
    lines = [f"{one['title']}: {prediction_text(one)}" for one in document["predictions"]]
    return _section("Predicted against measured", [*lines, *(f"nothing: {one}" for one in document["not_predicted"])])


def prediction_text(one: Mapping[str, Any]) -> str:
    """``plan.json says 4.2 % more than runs/a: 12,345 against 11,847 samples/s; within both intervals``."""
    words = {True: "; the intervals overlap", False: "; beyond both intervals", None: ""}[one["within"]]
    apart = f" ({', '.join(one['conditions'])})" if one["conditions"] else ""
    return f"{one['text']}: {one['predicted_text']} against {one['measured_text']}{words}{apart}"


def _scaling(document: Mapping[str, Any]) -> Iterator[str]:
    for one in document["scaling"]:
        yield ""
        yield f"{one['label']}: {one['mode']} scaling, {one['basis']}"
        yield f"  {'K':>5} {'batch':>9}  {'S_K, samples/s':<34} {'ideal':<12} E_K"
        for point in one["points"]:
            rate = _with_interval(point["samples_per_s"], rate_digits)
            yield (
                f"  {point['devices']:>5,} {point['batch']:>9,}  {rate:<34} "
                f"{rate_digits(point['ideal_samples_per_s']):<12} {efficiency_text(point)}"
            )


def efficiency_text(point: Mapping[str, Any]) -> str:
    """``95.1 % (93.8 to 96.0)``; why none is claimed."""
    if point["efficiency"] is None:
        return f"not claimed: {point['not_claimed']}"
    if point["devices"] == 1:
        return "100 %"
    return _with_interval(point["efficiency"], lambda share: f"{100 * share:.1f}", " %")


def _with_interval(interval: Mapping[str, Any], text: Any, unit: str = "") -> str:
    value = text(interval["value"]) + unit
    if interval["low"] is None or interval["high"] is None:
        return value
    return f"{value} ({text(interval['low'])} to {text(interval['high'])})"


def _waterfalls(document: Mapping[str, Any]) -> Iterator[str]:
    for one in document["waterfalls"]:
        yield ""
        yield (
            f"{one['label']}: from 100 % to {one['efficiency_percent']:.1f} % on "
            f"{format_count(one['devices'], 'device')}, {one['basis']}, in percent points"
        )
        for term in one["terms"]:
            yield f"  {term['title']:<51} {_with_interval(lost(term['percent']), points_text)}"


def lost(percent: Mapping[str, Any]) -> dict[str, Any]:
    """Percent points as they are printed, a loss below zero: the ends of the interval change places."""
    ends = (percent["high"], percent["low"])
    low, high = (None if end is None else -end for end in ends)
    return {"value": -percent["value"], "low": low, "high": high}


def points_text(points: int | float) -> str:
    """``-4.2``; no sign for what rounds to nothing."""
    rounded = round(points, 1)
    return f"{rounded:+.1f}" if rounded else "0.0"


def _fidelity(document: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for one in document["fidelity"]:
        lines.append(f"{one['label']}: {FIDELITY_WORDS[one['verdict']]}: {one['text']}")
        bad = [row for row in one["rows"] if row["verdict"] != "equal"]
        lines += [f"  {case_text(row)}" for row in bad[:_SHOWN_CASES]]
        if len(bad) > _SHOWN_CASES:
            lines.append(f"  and {format_count(len(bad) - _SHOWN_CASES, 'more program')}")
    return _section("Fidelity", lines)


def case_text(row: Mapping[str, Any]) -> str:
    """``per_device on 2 devices, float32: differs, 1.2e-03 where 7.6e-06 is allowed``."""
    found = "not finite" if row["deviation"] is None else f"{float(row['deviation']):.1e}"
    return (
        f"{row['case']} on {format_count(row['devices'], 'device')}, {row['precision']}: {row['verdict']}, "
        f"{found} where {float(row['tolerance']):.1e} is allowed"
    )
