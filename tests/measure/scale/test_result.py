"""What is said of a measurement: text, JSON, figure, page."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from html.parser import HTMLParser

import pytest

from paceline.base.figures import FigureError
from paceline.measure.scale import figure
from paceline.measure.scale.efficiency import Waterfall
from paceline.measure.scale.figure import write_figure
from paceline.measure.scale.page import page, write_page
from paceline.measure.scale.prediction import Prediction
from paceline.measure.scale.result import UNEXPLAINED, points_text
from paceline.measure.timing import median_interval
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
    assert re.search(r"K +batch .+ E_K +predicted for 2 x A\$1\$00: S_K, E_K$", text, re.MULTILINE)
    assert "  the plan is of something else: precision bfloat16 there" in text
    assert re.search(
        r"^ +2 +20  22.2 \(.+\) +88.9 % \(88.9 to 88.9\) +24 samples/s, 93.0 % \(90.0 to 95.0\)$", text, re.M
    )
    assert "2 devices: from 100 % to 88.9 %, in percent points" in text
    assert re.search(r"compute that got slower +-4.4   \(-4.4 to -4.4\)", text)
    assert re.search(r"communication that is not hidden +-8.9 ", text)
    assert re.search(r"the rest +\+3.3 ", text)
    assert "2.4 s x 25 samples/s is about 60 rows, counted 80" in text and "DISAGREES" in text
    assert "2 devices, device 1: compute 500 ms, collectives 300 ms, of it exposed 200 ms" in text
    assert "statistical efficiency: unknown, 3 steps seen" in text
    assert "collective  size" in text
    assert "(Little's law), medians of the stage 'feed'" in text


def test_a_noise_scale_that_nobody_asked_for_is_not_called_unknown():
    """No line about it."""
    assert "statistical" not in "\n".join(dataclasses.replace(result(), noise=None).lines())


def test_a_rest_that_no_term_explains_is_said_and_on_shared_cores_the_feed_is_one_term():
    """Compute, waiting, communication and host lost nothing, the rest 50 points; with one term for the feed it is
    named."""
    assert UNEXPLAINED not in "\n".join(result().lines())
    fall = Waterfall(
        {name: median_interval([0.0]) for name in ("compute", "host")} | {"rest": median_interval([50.0])}, 50.0
    )
    made = result()
    point = dataclasses.replace(made.scalings[0].points[1], waterfall=fall)
    made = dataclasses.replace(made, scalings=(dataclasses.replace(made.scalings[0], points=(point,)),))
    assert UNEXPLAINED in "\n".join(made.lines())
    text = "\n".join(result(shares_cores=True).lines())
    assert re.search(r"the feed, on cores that it shares with the compute +\+4.4 ", text)
    assert "waiting for batches" not in text and "the rest" not in text


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
    assert "gradient noise scale: 20 rows (± 12 %), over the first 100 steps" in text


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
        "other_load", "plan",
    }  # fmt: skip
    scaling = content["scalings"][0]
    assert scaling["mode"] == "weak" and scaling["time_to_loss"]["devices"] >= 1
    assert scaling["time_to_loss"].keys() == {"devices", "decided", "is_end", "curve", "saved"}
    assert scaling["time_to_loss"]["saved"][0].keys() == {"value", "low", "high", "coverage"}
    assert content["plan"]["machine"] == "2 x A$1$00" and content["noise"]["steps"] == 100
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
    for words in (
        "88.9 %",
        "ideal: K S_1",
        "predicted for 2 x A$1$00",
        "devices share cores",
        "not claimed",
        "-4.4",
        "a &lt;task&gt; on",
    ):
        assert words in drawn
    assert drawn == figure.figure_svg(result())
    busy = dataclasses.replace(result(), other_load=0.5)
    assert "other programs used 50 % of the cores" in figure.figure_svg(busy) and "other programs" not in drawn


@needs_matplotlib
def test_names_with_dollars_are_drawn_as_they_are():
    """``$`` begins a formula for matplotlib, and this one has no end."""
    assert "price$ {of on simulated" in figure.figure_svg(result(task="price$ {of"))
    assert "$\\badone$" in figure.figure_svg(result(task=r"$\badone$"))


@needs_matplotlib
def test_the_bars_of_the_waterfall_stand_on_zero_and_a_low_end_of_zero_is_drawn():
    """So that their areas compare; a plan that says 0 to 95 % gets a line from 0."""
    drawn = figure._figure(result(predicted={2: Prediction(24.0, 0.93, 0.0, 0.95)}))
    middle, right = drawn.axes[1:]
    assert right.get_ylim()[0] == 0
    (line,) = (line for line in middle.lines if list(line.get_xdata()) == [1.88, 1.88])
    assert list(line.get_ydata()) == [0, 95]


@needs_matplotlib
def test_what_cannot_be_drawn_is_an_error_that_names_the_file(monkeypatch, tmp_path):
    """Whatever the drawing raises."""

    def broken(*arguments, **named):
        raise ValueError("no font\nmore")

    monkeypatch.setattr(figure, "_figure", broken)
    for name, write in (("a.png", write_figure), ("a.html", write_page)):
        with pytest.raises(FigureError) as error:
            write(result(), str(tmp_path / name))
        assert f"{name} could not be drawn: ValueError: no font" in error.value.what and "more" not in error.value.what
        assert "--json FILE" in error.value.fix


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
        "gradient noise scale: 20 rows",
        "of it exposed 200 ms",
        "each doubling pays",
        "96.9 % intervals of the median",
        "predicted for 2 x A$1$00",
        "precision bfloat16 there",
    ):
        assert words in text
