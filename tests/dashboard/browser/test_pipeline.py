"""The pipeline: what it says of a run, what moves and how fast, at which widths.

A page costs a second or two, so a test asks one page several things.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

from tests.dashboard.browser.conftest import PageServer, module, wait_until
from tests.dashboard.colours import blocks, contrast
from tests.dashboard.made_runs import LiveRun, make_run

STAGES = ["Input", "Prefetch", "Shard", "Forward / backward", "All-reduce", "Update", "Output"]
STATE = {
    "step": 7, "devices": 4, "rows": 256, "step_s": 0.1, "latency_s": 0.45, "samples_per_s": 2560.0,
    "queue": {"batches": 2, "depth": 2},
    "stages": [
        {"id": "input", "seconds": 0.03, "share": 0.0, "basis": "measured"},
        {"id": "prefetch", "seconds": 0.2, "share": None, "basis": "little"},
        {"id": "shard", "seconds": 0.02, "share": None, "basis": "measured"},
        {"id": "forward_backward", "seconds": 0.08, "share": 0.8, "basis": "modelled"},
        {"id": "all_reduce", "seconds": 0.015, "share": 0.15, "basis": "modelled"},
        {"id": "update", "seconds": 0.005, "share": 0.05, "basis": "modelled"},
        {"id": "output", "seconds": None, "share": None, "basis": "none"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def shapes_server(tmp_path_factory):
    """Runs of several numbers of devices, one that waits for input, one without times, one without steps."""
    root = tmp_path_factory.mktemp("pipelines")
    make_run(root / "eight", steps=60, devices=8, batch=1024, row_shape=(224, 224, 3), step_s=0.08)
    make_run(root / "waits", steps=60, wait_share=0.43)
    make_run(root / "sixty-four", steps=20, devices=64, batch=1024)
    make_run(root / "one", steps=20, devices=1)
    make_run(root / "old", steps=20, program=False)
    unlike = make_run(root / "unlike", steps=20, step_s=0.08)
    program = json.loads((unlike / "program.json").read_text())
    (unlike / "program.json").write_text(json.dumps(program | {"step_s": 0.01, "communication_s": 0.001}))
    make_run(root / "begun", steps=0, planned=100, ended=False)
    (root / "nothing").mkdir()
    (root / "nothing" / "run.json").write_text("{}")
    running = PageServer(root)
    yield running
    running.stop()


def open_pipeline(open_page, server, run, **options):
    page = open_page(server, run, tab="pipeline", **options)
    page.wait_for_selector(".pl-picture .pl-name")
    return page


def texts(page, selector):
    return page.locator(selector).all_text_contents()


def table(page):
    """The stages as the table behind the picture says them: by name, [time, share, basis, shape]."""
    page.locator(".pl-details summary").click()
    rows = [row.split("\t") for row in page.locator(".pl-table tbody").inner_text().splitlines()]
    return {row[0]: row[1:] for row in rows}


def percent(text):
    """The number before the first percent sign."""
    return float(re.findall(r"([\d.]+) %", text)[0])


def dots(page):
    return page.eval_on_selector_all(".pl-dot[transform]", "all => all.map((dot) => dot.getAttribute('transform'))")


def is_tall(page):
    box = page.locator(".pl-picture").bounding_box()
    return box["height"] > box["width"]


def some_frames(page):
    page.evaluate(
        """() => new Promise((done) => {
          let left = 12;
          const next = () => (left-- ? requestAnimationFrame(next) : done());
          next();
        })"""
    )


def test_every_stage_has_name_time_share_shape_and_basis(open_page, shapes_server):
    """80 ms a step (5 % of noise), 2 % of it waiting; the rest is divided 85 : 10 : 5, as program.json says."""
    page = open_pipeline(open_page, shapes_server, "eight", viewport={"width": 1440, "height": 900})
    assert texts(page, ".pl-name") == STAGES
    rows = table(page)
    basis = ["measured", "by Little’s law", "measured", *["modelled"] * 3, "–"]
    assert [row[2] for row in rows.values()] == basis
    assert [rows[stage][1] for stage in ("Prefetch", "Shard")] == ["runs beside the step"] * 2
    shares = [percent(rows[stage][1]) for stage in ("Input", "Forward / backward", "All-reduce", "Update")]
    assert shares == pytest.approx([2, 98 * 0.85, 98 * 0.1, 98 * 0.05], abs=0.5)
    assert float(rows["Forward / backward"][0].removesuffix(" ms")) == pytest.approx(80 * 0.98 * 0.85, rel=0.05)
    assert rows["Output"][:3] == ["–"] * 3
    assert rows["Input"][3] == "image (1024, 224, 224, 3) float32; label (1024,) int32"
    assert rows["Shard"][3] == "8 × [image (128, 224, 224, 3) float32; label (128,) int32]"
    shapes = texts(page, ".pl-shape")
    assert any(text.startswith("(1024, 224, 224, 3)") for text in shapes)
    assert any(text.startswith("8 × (128, 224, 224, 3)") for text in shapes)
    assert any(text.startswith("2 of 2 ready") for text in shapes)
    assert page.locator("rect.pl-lane").count() == 8


def test_the_bottleneck_is_marked_with_a_word_and_the_reason(open_page, shapes_server):
    """43 % of the step waits for input; the bar says the same, and latency x throughput is 5 batches of 256."""
    page = open_pipeline(open_page, shapes_server, "waits")
    said = page.locator(".pl-verdict").inner_text()
    assert re.fullmatch(r"bottleneck Input: the devices idle 43(\.0)? % of each step, because no batch .*", said)
    assert texts(page, ".pl-flag-text") == ["bottleneck"]
    band = page.locator(".pl-bottleneck-band").bounding_box()
    name = page.locator(".pl-name", has_text="Input").bounding_box()
    assert band["x"] <= name["x"] < band["x"] + band["width"]
    key = texts(page, ".pl-bar-key li")
    assert [text.rpartition(" (modelled)")[0] != "" for text in key] == [False, True, True, True]
    assert [percent(text) for text in key] == pytest.approx([43, 57 * 0.85, 57 * 0.1, 57 * 0.05], abs=0.5)
    widths = page.eval_on_selector_all("rect.pl-part", "all => all.map((one) => parseFloat(one.getAttribute('width')))")
    assert sum(widths) == pytest.approx(100, abs=0.1) and widths[0] == pytest.approx(43, abs=0.1)
    facts = dict(zip(texts(page, ".pl-fact dt"), texts(page, ".pl-fact dd"), strict=True))
    assert facts["Prows by Little’s law"] == facts["rows really in flight"] == "1,280 rows"
    picture = page.get_by_role("img", name=re.compile("Pipeline on 4 devices at step 60"))
    assert picture.get_attribute("aria-label").endswith("Bottleneck: Input.")


def test_what_the_model_does_not_explain_is_said_beside_what_it_does(open_page, shapes_server):
    """A model of 10 ms for a step of 80: 1 ms of all-reduce, 8.5 of computing, which are not the rest."""
    page = open_pipeline(open_page, shapes_server, "unlike")
    said = page.locator(".pl-verdict").inner_text()
    assert re.search(r"the model does not explain .*: 96(\.\d)? % of each step; paceline scale measures which$", said)
    rows = table(page)
    assert rows["Forward / backward"][2] == "modelled: the rest of the step; by the model alone 8.5 ms"
    assert (rows["All-reduce"][0], rows["All-reduce"][2]) == ("1 ms", "modelled")


def test_what_an_old_run_does_not_tell_is_said_to_be_unknown(open_page, shapes_server):
    """Without program.json the compiled step is one: all of it stands under forward and backward, measured."""
    page = open_pipeline(open_page, shapes_server, "old")
    rows = table(page)
    assert rows["All-reduce"][:3] == ["–", "–", "not known"]
    assert percent(rows["Forward / backward"][1]) == pytest.approx(98) and rows["Forward / backward"][2] == "measured"
    assert page.locator(".pl-exchange.pl-unknown").count() == page.locator(".pl-exchange").count() > 0


def test_a_run_without_steps_shows_its_stages_and_no_motion(open_page, shapes_server):
    page = open_pipeline(open_page, shapes_server, "begun")
    assert page.locator(".pl-verdict").inner_text().startswith("No bottleneck is known yet")
    assert "nothing moves" in page.locator(".pl-caption").inner_text()
    assert page.locator(".rp-play").is_disabled()
    assert page.locator(".pl-dots path:not([visibility=hidden])").count() == 0


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_run_of_which_nothing_is_known_gets_no_numbers(open_page, shapes_server, locale, width):
    """No device, no step, no row, no second is made up: neither in the picture, nor around it, nor in its text."""
    page = open_pipeline(open_page, shapes_server, "nothing", locale=locale, viewport={"width": width, "height": 844})
    said = page.locator("#panel-pipeline").inner_text() + page.locator(".pl-picture").get_attribute("aria-label")
    assert not re.search(r"\d|null|undefined|NaN", said), said
    assert all(page.locator(part).is_hidden() for part in (".rp", ".pl-bar", ".pl-motion", ".pl-key >> nth=0"))
    assert page.locator(".pl-lane-label").count() == (0 if width == 390 else 1)  # the word "parameters"


@pytest.mark.parametrize("tab", ["pipeline", "replicas"])
def test_an_empty_folder_asks_nobody_to_choose_a_run(open_page, serve, tmp_path, tab):
    page = open_page(serve(tmp_path), tab=tab)
    empty = page.locator(f"#panel-{tab} .empty")
    wait_until(lambda: "No runs here yet" in empty.inner_text(), what="there is no run")
    assert "Choose" not in page.locator("#main").inner_text()


def test_many_devices_are_drawn_as_groups_with_their_counts(open_page, shapes_server):
    page = open_pipeline(open_page, shapes_server, "sixty-four")
    labels = [text for text in texts(page, "text.pl-lane-label") if "device" in text]
    assert labels[0] == "devices 0–7 (×8)" and labels[-1] == "devices 56–63 (×8)" and len(labels) == 8
    for devices in (1, 2, 16, 17, 63, 64, 1000):
        lanes = module(page, "pipeline/model", "return m.lanes(args[0])", devices)
        assert [device for lane in lanes for device in range(lane["first"], lane["last"] + 1)] == list(range(devices))
        assert [lane["count"] for lane in lanes] == [lane["last"] - lane["first"] + 1 for lane in lanes]
        assert len(lanes) <= 16


def test_dots_do_not_cover_what_is_written_in_the_lanes(open_page, shapes_server):
    """The names of devices are drawn after the dots, with a rim in the colour of the lane."""
    page = open_pipeline(open_page, shapes_server, "one")
    groups = page.evaluate(
        "() => [...document.querySelector('.pl-picture').children].map((one) => one.getAttribute('class'))"
    )
    assert groups.index("pl-dots") < groups.index("pl-labels")
    assert page.locator(".pl-lane-label").count() == page.locator(".pl-labels .pl-lane-label").count() > 0
    rim = page.locator(".pl-labels text").first.evaluate(
        "(one) => [getComputedStyle(one).paintOrder, getComputedStyle(one).stroke]"
    )
    assert rim[0].startswith("stroke") and rim[1] != "none"


def test_dots_in_flight_are_latency_times_throughput(open_page, shapes_server):
    """The mean over a step of dots times rows a dot is L x T = 0.45 s x 2560/s; the factor of time is round."""
    page = open_pipeline(open_page, shapes_server, "one")
    shown = module(
        page, "pipeline/flow",
        """
        const model = await import('/assets/pipeline/model.js');
        const place = await import('/assets/pipeline/layout.js');
        const draw = await import('/assets/pipeline/draw.js');
        const state = args[0], layout = place.layout(1000, 4), parts = model.dots(state, 4);
        const scene = {state, layout, life: model.life(state), slots: draw.slots(layout, state), reach: 44,
          step_s: state.step_s, perLane: parts.perLane, perBatch: parts.perLane * 4};
        let seen = 0;
        for (let at = 0; at < 100; at += 1)
          for (let back = 0; back < parts.batches; back += 1)
            for (let one = 0; one < scene.perBatch; one += 1)
              seen += m.spot(scene, {age_s: (at / 100 + back) * state.step_s, one}) === null ? 0 : 1;
        return {rows: seen / 100 * parts.rows, life: scene.life};
        """,
        STATE,
    )  # fmt: skip
    assert shown["rows"] == pytest.approx(0.45 * 2560, rel=0.01)
    spent = {part["id"]: part["end"] - part["begin"] for part in shown["life"]}
    assert spent["prefetch"] == pytest.approx(0.2)
    assert spent["placed"] == pytest.approx(0.45 - 0.03 - 0.2 - 0.02 - 0.1)
    factors = {0.02: 100, 0.08: 20, 0.4: 4, 1.6: 1, 5.0: 1, 20.0: 1 / 4}
    assert module(page, "pipeline/model", "return args[0].map(m.timeScale)", list(factors)) == list(factors.values())
    assert "one device: none" in " ".join(texts(page, ".pl-shape"))


def test_rows_move_at_the_measured_rate_times_the_factor_that_is_named(open_page, shapes_server):
    """A dot crosses its lane in the time of forward and backward, times the factor; the button stops and starts it."""
    page = open_pipeline(open_page, shapes_server, "eight", clock="rate")
    factor = float(re.findall(r"slowed (\d+)×", page.locator(".pl-caption").inner_text())[0])
    page.clock.install()
    page.get_by_role("button", name="Stop the motion").click()
    still = dots(page)
    page.clock.run_for(1000)
    assert dots(page) == still
    page.get_by_role("button", name="Show the motion").click()
    lane = page.locator("rect.pl-lane").first.evaluate("lane => ({x: lane.getBBox().x, width: lane.getBBox().width})")
    places = []
    for _ in range(24):  # more than a step's time: a batch goes through
        page.clock.run_for(200)
        x = [float(re.findall(r"\(([\d.]+)", dot)[0]) for dot in dots(page)]
        places.append([place - lane["x"] for place in x])
    moves = [
        after - before
        for one, other in pairwise(places)
        for before, after in zip(one, other, strict=True)
        if lane["width"] * 0.1 < before < after < lane["width"] * 0.8
    ]
    assert len(moves) > 20
    crossing_s = 0.08 * 0.98 * 0.85 * factor
    assert sum(moves) / len(moves) / 0.2 == pytest.approx(lane["width"] / crossing_s, rel=0.2)


def test_nothing_moves_for_who_asks_for_less_motion(open_page, shapes_server):
    page = open_pipeline(open_page, shapes_server, "eight", reduced_motion="reduce")
    still = dots(page)
    assert still, "the rows are shown, at rest"
    some_frames(page)
    assert dots(page) == still
    assert page.locator(".pl-motion").is_disabled()


@pytest.fixture
def live(tmp_path):
    """A run that goes on, and its server, which outlives the test's pages."""
    run = LiveRun(tmp_path / "live", steps=30)
    running = PageServer(tmp_path)
    yield run, running
    running.stop()


def test_a_step_that_is_written_shows_in_the_pipeline(live, open_page):
    run, server = live
    page = open_pipeline(open_page, server, "live")
    assert "up to step 30" in page.locator(".pl-caption").inner_text()
    run.step(train__loss=0.1234)
    wait_until(lambda: "up to step 31" in page.locator(".pl-caption").inner_text(), what="step 31 shows")
    assert texts(page, ".pl-loss") == ["0.1234"]


@pytest.mark.parametrize(("locale", "latency"), [("en-GB", "L latency of a row"), ("zh-CN", "L 单行延迟")])
def test_l_t_and_p_have_the_same_names_on_the_pipeline_and_on_the_curves(open_page, shapes_server, locale, latency):
    """L is that of a row through the pipeline: it is several steps long, not one."""
    page = open_pipeline(open_page, shapes_server, "eight", locale=locale)
    here = [re.sub(r"^([LTP])(?=\S)", r"\1 ", text) for text in texts(page, ".pl-fact dt")]
    page.locator("#tab-curves").click()
    page.wait_for_selector(".flight dt")
    assert here[:4] == texts(page, ".flight dt")
    assert here[0] == latency


def test_the_drawing_fits_its_width(open_page, shapes_server):
    """Across on a wide page, down on a phone; nothing makes the page scroll sideways; no text lies outside."""
    page = open_pipeline(open_page, shapes_server, "eight")
    for width in (1440, 1080, 360):
        page.set_viewport_size({"width": width, "height": 800})
        down = width == 360
        wait_until(lambda down=down: is_tall(page) == down, what=f"drawn anew at {width} px")
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        outside = page.eval_on_selector_all(
            ".pl-picture text", """(texts, width) => texts.filter((text) => {
              const box = text.getBBox();
              return box.x < 0 || box.x + box.width > width + 1;
            }).map((text) => text.textContent)""", page.locator(".pl-picture").bounding_box()["width"],
        )  # fmt: skip
        assert outside == []


def test_chinese_readers_get_chinese(open_page, shapes_server):
    page = open_pipeline(open_page, shapes_server, "waits", locale="zh-CN")
    assert "瓶颈 输入" in page.locator(".pl-verdict").inner_text()
    assert "全规约" in texts(page, ".pl-name")
    assert not re.search(r"(pipeline|replay)\.\w", page.locator("#panel-pipeline").inner_text())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_on_coloured_parts_are_readable(theme):
    """4.5 to 1: the bar of the step, the bottleneck's sign, bars of E_K (their words stand on the plain colour)."""
    colours = blocks()[theme]
    grounds = ["warn", "info", *(f"run-{number}" for number in range(1, 9))]
    assert {ground: ratio for ground in grounds if (ratio := contrast(colours["surface"], colours[ground])) < 4.5} == {}
