"""The comparison as one HTML file that needs nothing else.

Owns: the page: words, tables, inlined pictures, light and dark, phone and desk.
Not here: the numbers (`document`), the pictures (`panels`).
Invariant: no script, no address, every text escaped; the file is replaced whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from paceline.base.figures import drawing
from paceline.base.units import rate_digits
from paceline.dashboard.compare.figure import panel_svg
from paceline.dashboard.compare.panels import DARK, LIGHT, Theme, panels
from paceline.dashboard.compare.text import FIDELITY_WORDS, case_text, efficiency_text, prediction_text, setting_rows

_NAMES = ("paper", "ink", "grey", "grid", "lost", "won")
_STYLE = """
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1240px;
  margin: 0 auto; padding: 1.2em 1em 3em; }
h1 { font-size: 1.4em; margin: 0.2em 0; } h2 { font-size: 1.1em; margin: 2em 0 0.4em; }
ul { padding-left: 1.2em; margin: 0.4em 0; } li { color: var(--grey); overflow-wrap: anywhere; }
li.serious { color: var(--ink); }
.wide { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 30%, transparent) left / 48px 100% no-repeat local,
  linear-gradient(to left, var(--paper) 30%, transparent) right / 48px 100% no-repeat local,
  linear-gradient(to right, var(--grey), transparent) left / 14px 100% no-repeat scroll,
  linear-gradient(to left, var(--grey), transparent) right / 14px 100% no-repeat scroll; }
table { border-collapse: collapse; margin: 0.4em 0 1em; }
th, td { text-align: left; vertical-align: top; padding: 0.3em 1em 0.3em 0; border-bottom: 1px solid var(--grid); }
th { font-weight: 600; } tbody th { color: var(--grey); font-weight: 400; min-width: 9em; }
td { font-variant-numeric: tabular-nums; } small { display: block; color: var(--grey); }
.best { font-weight: 700; } .none { color: var(--grey); font-style: italic; }
.verdict { color: var(--grey); min-width: 8em; }
.bad { color: var(--lost); font-weight: 600; }
.subjects b { color: var(--ink); }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr)); gap: 1em; }
.points td { white-space: nowrap; }
svg { width: 100%; height: auto; }
@media (max-width: 700px) {
  .numbers thead { display: none; }
  .numbers, .numbers tbody, .numbers tr, .numbers th, .numbers td { display: block; width: 100%; }
  .numbers th, .numbers td { border: 0; padding: 0.1em 0; }
  .numbers tbody th { font-weight: 600; color: var(--ink); padding-top: 0.8em; border-top: 1px solid var(--grid); }
  .numbers td[data-of] { padding-left: 0.9em; overflow-wrap: anywhere; }
  .numbers td[data-of]::before { content: attr(data-of) ": "; color: var(--grey); }
  .numbers small { display: inline; margin-left: 0.5em; }
}
"""


def write_page(document: Mapping[str, Any], path: str) -> None:
    """Write the page. Raises: FigureError."""
    with drawing(path) as temporary:
        temporary.write_text(page(document), encoding="utf-8", errors="backslashreplace")


def page(document: Mapping[str, Any]) -> str:
    """The page as text."""
    title = escape(document["title"])
    # No script can run even if a text slipped through: what is inlined are styles.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join([
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{title}</title><style>{_colours()}{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        *_differences(document),
        *_table(document),
        *_subjects(document),
        *_predictions(document),
        *_pictures(document),
        *_scaling(document),
        *_fidelity(document),
        *_unknown(document),
        "</body></html>",
        "",
    ])  # fmt: skip


def _colours() -> str:
    return (
        f":root {{ {_variables(LIGHT)} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
    )


def _variables(theme: Theme) -> str:
    own = [f"--{name}: {getattr(theme, name)};" for name in _NAMES]
    return " ".join([*own, *(f"--subject{place}: {colour};" for place, colour in enumerate(theme.subjects))])


def _pictures(document: Mapping[str, Any]) -> Iterator[str]:
    yield '<h2>Pictures</h2><div class="pictures">'
    for panel in panels(document):
        yield f'<figure aria-label="{escape(panel.title)}" style="margin:0">{_themed(panel_svg(panel, LIGHT))}</figure>'
    yield "</div>"


def _themed(svg: str) -> str:
    """Colours of the light theme as variables, which the dark one gives other values."""
    for name in _NAMES:
        svg = svg.replace(getattr(LIGHT, name), f"var(--{name})")
    for place, colour in enumerate(LIGHT.subjects):
        svg = svg.replace(colour, f"var(--subject{place})")
    return svg


def _differences(document: Mapping[str, Any]) -> Iterator[str]:
    if document["differences"]:
        yield "<h2>What differs</h2>"
        yield _list((one["text"], "serious" if one["serious"] else "") for one in document["differences"])


def _list(items: Iterable[tuple[str, str]]) -> str:
    return "<ul>" + "".join(f'<li class="{kind}">{escape(text)}</li>' for text, kind in items) + "</ul>"


def _table(document: Mapping[str, Any]) -> Iterator[str]:
    labels = [one["label"] for one in document["subjects"]]
    head = "".join(f'<th title="{escape(one["path"])}">{escape(one["label"])}</th>' for one in document["subjects"])
    rows = [
        _numbers_line(escape(words), labels, [escape(text) for text in texts])
        for words, texts in setting_rows(document)
    ]
    for row in document["rows"]:
        better = {"higher": "higher is better", "lower": "lower is better", "none": ""}[row["better"]]
        about = f"{escape(row['title'])}<small>{better}</small>"
        rows.append(_numbers_line(about, labels, map(_cell, row["cells"]), verdict=row["verdict"]))
    yield (
        f'<h2>Numbers</h2><div class="wide"><table class="numbers"><thead><tr><th></th><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _numbers_line(head: str, labels: Sequence[str], cells: Iterable[str], *, verdict: str = "") -> str:
    """A row, its verdict first, which many subjects would push off the edge.

    Each cell says whose it is, for phones, where cells stand below each other.
    """
    found = [f'<td data-of="{escape(label)}">{cell}</td>' for label, cell in zip(labels, cells, strict=True)]
    return f'<tr><th>{head}</th><td class="verdict">{escape(verdict)}</td>{"".join(found)}</tr>'


def _line(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _cell(cell: Mapping[str, Any]) -> str:
    if cell["value"] is None:
        return f'<span class="none">not known</span><small>{escape(cell["why"])}</small>'
    basis = "" if cell["basis"] == "measured" else f" {cell['basis']}" if cell["basis"] != "compiler" else ""
    value = f'<span class="{"best" if cell["best"] else ""}">{escape(cell["text"] + basis)}</span>'
    best = ", best" if cell["best"] else ""
    told = [cell["interval_text"], cell["detail"]]
    return value + best + "".join(f"<small>{escape(text)}</small>" for text in told if text)


def _predictions(document: Mapping[str, Any]) -> Iterator[str]:
    found = [(f"{one['title']}: {prediction_text(one)}", "serious") for one in document["predictions"]]
    found += [(f"nothing: {text}", "") for text in document["not_predicted"]]
    if found:
        yield "<h2>Predicted against measured</h2>"
        yield _list(found)


def _scaling(document: Mapping[str, Any]) -> Iterator[str]:
    for one in document["scaling"]:
        rows = "".join(
            _line(
                [
                    f"{point['devices']:,}",
                    f"{point['batch']:,}",
                    rate_digits(point["samples_per_s"]["value"]),
                    rate_digits(point["ideal_samples_per_s"]),
                    efficiency_text(point),
                ]
            )
            for point in one["points"]
        )
        head = "<tr><th>K</th><th>batch</th><th>samples/s</th><th>ideal</th><th>E_K</th></tr>"
        yield f"<h2>{escape(one['label'])}: {one['mode']} scaling, {one['basis']}</h2>"
        yield f'<div class="wide"><table class="points"><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _fidelity(document: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Fidelity</h2><ul>"
    for one in document["fidelity"]:
        kind = "bad" if "differ" in one["verdict"] else "serious" if one["verdict"] == "equal" else ""
        verdict = FIDELITY_WORDS[one["verdict"]]
        yield f'<li class="{kind}">{escape(one["label"])}: {verdict}: {escape(one["text"])}</li>'
        for row in one["rows"]:
            if row["verdict"] != "equal":
                yield f"<li>{escape(case_text(row))}</li>"
    yield "</ul>"


def _unknown(document: Mapping[str, Any]) -> Iterator[str]:
    if document["unknown"]:
        yield "<h2>Not known of any</h2>"
        yield _list((f"{one['title']}: {one['why']}", "") for one in document["unknown"])


def _subjects(document: Mapping[str, Any]) -> Iterator[str]:
    """Where each lies, and below it what is to be known of it."""
    yield '<h2>Subjects</h2><ul class="subjects">'
    for one in document["subjects"]:
        notes = _list((note, "") for note in one["notes"]) if one["notes"] else ""
        yield f"<li><b>{escape(one['label'])}</b> <code>{escape(one['path'])}</code>{notes}</li>"
    yield "</ul>"
