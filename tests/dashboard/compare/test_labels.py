"""What subjects are called: the shortest end of a path that no other has."""

from __future__ import annotations

import json

import pytest

from paceline.dashboard.compare.document import compare_document
from paceline.dashboard.compare.figure import figure
from paceline.dashboard.compare.page import page
from paceline.dashboard.compare.panels import LIGHT
from paceline.dashboard.compare.subjects import load_subject
from paceline.dashboard.compare.text import compare_lines
from tests.dashboard.compare.made_results import plan_document, write
from tests.dashboard.made_runs import make_run


def labels(*paths):
    return [one["label"] for one in compare_document([load_subject(path) for path in paths])["subjects"]]


@pytest.mark.parametrize(
    ("folders", "found"),
    [
        (["x/a", "y/b"], ["a", "b"]),
        (["x/a", "y/a"], ["x/a", "y/a"]),
        (["x/a", "y/a", "y/b"], ["x/a", "y/a", "b"]),
        (["p/x/a", "q/x/a"], ["p/x/a", "q/x/a"]),
        (["a", "x/a"], ["{root}/a", "x/a"]),
        (["a", "a"], ["a", "a (2)"]),
        (["a (2)", "a", "a"], ["a (2)", "a", "a (3)"]),
    ],
)
def test_a_label_is_the_shortest_end_that_tells_a_path_from_the_others(tmp_path, folders, found):
    paths = [tmp_path / folder for folder in folders]
    for path in dict.fromkeys(paths):
        make_run(path, steps=3)
    assert labels(*paths) == [one.replace("{root}", tmp_path.name) for one in found]


def test_one_folder_by_two_names_is_the_same_subject_twice(tmp_path, monkeypatch):
    """A run is its folder, its run.json, or a way around."""
    run = make_run(tmp_path / "a", steps=3)
    monkeypatch.chdir(tmp_path)
    assert labels("a", run / "run.json", "./a/../a/") == ["a", "a (2)", "a (3)"]
    monkeypatch.chdir(run)
    assert labels(".") == ["a"]


def test_a_whole_path_stands_once_in_text_and_page_and_below_the_numbers(tmp_path):
    """With the notes of its subject; on the page the head of a column holds it too, for who points at it."""
    run = make_run(tmp_path / "far" / "away" / "a", steps=60, restart_at=31)
    plan = write(tmp_path / "far" / "plan.json", plan_document(notes=["a note"]))
    document = compare_document([load_subject(run), load_subject(plan)])
    lines = compare_lines(document, width=200)
    text = "\n".join(lines)
    place = lines.index("Subjects")
    assert lines[place + 1 : place + 3] == [f"  a: {run}", "    it was started 2 times"]
    assert place > next(number for number, line in enumerate(lines) if "throughput" in line)
    assert text.count(str(run)) == text.count(plan) == text.count("a note") == 1
    html = page(document)
    assert html.count(f"<code>{run}</code>") == 1 and html.count(f'title="{run}"') == 1
    assert html.count(str(run)) == 2
    assert html.index("it was started") > html.index("</table>")


def test_no_panel_of_the_picture_names_a_whole_path(tmp_path):
    runs = [make_run(tmp_path / name, steps=60, step_s=step_s) for name, step_s in (("a", 0.02), ("b", 0.03))]
    document = compare_document([load_subject(run) for run in runs])
    sheet = figure(document, LIGHT)
    words = [text.get_text() for text in sheet.findobj(lambda one: hasattr(one, "get_text"))]
    assert "a" in words
    assert not any(str(tmp_path) in one for one in words)
    assert str(tmp_path) not in json.dumps(document["rows"])
