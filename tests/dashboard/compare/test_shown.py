"""The comparison as text, picture and HTML file."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree
from html.parser import HTMLParser

import pytest

from paceline.base.figures import FigureError
from paceline.dashboard.compare import page as page_module
from paceline.dashboard.compare.document import compare_document
from paceline.dashboard.compare.figure import panel_svg, write_figure
from paceline.dashboard.compare.page import page, write_page
from paceline.dashboard.compare.panels import LIGHT, panels
from paceline.dashboard.compare.subjects import load_subject
from paceline.dashboard.compare.text import compare_lines
from tests.dashboard.compare.made_results import plan_document, scale_document, verify_document, write
from tests.dashboard.made_runs import make_run

NAME = 'a <script>alert(1)</script> $\\frac$ & " onclick="alert(2)'


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """Of each kind one, and a run whose name is markup, a formula and a quote."""
    tmp_path = tmp_path_factory.mktemp("subjects")
    named = tmp_path / NAME.replace("/", "")
    paths = [
        make_run(named, steps=120, nan_at=(5,), diverges_at=100),
        make_run(tmp_path / "b", steps=120, step_s=0.01),
        write(tmp_path / "scale.json", scale_document(conditions=["<img src=x onerror=alert(1)>"])),
        write(tmp_path / "plan.json", plan_document()),
        write(tmp_path / "verify.json", verify_document(differs=True)),
    ]
    return compare_document([load_subject(path) for path in paths])


@pytest.fixture(scope="module")
def html(document):
    """The page, drawn once."""
    return page(document)


class Tags(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.found, self.attributes = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        self.attributes += attrs


def test_the_page_has_no_script_and_names_no_address(html):
    tags = Tags(html)
    assert "svg" in tags.found
    assert not {"script", "img", "link", "iframe", "object", "embed", "base"} & set(tags.found)
    assert not any(name.startswith("on") for name, _ in tags.attributes)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", html)
    assert all(value.startswith("#") for name, value in tags.attributes if name in ("href", "xlink:href", "src"))


def test_a_name_stands_on_the_page_as_it_is(html):
    assert "&lt;script&gt;alert(1)" in html


def test_each_picture_is_whole_markup_of_its_own_names(document):
    """Well-formed, and what one picture defines no other does: browsers would mix them up."""
    seen = set()
    for panel in panels(document):
        svg = panel_svg(panel, LIGHT)
        xml.etree.ElementTree.fromstring(svg.replace("xlink:href", "href"))
        names = set(re.findall(r'(?:clipPath|pattern) id="([^"]+)"', svg))
        assert not names & seen
        seen |= names


def test_every_panel_is_there(document):
    titles = " | ".join(panel.title for panel in panels(document))
    for part in ("throughput", "latency", "memory", "sent", "collectives", "E_K", "from 100 % to E_2", "training loss"):
        assert part in titles


def test_the_page_says_the_same_as_the_text(document, html):
    """Each difference, verdict, prediction and reason."""
    text = "\n".join(compare_lines(document, width=400))
    parts = [one["text"] for one in document["differences"] + document["predictions"] + document["fidelity"]]
    parts += [row["verdict"] for row in document["rows"]]
    parts += [cell["why"] for row in document["rows"] for cell in row["cells"] if cell["why"]]
    parts += [note for subject in document["subjects"] for note in subject["notes"]]
    for part in parts:
        assert part in text
        assert page_module.escape(part) in html


def test_a_table_that_is_too_wide_becomes_lists(document):
    """In the table all subjects stand in the line of a number; in the list each has its own."""
    rate = "12,795 samples/s"
    wide = [line for line in compare_lines(document, width=2000) if rate in line]
    narrow = [line for line in compare_lines(document, width=60) if rate in line]
    assert "1,800 samples/s" in wide[0]
    assert "1,800 samples/s" not in narrow[0]


@pytest.mark.parametrize(("name", "magic"), [("x.png", b"\x89PNG"), ("x.SVG", b"<?xml")])
def test_the_picture_is_of_the_kind_that_its_ending_says(document, tmp_path, name, magic):
    write_figure(document, str(tmp_path / name))
    content = (tmp_path / name).read_bytes()
    assert content.startswith(magic)
    assert len(content) > 20_000


def test_one_subject_alone_is_drawn(tmp_path):
    for name, content in (("scale", scale_document()), ("verify", verify_document())):
        document = compare_document([load_subject(write(tmp_path / f"{name}.json", content))])
        write_figure(document, str(tmp_path / f"{name}.png"))
        write_page(document, str(tmp_path / f"{name}.html"))
        assert "<h1>image: 1 " in (tmp_path / f"{name}.html").read_text()


def test_a_name_cannot_tell_the_terminal_what_to_do(tmp_path):
    """A task's name with an escape sequence reaches standard output without its escape."""
    run = make_run(tmp_path / "run", steps=30, task="mine\x1b]0;title\x07")
    text = "\n".join(compare_lines(compare_document([load_subject(run)]), width=100))
    assert "mine" in text and "\x1b" not in text and "\x07" not in text


def test_many_subjects_are_drawn(tmp_path):
    runs = [make_run(tmp_path / f"run-with-a-long-name-{number}", steps=30, seed=number) for number in range(12)]
    write_figure(compare_document([load_subject(run) for run in runs]), str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").stat().st_size > 20_000


def test_a_file_that_fails_leaves_the_old_one_and_nothing_else(document, tmp_path, monkeypatch):
    target = tmp_path / "out" / "x.html"
    target.parent.mkdir()
    target.write_text("old")
    monkeypatch.setattr(page_module, "panel_svg", lambda *_: 1 / 0)
    with pytest.raises(FigureError) as caught:
        write_page(document, str(target))
    assert "x.html" in caught.value.what
    assert [(file.name, file.read_text()) for file in target.parent.iterdir()] == [("x.html", "old")]


def test_a_disk_that_refuses_leaves_the_old_file_and_nothing_else(document, tmp_path, monkeypatch):
    """The file is there whole before it takes the old one's place."""

    def refuse(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / "x.png").write_text("old")
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(FigureError, match="No space left"):
        write_figure(document, str(tmp_path / "x.png"))
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("x.png", "old")]


def test_the_verdict_stands_before_the_numbers(html):
    """Six subjects would push it off the edge of a screen."""
    line = next(part for part in html.split("<tr>") if part.startswith("<th>throughput"))
    assert re.findall(r"<td ([a-z-]+)", line)[0] == "class"
    assert re.findall(r"<td ([a-z-]+)", line)[1:] == ["data-of"] * 5
