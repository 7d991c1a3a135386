"""The Curves panel over finished runs: values, marks, zooming, smoothing, axes, exports, gaps, L x T = P."""

from __future__ import annotations

import csv
import json
import math
import re
import struct

import numpy as np
import pytest

from tests.dashboard.browser.conftest import drawn, hovered, trace, wait_until
from tests.dashboard.made_runs import Made, make_run, step_event

CHARTS = [
    "loss", "learning_rate", "gradient_norm", "samples", "latency", "input", "memory", "process_memory",
    "communication", "in_flight", "key:evaluate/accuracy",
]  # fmt: skip


def settled(page):
    """Waits until nothing is asked for any more."""
    page.wait_for_function("() => !document.querySelector('.chart[data-waiting=true]')")


def test_every_curve_of_the_run_has_its_chart(shared_page):
    page = shared_page("baseline")
    drawn(page)
    shown = page.evaluate("[...document.querySelectorAll('.chart')].map((one) => one.dataset.chart)")
    assert [chart for chart in CHARTS if chart not in shown] == []
    for chart in CHARTS:
        page.locator(f"[data-chart='{chart}']").scroll_into_view_if_needed()
        drawn(page, chart)


def test_a_curve_holds_the_values_of_the_run(shared_page):
    """All 300 steps are fewer than a chart's points, so nothing may be left out."""
    page = shared_page("sweep/zero1")
    drawn(page)
    found = trace(page, "loss", "loss")
    made = Made(steps=300, seed=2)
    expected = [step_event(made, step, process=0)["values"]["train/loss"] for step in range(1, 301)]
    assert found["x"] == list(range(1, 301))
    np.testing.assert_allclose(found["y"], expected, rtol=1e-12)


def test_a_step_computed_twice_counts_once(shared_page):
    """`baseline` was killed at step 231 and went on from 200."""
    page = shared_page("baseline")
    drawn(page)
    assert trace(page, "loss", "loss")["x"] == list(range(1, 401))


def test_a_value_that_is_not_finite_is_a_gap_with_words_and_a_mark(shared_page):
    page = shared_page("baseline")
    drawn(page)
    found = trace(page, "loss", "loss")
    assert [step for step, value in zip(found["x"], found["y"], strict=True) if value is None] == [120]
    assert "1" in page.locator("[data-chart=loss] .chart-note").inner_text()
    assert page.locator(".mark[data-kind=nonfinite]").inner_text().split() == ["not", "finite", "1"]


def test_marks_stand_under_the_curves_and_in_the_legend(open_page, server):
    """8 checkpoints on a chart of 400 steps lie apart: each is a sign of its own."""
    page = open_page(server, "baseline")
    drawn(page, traces=3)
    legend = {one.split()[0]: int(one.split()[-1]) for one in page.locator(".mark").all_inner_texts()}
    assert legend["restart"] == 1 and legend["skipped"] == 1 and legend["checkpoint"] >= 8 and legend["evaluation"] == 8

    def signs():
        return page.evaluate("""() => {
          const marks = document.querySelector("[data-chart=loss] .plot").data.find((one) => one.mode === "markers");
          return marks.x.map((x, at) => [x, marks.marker.symbol[at], marks.text[at]]);
        }""")

    assert [121, "x", "skipped update: update 121 left out: not finite"] in signs()
    assert {x for x, symbol, _ in signs() if symbol == "diamond"} == set(range(50, 401, 50))
    assert page.evaluate("document.querySelector('[data-chart=loss] .plot').layout.shapes.length") == 2
    page.locator(".mark[data-kind=checkpoint]").click()
    page.wait_for_function("""() => document.querySelector("[data-chart=loss] .plot").data
      .find((one) => one.mode === "markers").marker.symbol.every((one) => one !== "diamond")""")


def test_a_divergence_is_marked_with_what_it_says(shared_page):
    page = shared_page("sweep/zero1")
    drawn(page)
    settled(page)
    assert "divergence" in hovered(page, "loss", share=(150 - 1) / 299)


def test_hovering_tells_the_step_and_its_value(shared_page):
    page = shared_page("sweep/zero1")
    drawn(page)
    assert "step 150" in hovered(page, "loss", share=(150 - 1) / 299)


def test_several_runs_share_a_chart_with_one_colour_each(shared_page):
    page = shared_page("baseline", "sweep/zero1")
    drawn(page, traces=4)
    first, second = trace(page, "loss", "baseline train/loss"), trace(page, "loss", "zero1 train/loss")
    assert first["line"]["color"] != second["line"]["color"]
    assert first["line"]["dash"] == "solid"
    names = page.locator("[data-chart=loss] tbody th").all_text_contents()
    assert names == [f"{run} · {line}" for run in ("baseline", "sweep/zero1") for line in ("training", "evaluation")]


def test_the_table_says_in_text_what_the_chart_shows(shared_page):
    """Last, least and greatest learning rate: 0.1, 0.1/50, 0.1; and the same for a screen reader."""
    page = shared_page("sweep/zero1")
    page.locator("[data-chart=learning_rate]").scroll_into_view_if_needed()
    drawn(page, "learning_rate")
    cells = page.locator("[data-chart=learning_rate] tbody td")
    wait_until(lambda: cells.count() == 3, what="three numbers")
    assert cells.all_inner_texts() == ["0.1", "0.002", "0.1"]
    label = page.locator("[data-chart=learning_rate] .plot").get_attribute("aria-label")
    assert label == "Learning rate. Learning rate: 0.1 at step 300, least 0.002, greatest 0.1"


def test_a_process_of_its_own_has_its_own_line(shared_page):
    page = shared_page("sweep/zero1")
    page.locator("[data-chart=input]").scroll_into_view_if_needed()
    drawn(page, "input", traces=2)
    slow, usual = trace(page, "input", "wait_s@1"), trace(page, "input", "wait_s")
    assert (slow["name"], usual["name"]) == ("process 1", "process 0")
    assert page.locator("[data-chart=input] tbody th").all_inner_texts() == ["process 0", "process 1"]
    assert np.mean(slow["y"]) == pytest.approx(6 * np.mean(usual["y"]), rel=1e-6)


def test_smoothing_is_an_exponential_mean_over_a_faint_raw_curve(open_page, server):
    page = open_page(server, "sweep/zero1")
    drawn(page)
    raw = trace(page, "loss", "loss")["y"]
    page.locator(".curves-bar input[type=range]").fill("0.9")
    page.wait_for_function("() => document.querySelector('[data-chart=loss] .plot').data[0].opacity < 0.5")
    mean = weight = 0.0
    expected = []
    for value in raw:
        mean, weight = 0.9 * mean + 0.1 * value, 0.9 * weight + 0.1
        expected.append(mean / weight)
    drawn_now = page.evaluate("document.querySelector('[data-chart=loss] .plot').data.slice(0, 2).map((one) => one.y)")
    np.testing.assert_allclose(drawn_now[0], raw)
    np.testing.assert_allclose(drawn_now[1], expected, rtol=1e-9)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """A folder with two noisy runs of 6,000 steps, and their losses by id: ``b`` has NaN and a spike."""
    root = tmp_path_factory.mktemp("noisy")
    losses = {}
    for seed, run in enumerate("ab"):
        folder = make_run(root / run, steps=6000, every=6000, seed=seed)
        random = np.random.default_rng(seed)
        loss = 1 + np.exp(-np.arange(6000) / 2000) + 0.3 * random.random(6000)
        if run == "b":
            loss[4000:4200], loss[1234] = np.nan, 9.5
        lines = [json.loads(line) for line in (folder / "events-0.jsonl").read_text().splitlines()]
        for line in lines:
            if line["kind"] == "step":
                value = float(loss[line["step"] - 1])
                line["values"]["train/loss"] = value if math.isfinite(value) else "nan"
        (folder / "events-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        losses[run] = loss
    return root, losses


def test_a_long_noisy_run_is_a_line_of_means_in_a_band_of_extremes(open_page, serve, noisy):
    """Each mean is that of the steps around it; the band reaches from the least to the greatest step of the run."""
    root, losses = noisy
    page = open_page(serve(root), "a", "b")
    drawn(page, traces=4)
    for run, loss in losses.items():
        found = trace(page, "loss", f"{run} train/loss")
        steps, means = np.array(found["x"]), np.array(found["y"], float)
        assert (steps[0], steps[-1]) == (1, 6000) and 100 < len(steps) < 300
        half = round(steps[2] - steps[1]) // 2
        for step, mean in list(zip(steps, means, strict=True))[1:-1]:
            part = loss[math.ceil(step - half) - 1 : math.floor(step + half)]
            if np.isfinite(part).all():
                assert part.min() <= mean <= part.max()
        np.testing.assert_allclose(np.mean(means[np.isfinite(means)]), np.nanmean(loss), rtol=0.02)
        band = np.array([value for value in found["band"]["y"] if value is not None])
        assert (band.min(), band.max()) == pytest.approx((np.nanmin(loss), np.nanmax(loss)), rel=1e-12)
        assert np.isnan(means).any() == (run == "b")
    assert "200" in page.locator("[data-chart=loss] .chart-note").inner_text()
    order = page.evaluate(
        "document.querySelector('[data-chart=loss] .plot').data.map((one) => one.meta?.part ?? 'marks')"
    )
    assert order[:4] == ["band", "band", "line", "line"]


def test_hovering_over_a_stretch_tells_its_mean_and_range(open_page, serve, noisy):
    root, losses = noisy
    page = open_page(serve(root), "a")
    drawn(page)
    text = hovered(page, "loss", share=0.5)
    found = re.search(r"step ([\d,]+).*mean of (\d+) steps, ([\d.]+) to ([\d.]+)", text)
    assert found is not None, text
    step, n, low, high = (float(one.replace(",", "")) for one in found.groups())
    part = losses["a"][int(step - n) : int(step + n)]
    assert part.min() - 1e-3 <= low < high <= part.max() + 1e-3


def test_smoothing_says_what_it_does_and_smooths_the_means(open_page, serve, noisy):
    root, _ = noisy
    page = open_page(serve(root), "a")
    drawn(page)
    before = trace(page, "loss", "loss")
    assert page.locator(".strength").inner_text() == "off"
    page.locator(".curves-bar input[type=range]").fill("0.8")
    assert page.locator(".strength").inner_text() == "0.80: mean of about the last 5 points"
    page.wait_for_function("() => document.querySelector('[data-chart=loss] .plot').data[1].line.width > 1.7")
    after = trace(page, "loss", "loss")
    assert after["x"] == before["x"] and after["band"] == before["band"]
    assert np.abs(np.diff(after["y"])).mean() < 0.6 * np.abs(np.diff(before["y"])).mean()


def test_the_compiler_s_peak_is_a_dashed_line_of_the_memory_a_device(shared_page):
    """812 MB by the program, at every step; there is no series of it to be saved."""
    page = shared_page("sweep/zero1")
    chart = page.locator("[data-chart=memory]")
    chart.scroll_into_view_if_needed()
    drawn(page, "memory")
    found = trace(page, "memory", "program/peak_bytes")
    assert (found["x"], found["y"], found["line"]["dash"]) == ([1, 300], [812_000_000] * 2, "dash")
    assert chart.locator("tbody th").all_inner_texts() == ["compiler’s peak"]
    assert chart.get_by_role("button", name="CSV").count() == 0


def test_a_metric_of_an_evaluation_has_a_title_to_read(shared_page):
    page = shared_page("sweep/zero1")
    assert page.locator("[data-chart='key:evaluate/accuracy'] h3").inner_text() == "Accuracy (evaluation)"
    assert page.locator("[data-chart='key:train/accuracy'] h3").text_content() == "Accuracy (training)"


def test_charts_that_were_never_in_view_are_drawn_too(open_page, server):
    """When there is nothing else to do: a picture of the whole page has no empty boxes, nobody scrolls here."""
    page = open_page(server, "sweep/zero1")
    page.wait_for_function("""() => [...document.querySelectorAll("#panel-curves > .charts .chart")]
      .every((one) => one.querySelector(".js-line") && one.dataset.waiting === "false")""")
    assert page.evaluate("scrollY") == 0
    assert page.locator(".more-charts .js-line").count() == 0


def test_the_replayed_step_is_marked_on_every_chart(open_page, server):
    """Step 100 of 300 on the pipeline, then the curves: a line where the chart has step 100."""
    page = open_page(server, "sweep/zero1", tab="pipeline")
    page.locator(".rp-slider").fill("100")
    page.locator("#tab-curves").click()
    drawn(page)
    cursor = page.locator("[data-chart=loss] .cursor")
    cursor.wait_for(state="visible")
    width = page.locator("[data-chart=loss] .plot").bounding_box()["width"] - 58 - 12
    left = float(cursor.evaluate("(one) => parseFloat(one.style.left)"))
    assert left == pytest.approx(58 + width * (100 - 1) / (300 - 1), abs=1)
    assert cursor.inner_text() == "100"
    page.locator("[data-axis=time]").click()
    pressed = [page.locator(f"[data-axis={axis}]").get_attribute("aria-pressed") for axis in ("step", "time")]
    assert pressed == ["false", "true"]
    page.wait_for_function("() => document.querySelector('[data-chart=loss] .plot').layout.xaxis.ticksuffix === ' s'")
    assert cursor.is_visible()
    page.locator("#tab-pipeline").click()
    page.locator(".rp-latest").click()
    page.locator("#tab-curves").click()
    cursor.wait_for(state="hidden")


def test_an_axis_can_be_logarithmic_and_the_other_can_be_time(open_page, server):
    """Steps of 20 ms, first event 3 s before the first: step 300 ends 9 s after the start."""
    page = open_page(server, "sweep/zero1")
    drawn(page)
    page.locator("[data-chart=loss]").get_by_role("button", name="Loss: logarithmic axis").click()
    page.wait_for_function("() => document.querySelector('[data-chart=loss] .plot').layout.yaxis.type === 'log'")
    page.locator("[data-axis=time]").click()
    page.wait_for_function("() => document.querySelector('[data-chart=loss] .plot').layout.xaxis.ticksuffix === ' s'")
    assert trace(page, "loss", "loss")["x"][-1] == pytest.approx(9.0, abs=1e-3)


def test_an_axis_goes_below_zero_only_where_a_value_does(open_page, serve, tmp_path):
    """No waiting at all, a loss near zero, a reward below it, one step only: no time is negative, nor a step."""
    values = {"train/loss": 0.001, "train/reward": -2.0, "input/wait_s": 0.0}
    made = make_run(tmp_path / "one", steps=1)
    lines = [json.loads(line) for line in (made / "events-0.jsonl").read_text().splitlines()]
    for line in lines:
        line["values"] |= values if line["kind"] == "step" else {}
    (made / "events-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    make_run(tmp_path / "idle", steps=100, wait_share=0.0)
    page = open_page(serve(tmp_path), "one")

    def axis(chart, name="y"):
        page.locator(f"[data-chart='{chart}']").scroll_into_view_if_needed()
        page.wait_for_function(
            "(chart) => document.querySelector(`[data-chart='${chart}'] .plot`).data?.some(({meta}) => meta?.run)",
            arg=chart,
        )
        return page.evaluate(f"document.querySelector(`[data-chart='{chart}'] .plot`).layout.{name}axis.range")

    page.locator(".more-charts summary").click()
    assert axis("key:train/reward")[0] < -2
    assert axis("loss", "x") == [0, 2]
    page.locator('.run[data-run="idle"] .run-open').click()
    page.wait_for_selector("[data-chart='key:train/reward']", state="detached")
    for chart in ("input", "learning_rate", "loss"):
        low, high = axis(chart)
        assert -0.01 * high <= low and high > 0, chart
    page.locator("[data-axis=time]").click()
    page.wait_for_function(
        "() => document.querySelector('[data-chart=input] .plot').layout.xaxis.ticksuffix !== undefined"
    )
    assert axis("input", "x")[0] >= 0


def test_zooming_fetches_the_range_in_full_on_all_charts(open_page, serve, tmp_path):
    """5,000 steps are thinned to some 250 stretches; 200 of them are all there."""
    make_run(tmp_path / "long", steps=5000, every=5000)
    page = open_page(serve(tmp_path), "long")
    drawn(page)
    whole = trace(page, "loss", "loss")["x"]
    assert whole[0] == 1 and whole[-1] == 5000 and 100 < len(whole) < 300
    plot = page.locator("[data-chart=loss] .plot")
    box = plot.bounding_box()
    left = box["x"] + 58
    width = box["width"] - 70
    page.mouse.move(left + width * 0.50, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(left + width * 0.52, box["y"] + 62, steps=3)
    page.mouse.move(left + width * 0.54, box["y"] + 62, steps=3)
    page.mouse.up()
    said = page.evaluate(_NOTES)
    for chart in ("loss", "learning_rate"):
        page.wait_for_function(
            """(chart) => {
              const {x} = document.querySelector(`[data-chart=${chart}] .plot`).data[0];
              return x.length < 300 && x.every((step, at) => at === 0 || step === x[at - 1] + 1);
            }""",
            arg=chart,
        )
    steps = trace(page, "loss", "loss")["x"]
    assert 2400 < steps[0] < 2560 and 2600 < steps[-1] < 2800
    page.get_by_role("button", name="Whole run").click()
    page.wait_for_function("() => document.querySelector('[data-chart=loss] .plot').layout.xaxis.range[1] === 5000")
    assert trace(page, "loss", "loss")["x"] == whole
    assert said == [], "Plotly speaks English, over the headline"


_NOTES = """() => new Promise((done) => {
  setTimeout(() => done([...document.querySelectorAll(".notifier-note")].map((one) => one.textContent)), 100);
})"""


def test_the_range_can_be_typed(open_page, server):
    """Zooming without a mouse, in either order; of a range beyond the last step, what there is. The fields tell it."""
    page = open_page(server, "sweep/zero1")
    drawn(page)
    fields = [page.get_by_label(label, exact=True) for label in ("from", "to")]
    for asked, shown in [
        (("100", "120"), ["100", "120"]),
        (("140", "130"), ["130", "140"]),
        (("900", "950"), ["299", "300"]),
        (("", "40"), ["0", "40"]),
    ]:
        for field, value in zip(fields, asked, strict=True):
            field.fill(value)
        page.keyboard.press("Enter")
        page.wait_for_function(
            "(shown) => String(document.querySelector('[data-chart=loss] .plot').layout.xaxis.range) === shown",
            arg=",".join(shown),
        )
        fields[1].blur()
        assert [field.input_value() for field in fields] == shown


def test_a_chart_is_saved_as_a_picture(shared_page):
    """A PNG of twice 1100 by 560 pixels that is not empty."""
    page = shared_page("baseline")
    drawn(page)
    with page.expect_download() as waiting:
        page.locator("[data-chart=loss]").get_by_role("button", name="PNG").click()
    assert waiting.value.suggested_filename == "baseline-Loss.png"
    content = waiting.value.path().read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (2200, 1120)
    assert len(content) > 20_000


def test_every_step_is_saved_as_csv(shared_page):
    page = shared_page("sweep/zero1")
    drawn(page)
    with page.expect_download() as waiting:
        page.locator("[data-chart=gradient_norm]").get_by_role("button", name="CSV").click()
    rows = list(csv.reader(waiting.value.path().read_text().splitlines()))
    assert rows[0] == ["step", "time_s", "train/gradient_norm"]
    assert [int(row[0]) for row in rows[1:]] == list(range(1, 301))


def test_latency_times_throughput_stands_beside_what_is_really_in_flight(shared_page):
    """A batch of 256, latency of five steps: 1,280 rows by both ways, up to the jitter of the steps (5 %)."""
    page = shared_page("sweep/zero1")
    page.wait_for_function("() => /\\d/.test(document.querySelector('[data-flight=really]')?.textContent)")
    little, really = (
        int(page.locator(f"[data-flight={name}]").inner_text().split()[0].replace(",", ""))
        for name in ("little", "really")
    )
    assert really == 1280
    assert math.isclose(little, 1280, rel_tol=0.05)
    page.locator("[data-chart=in_flight]").scroll_into_view_if_needed()
    drawn(page, "in_flight", traces=2)
    assert np.mean(trace(page, "in_flight", "little_rows")["y"]) == pytest.approx(1280, rel=0.05)


def test_events_are_listed_newest_first_and_by_kind(open_page, server):
    page = open_page(server, "baseline", tab="events")
    rows = page.locator("#panel-events tbody tr")
    wait_until(lambda: rows.count() > 10, what="events")
    times = page.locator("#panel-events tbody td:first-child").all_inner_texts()
    assert times == sorted(times, reverse=True)
    page.locator("#panel-events select").select_option("skip")
    assert [text.split("\t")[1:] for text in rows.all_inner_texts()] == [
        ["121", "skipped update", "0", "update 121 left out: not finite"]
    ]


def test_a_name_with_an_at_sign_is_a_metric_of_its_own(open_page, serve, tmp_path):
    """recall@5 is no recall of process 5; input/wait_s@1 is the wait of process 1."""
    folder = make_run(tmp_path / "at", steps=60, processes=2)
    events = folder / "events-0.jsonl"
    events.write_text(events.read_text().replace('"evaluate/accuracy"', '"evaluate/recall@5"'))
    page = open_page(serve(tmp_path), "at")
    drawn(page)
    titles = page.locator(".chart h3, .chart-title").all_text_contents()
    assert any("ecall@5" in title for title in titles)
    page.locator('.chart[data-chart="input"]').scroll_into_view_if_needed()
    page.locator('.chart[data-chart="input"]').get_by_text("process 1").first.wait_for()
