"""Schemes side by side: choosing, the table, what is called best, E_K bars, the waterfall, the command."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from tests.dashboard.browser.conftest import PageServer, wait_until
from tests.dashboard.made_runs import make_run

EFFICIENCY = {1: 1.0, 2: 0.96, 4: 0.88}
LOST = {"compute": 3.0, "communication": 8.0, "input": 1.5, "rest": -0.5}


def interval(value, *, width=0.01):
    return {"value": value, "low": value * (1 - width), "high": value * (1 + width), "coverage": 0.95}


def scale_result():
    """What `paceline scale --json` writes: 1000 samples/s on one device; K = 8 is not claimed."""
    points = [
        {
            "devices": devices, "batch": 64 * devices, "samples_per_s": interval(1000 * devices * share),
            "step_s": {"fit": interval(0.064 / share)}, "efficiency": interval(share),
            "waterfall_percent": {name: interval(lost) for name, lost in LOST.items()} if devices == 4 else None,
        }
        for devices, share in EFFICIENCY.items()
    ]  # fmt: skip
    points.append({
        "devices": 8, "batch": 512, "samples_per_s": interval(5000.0), "step_s": {},
        "not_claimed": "four cores are shared by eight devices",
    })  # fmt: skip
    return {
        "task": "image", "platform": "cpu", "rounds": 5, "scalings": [{"mode": "weak", "points": points}],
        "config": {"target": "image", "options": {"scheme": "per_device"}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def compare_server(tmp_path_factory):
    """Two runs that differ in scheme alone, and a result of scale beside them."""
    root = tmp_path_factory.mktemp("comparisons")
    make_run(root / "quick one", steps=200, step_s=0.02, scheme="per_device")
    make_run(root / "slow", steps=200, step_s=0.03, scheme="global_view")
    (root / "scale.json").write_text(json.dumps(scale_result()))
    running = PageServer(root)
    yield running
    running.stop()


def open_compare(open_page, server, *runs, **options):
    page = open_page(server, *runs, tab="compare", **options)
    page.wait_for_selector(".cmp-table")
    return page


def row(page, title):
    """The verdict of a row of the table, then its cells."""
    found = page.locator(".cmp-table tbody tr", has=page.locator("th", has_text=re.compile(f"^{re.escape(title)}$")))
    return found.locator("td").all_inner_texts()


def test_selected_runs_stand_side_by_side_and_the_best_has_a_word(open_page, compare_server):
    """256 rows in 20 ms are 12,800 samples/s, in 30 ms 8,533."""
    page = open_compare(open_page, compare_server, "quick one", "slow")
    names = page.locator(".cmp-table thead .cmp-subject").all_inner_texts()
    assert names == ["quick one", "slow"]
    verdict, quick, slow = row(page, "throughput")
    assert 12_600 < int(quick.split()[0].replace(",", "")) < 13_000 and "best" in quick
    assert 8_400 < int(slow.split()[0].replace(",", "")) < 8_700 and "best" not in slow
    assert "quick one" in verdict
    assert row(page, "scheme") == ["differs", "per_device", "global_view"]
    assert "812" in row(page, "peak memory a device, by the compiler")[1]
    assert "44.7 MB" in row(page, "payload of the collectives a step")[1]
    assert row(page, "of them blocking")[1].startswith("1")
    assert "the scheme differs" in page.locator(".cmp-differences").inner_text()
    assert page.locator(".cmp-fidelity li").count() == 2
    badges = page.locator(".cmp-fidelity .badge")
    assert badges.all_inner_texts() == ["replicas equal"] * 2
    assert badges.first.get_attribute("data-tone") is None  # equal to each other is not equal to one device
    assert "paceline verify" in page.locator(".cmp-fidelity").inner_text()


def test_the_command_that_writes_the_same_file_names_quoted_paths(open_page, compare_server):
    page = open_compare(open_page, compare_server, "quick one", "slow")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    command = page.locator(".cmp-command-text").inner_text()
    root = compare_server.root.resolve()
    assert command == f"paceline compare '{root}/quick one' {root}/slow --html comparison.html"
    page.get_by_role("button", name="Copy").click()
    wait_until(lambda: page.get_by_role("button", name="Copied").count() == 1, what="the copy is confirmed")
    assert page.evaluate("navigator.clipboard.readText()") == command


@pytest.mark.parametrize("inner", ["", "alone"])
def test_the_command_names_the_run_where_one_alone_is_watched(open_page, serve, tmp_path, inner):
    """Its id is the name of the watched folder; so may be that of a folder in it."""
    root = tmp_path / "alone"
    make_run(root / inner, steps=30)
    page = open_compare(open_page, serve(root), "alone")
    command = page.locator(".cmp-command-text").inner_text()
    assert command == f"paceline compare {(root / inner).resolve()} --html comparison.html"


def test_two_runs_of_one_name_are_told_apart_where_they_are_chosen(open_page, serve, tmp_path):
    for folder in ("one", "two"):
        make_run(tmp_path / folder / "image", steps=30)
    page = open_compare(open_page, serve(tmp_path), "one/image")
    assert sorted(page.locator(".cmp-choice-name").all_inner_texts()) == ["one/image", "two/image"]


def test_notes_stand_below_the_table_and_a_table_that_is_cut_says_so(open_page, serve, tmp_path):
    """Six columns are wider than 1280 px leave; two are not."""
    for number in range(5):
        make_run(tmp_path / f"run-with-a-name-{number}", steps=30, restart_at=20)
    note = "a condition of the measurement that takes some words to tell"
    (tmp_path / "scale.json").write_text(json.dumps({**scale_result(), "conditions": [note]}))
    page = open_compare(open_page, serve(tmp_path), "run-with-a-name-0", "run-with-a-name-1")
    assert not page.locator(".cmp-more").is_visible()
    for box in page.locator(".cmp-choice input").all():
        box.check()
    wait_until(lambda: page.locator(".cmp-table thead .cmp-subject").count() == 6, what="all are compared")
    assert page.locator(".cmp-more").is_visible()
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert page.locator(".cmp-table thead").bounding_box()["height"] < 100
    notes = page.locator(".cmp-notes")
    assert notes.inner_text().count("it was started 2 times") == 5 and note in notes.inner_text()
    assert notes.bounding_box()["y"] > page.locator(".cmp-table").bounding_box()["y"]


def test_many_numbers_of_devices_have_labels_that_do_not_overlap(open_page, serve, tmp_path):
    """1 to 4096 devices: 13 slots in 360 px."""
    make_run(tmp_path / "a", steps=30)
    points = [
        {"devices": 2**power, "batch": 64 * 2**power, "samples_per_s": interval(1000 * 2**power), "step_s": {},
         "efficiency": interval(0.9)}
        for power in range(13)
    ]  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps({**scale_result(), "scalings": [{"mode": "weak", "points": points}]}))
    page = open_compare(open_page, serve(tmp_path), "a", viewport={"width": 760, "height": 900})
    page.get_by_role("checkbox", name="s.json").check()
    chart = page.get_by_role("img", name=re.compile("^Scaling efficiency"))
    chart.wait_for()
    labels = chart.locator("text", has_text=re.compile(r"^(\d+k?|K =)$"))
    ends = sorted((box["x"], box["x"] + box["width"]) for box in (one.bounding_box() for one in labels.all()))
    assert len(ends) > 5
    assert all(first[1] < second[0] for first, second in itertools.pairwise(ends))
    frame = chart.bounding_box()
    assert ends[-1][1] <= frame["x"] + frame["width"]


def test_a_result_of_scale_is_drawn_as_bars_with_the_ideal_and_as_a_waterfall(open_page, compare_server):
    page = open_compare(open_page, compare_server, "quick one")
    page.get_by_role("checkbox", name="scale.json").check()
    page.wait_for_selector(".cmp-chart")
    assert page.locator(".cmp-picker-head").inner_text().count("2 chosen") == 1
    chart = page.get_by_role("img", name=re.compile("^Scaling efficiency"))
    ideal = float(chart.locator("line.cmp-ideal").get_attribute("y1"))
    zero = float(chart.locator("line.cmp-grid").first.get_attribute("y1"))
    bars = chart.locator("rect[class^=cmp-fill]:has(title)")
    heights = [float(bars.nth(place).get_attribute("height")) for place in range(bars.count())]
    assert [height / (zero - ideal) for height in heights] == pytest.approx(list(EFFICIENCY.values()), abs=0.005)
    assert "K=8 –" in chart.get_attribute("aria-label")
    assert "four cores are shared by eight devices" in chart.locator("title").all_text_contents()[-1]
    waterfall = page.get_by_role("img", name=re.compile("^Waterfall"))
    said = waterfall.get_attribute("aria-label")
    assert "percent points" in said
    assert "communication that is not hidden −8.0," in said and "the rest +0.5," in said
    assert said.endswith("E (K = 4) 88.0 %")
    lost = waterfall.locator("rect.cmp-lost")
    widths = [float(lost.nth(place).get_attribute("width")) for place in range(lost.count())]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 8 / 3, 0.5], rel=0.02)


def test_nothing_chosen_asks_for_a_choice_and_the_keyboard_chooses(open_page, compare_server):
    page = open_compare(open_page, compare_server, "slow")
    page.get_by_role("button", name="Choose none").click()
    assert page.locator(".cmp-message").inner_text().startswith("Choose runs")
    assert page.locator(".cmp-table").count() == 0
    box = page.locator(".cmp-choice input").first
    box.focus()
    page.keyboard.press("Space")
    page.wait_for_selector(".cmp-table")
    assert page.evaluate("document.activeElement.dataset.subject") == box.get_attribute("data-subject")


def test_the_comparison_fits_a_phone_in_the_dark_and_in_chinese(open_page, compare_server):
    page = open_compare(
        open_page, compare_server, "quick one", "slow", viewport={"width": 390, "height": 800}, locale="zh-CN",
        color_scheme="dark",
    )  # fmt: skip
    page.get_by_role("checkbox", name="scale.json").check()
    page.wait_for_selector(".cmp-chart")
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert "最佳" in " ".join(row(page, "吞吐"))
    assert not re.search(r"compare\.\w", page.locator("#panel-compare").inner_text())
    width = page.evaluate("innerWidth")
    for chart in page.locator(".cmp-chart").all():
        box = chart.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
