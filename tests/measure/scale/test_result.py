"""What is said of a measurement: text, JSON, figure, page."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from html.parser import HTMLParser

import pytest

from paceline.base.errors import OptionError
from paceline.measure.scale import figure
from paceline.measure.scale.figure import check_figure, write_figure
from paceline.measure.scale.page import page
from paceline.measure.scale.prediction import Prediction, read_predictions
from paceline.measure.scale.result import points_text
from paceline.telemetry.document import plain
from tests.measure.scale.results import SHARE, result

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib (extra report) is not installed"
)


def test_the_report_says_throughput_efficiency_and_where_the_rest_went():
    """20 rows in 0.9 s over twice 12.5: 88.9 %; terms as losses; the plan beside it; the interval's coverage."""
    text = "\n".join(result().lines())
    assert "weak scaling: 10 rows a device (in brackets: 96.9 % intervals of the median)" in text
    assert re.search(r"^ +1 +10  12.5 \(12.5 to 12.5\) +100 % +unknown$", text, re.MULTILINE)
    assert re.search(
        r"^ +2 +20  22.2 \(.+\) +88.9 % \(88.9 to 88.9\) +24 samples/s, 93.0 % \(90.0 to 95.0\)$", text, re.M
    )
    assert "2 devices: from 100 % to 88.9 %, in percent points" in text
    assert re.search(r"compute that got slower +-4.4   \(-4.4 to -4.4\)", text)
    assert re.search(r"communication that is not hidden +-8.9 ", text)
    assert re.search(r"the rest +\+4.4 ", text)
    assert "2.4 s x 25 samples/s = 60 rows, counted 80" in text and "DISAGREES" in text
    assert "2 devices, device 1: compute 500 ms, collectives 300 ms, of it exposed 200 ms" in text
    assert "statistical efficiency: unknown, 3 steps seen, 20 are the least" in text
    assert "collective  size" in text


def test_devices_that_share_cores_show_throughput_and_claim_nothing():
    """25 rows a second and the reason; no percent, no waterfall."""
    made = result()
    text = "\n".join(made.lines())
    assert re.search(r"^ +4 +40  25 \(25 to 25\) +not claimed +unknown$", text, re.MULTILINE)
    assert f"4 devices: no efficiency is claimed, {SHARE}" in text
    assert "4 devices: from 100 %" not in text
    point = made.as_dict()["scalings"][0]["points"][2]
    assert (point["efficiency"], point["waterfall_percent"], point["not_claimed"]) == (None, None, SHARE)


def test_two_numbers_are_multiplied_where_the_noise_scale_is_known():
    """B_noise = 20 rows: a row brings 1 / (1 + 20/20) on two devices, 1 / (1 + 10/20) on one: 75 % of it, times the
    88.9 % of the hardware is 66.7 %, 1.33 times as fast."""
    text = "\n".join(result(noise_rows=20.0).lines())
    assert "2 devices: hardware 88.9 % x statistical 75.0 % = 66.7 %, 1.33 times as fast" in text
    assert "statistical efficiency: unknown" not in text


def test_the_k_beyond_which_more_devices_do_not_pay_is_said():
    """B_noise = 1 row: one device of 10 rows is beyond it already, so doubling saves nothing."""
    assert "beyond 1 device a doubling saves less than 5 % of the time" in "\n".join(result(noise_rows=1.0).lines())


@pytest.mark.parametrize(("lost", "text"), [(4.21, "-4.2"), (-3.0, "+3.0"), (0.04, "0.0"), (-0.04, "0.0")])
def test_a_loss_is_negative_and_a_gain_positive(lost, text):
    """What rounds to nothing has no sign."""
    assert points_text(lost) == text


def test_the_json_is_plain_and_holds_every_number_of_the_report():
    """Terms sum to 100 less efficiency; the keys that docs/scale.md lists."""
    content = json.loads(json.dumps(plain(result(noise_rows=20.0).as_dict())))
    assert content.keys() == {
        "task", "platform", "conditions", "rounds", "total_s", "scalings", "noise", "traces", "network",
        "other_load",
    }  # fmt: skip
    scaling = content["scalings"][0]
    assert scaling["mode"] == "weak" and scaling["time_to_loss"]["devices"] >= 1
    point = scaling["points"][1]
    assert point.keys() == {
        "devices", "batch", "samples_per_s", "step_s", "efficiency", "not_claimed", "waterfall_percent",
        "littles_law", "predicted",
    }  # fmt: skip
    assert point["efficiency"].keys() == {"value", "low", "high", "coverage"}
    lost = sum(term["value"] for term in point["waterfall_percent"].values())
    assert lost == pytest.approx(100 - 100 * point["efficiency"]["value"])
    assert point["predicted"]["efficiency"] == 0.93
    assert point["littles_law"]["agrees"] is False


@needs_matplotlib
@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_a_figure_is_written_as_its_ending_says(tmp_path, name, start):
    """The first bytes of the file."""
    write_figure(result(), str(tmp_path / name))
    assert (tmp_path / name).read_bytes().startswith(start)


@needs_matplotlib
def test_the_figure_shows_the_numbers_and_is_the_same_for_the_same_result():
    """Text as text: the efficiency, the terms, the words of the axes; the same bytes twice."""
    drawn = figure.figure_svg(result())
    for words in ("88.9 %", "ideal: K S_1", "predicted", "devices share cores", "-4.4", "a &lt;task&gt; on"):
        assert words in drawn
    assert drawn == figure.figure_svg(result())
    busy = dataclasses.replace(result(), other_load=0.5)
    assert "other programs used 50 % of the cores" in figure.figure_svg(busy) and "other programs" not in drawn


@needs_matplotlib
def test_a_figure_of_throughput_alone_can_be_drawn():
    """Two devices on one core: no efficiency anywhere but the 100 % of one device."""
    drawn = figure.figure_svg(result(unclaimed={2: "2 simulated devices share 1 core", 4: SHARE}))
    assert "no efficiency is claimed" in drawn


class _Reader(HTMLParser):
    """Every tag and every address that a page asks for."""

    def __init__(self):
        super().__init__()
        self.tags, self.addresses = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value]


@needs_matplotlib
def test_the_page_needs_nothing_else_and_escapes_what_it_shows():
    """No script, no address but those of marks inside the figure; the task's name is text."""
    text = page(result(noise_rows=20.0, unclaimed={4: "4 > 2 & more"}))
    reader = _Reader()
    reader.feed(text)
    assert {"svg", "table"} <= reader.tags and "script" not in reader.tags and "task" not in reader.tags
    assert all(address.startswith("#") for address in reader.addresses)
    for words in (
        "a &lt;task&gt;",
        "global_view &amp; more",
        "88.9 % (88.9 to 88.9)",
        "4 &gt; 2 &amp; more",
        "hardware 88.9 %",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("name", "fix"),
    [("a.gif", "use --figure a.png"), ("a", "use --figure a.png"), ("none/a.png", "folder that exists")],
)
def test_a_figure_that_could_not_be_written_is_refused_before_anything_is_measured(tmp_path, name, fix):
    """An unknown ending, none, a folder that is not there."""
    with pytest.raises(OptionError) as error:
        check_figure(str(tmp_path / name) if "/" in name else name, flag="figure")
    assert fix in error.value.fix


def test_without_matplotlib_a_figure_is_refused_with_the_extra(monkeypatch, tmp_path):
    """The package that it takes, and how to do without."""
    monkeypatch.setattr(figure.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError) as error:
        check_figure(str(tmp_path / "a.html"), flag="html", endings=(".html",))
    assert error.value.fix == "pip install 'paceline[report]', or leave the option out"


def test_predictions_are_read_by_number_of_devices(tmp_path):
    """With and without an efficiency."""
    curve = [
        {"devices": 1, "samples_per_s": 10},
        {"devices": 8, "samples_per_s": 70.0, "efficiency": 0.9, "efficiency_low": 0.8, "efficiency_high": 0.95},
    ]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"plan": {"curve": curve, "more": 1}}))
    assert read_predictions(str(path)) == {
        1: Prediction(10.0, None, None, None), 8: Prediction(70.0, 0.9, 0.8, 0.95)
    }  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [None, "{", "[1]", "{}", '{"plan": null}', '{"plan": {"curve": []}}', '{"plan": {"curve": [{"devices": 1}]}}',
     '{"plan": {"curve": [7]}}'],
)  # fmt: skip
def test_a_file_without_a_curve_is_refused_with_how_to_make_one(tmp_path, content):
    """Not there, no JSON, no curve, a curve without throughput."""
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(OptionError) as error:
        read_predictions(str(path))
    assert error.value.fix == "write it with paceline plan TASK --on MACHINE --json FILE"
