"""The picture can be read: no label lies on another, none is cut, and names that are shortened stay different."""

from __future__ import annotations

import itertools
import warnings

import pytest

from paceline.dashboard.compare.document import compare_document
from paceline.dashboard.compare.figure import figure
from paceline.dashboard.compare.panels import LIGHT, short_labels
from paceline.dashboard.compare.subjects import load_subject
from tests.dashboard.compare.made_results import interval, scale_document, write
from tests.dashboard.made_runs import LiveRun, make_run


def drawn(*paths):
    """The sheet, laid out, and where each of its texts lies [pixels]."""
    backend = pytest.importorskip("matplotlib.backends.backend_agg", reason="needs the extra report")
    sheet = figure(compare_document([load_subject(path) for path in paths]), LIGHT)
    backend.FigureCanvasAgg(sheet)
    sheet.draw_without_rendering()
    return sheet


def test_the_names_of_a_waterfall_do_not_overlap(tmp_path):
    """Of all terms that `scale` measures, and one that it may measure later, beside panels with long names."""
    terms = ("compute", "stragglers", "communication", "input", "host", "rest", "a term of later")
    document = scale_document()
    document["scalings"][0]["points"][1]["waterfall_percent"] = {name: interval(-10.5) for name in terms}
    sheet = drawn(write(tmp_path / "scale-of-image-rank.json", document), make_run(tmp_path / "a", steps=30))
    [axes] = [one for one in sheet.axes if "E_2" in one.get_title(loc="left")]
    boxes = sorted((label.get_window_extent() for label in axes.get_xticklabels()), key=lambda box: box.x0)
    assert len(boxes) == len(terms) + 2
    assert all(first.x1 < second.x0 for first, second in itertools.pairwise(boxes))


@pytest.mark.parametrize("key", ["train/loss", "train/rows", "speed/step_s", "input/wait_s", "memory/peak_bytes"])
@pytest.mark.parametrize("value", [1e300, 1.7e308, 1e-300])
def test_a_number_near_the_ends_of_a_float_is_drawn_without_a_warning(tmp_path, key, value):
    """Nor is one given where it is read; no panel is pushed away by its digits."""
    live = LiveRun(tmp_path / "b")
    for step in range(250):
        live.step(**{key: -value if key == "train/loss" and step % 2 else value / (1 + step % 3)})
    ordinary = make_run(tmp_path / "a", steps=250)
    with warnings.catch_warnings(action="error"):
        sheet = drawn(ordinary, live.path)
        drawn(live.path)
    assert min(axes.get_window_extent().width for axes in sheet.axes) > sheet.bbox.width / 6


def test_what_stands_above_the_panels_is_within_the_sheet(tmp_path):
    """Long names, of which some differ only in their begin, and a title without a space that is as long."""
    runs = [make_run(tmp_path / f"{'W' * 30}-{name}" / ("MMMM-" * 12), steps=30, scheme=name, task="M" * 200)
            for name in ("per_device", "global_view")]  # fmt: skip
    sheet = drawn(*runs)
    box = sheet._suptitle.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= sheet.bbox.x1


def test_the_title_of_a_panel_is_no_wider_than_the_panel(tmp_path):
    name = f"{'scale-of-a-long-name' * 3}.json"
    sheet = drawn(write(tmp_path / name, scale_document()), write(tmp_path / "b.json", scale_document()))
    width = sheet.bbox.width / 3
    assert all(axes._left_title.get_window_extent().width <= width for axes in sheet.axes)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["a", "b"], ["a", "b"]),
        (["one-" + "x" * 30, "two-" + "x" * 30], ["one-xxxxxxx…xxxxxxxxxxx", "two-xxxxxxx…xxxxxxxxxxx"]),
        (["x" * 12 + "-one-" + "y" * 12, "x" * 12 + "-two-" + "y" * 12],
         ["…xxxxx-one-yyyyyyyyyyyy", "…xxxxx-two-yyyyyyyyyyyy"]),
        (["x" * 40 + name + "y" * 40 for name in "ab"], ["1: …" + "y" * 18, "2: …" + "y" * 18]),
    ],
)  # fmt: skip
def test_names_are_shortened_so_that_they_stay_different(labels, found):
    assert short_labels(labels) == found
