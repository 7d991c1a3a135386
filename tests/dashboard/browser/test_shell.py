"""The frame of the page: the list of runs, choosing, tabs, languages, themes, phones, keyboards, hostile names."""

from __future__ import annotations

import json

import pytest

from tests.dashboard.browser.conftest import HOSTILE, HOSTILE_METRIC, drawn, hovered
from tests.dashboard.made_runs import make_run


def row(page, run):
    return page.locator(f'.run[data-run="{run}"]')


def test_the_list_names_every_run_with_its_state(shared_page):
    page = shared_page("baseline", tab="events")
    assert page.locator(".run").count() == 3
    assert row(page, "baseline").locator(".badge").inner_text() == "finished"
    assert "image · per_device · 4 × cpu" in row(page, "baseline").inner_text()
    assert row(page, "sweep/zero1").locator(".run-name").inner_text() == "sweep/zero1"


def test_without_an_address_the_newest_run_is_chosen(open_page, server):
    page = open_page(server, tab="events")
    assert page.locator("#headline h2").inner_text() == "baseline"
    assert page.evaluate("location.hash").count("run=") == 1


def test_the_headline_tells_step_loss_and_rate(shared_page):
    """400 of 400 steps; 256 rows in about 20 ms."""
    page = shared_page("baseline", tab="events")
    assert page.locator("[data-number=step]").inner_text() == "400 / 400"
    assert 0.25 < float(page.locator("[data-number=loss]").inner_text()) < 0.4
    rate = page.locator("[data-number=samples_per_s]").inner_text()
    assert rate.endswith("/s") and 11_000 < int(rate[:-2].replace(",", "")) < 14_000
    assert page.locator("[data-number=eta]").inner_text() == "–"


def test_finding_runs_leaves_those_that_hold_every_word(open_page, server):
    page = open_page(server, tab="events")
    page.get_by_role("searchbox").fill("zero1 fin")
    assert page.locator(".run").count() == 1
    page.get_by_role("searchbox").fill("no such run")
    assert page.locator(".side .empty").inner_text() == "No run matches."


def test_a_click_moves_to_another_run_and_ticks_add_runs(open_page, server):
    page = open_page(server, "baseline", tab="events")
    row(page, "sweep/zero1").locator(".run-open").click()
    assert page.locator("#headline h2").inner_text() == "sweep/zero1"
    assert not row(page, "baseline").locator("input").is_checked()
    row(page, "baseline").locator("input").check()
    assert row(page, "sweep/zero1").locator("input").is_checked()
    colours = page.evaluate(
        "[...document.querySelectorAll('.run input:checked')].map((box) => getComputedStyle(box).accentColor)"
    )
    assert len(set(colours)) == 2
    assert page.evaluate("location.hash").count("run=") == 2


def test_the_address_brings_the_same_view_back(open_page, server):
    page = open_page(server, "baseline", "sweep/zero1", tab="events")
    page.reload()
    page.wait_for_selector("#panel-events:not([hidden])")
    assert page.locator(".run input:checked").count() == 2


def test_tabs_follow_the_arrow_keys(open_page, server):
    page = open_page(server, "baseline", tab="events")
    page.locator("#tab-events").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-pipeline"
    assert page.locator("#tab-pipeline").get_attribute("aria-selected") == "true"
    page.keyboard.press("End")
    assert page.locator("#panel-events").is_visible()
    assert not page.locator("#panel-pipeline").is_visible()


def test_everything_is_reached_with_the_tab_key_and_shows_where_it_is(open_page, server):
    """Skip link first; every stop has a name and an outline."""
    page = open_page(server, "baseline")
    drawn(page)
    page.evaluate("document.activeElement?.blur()")
    stops = []
    for _ in range(24):
        page.keyboard.press("Tab")
        stops.append(
            page.evaluate("""() => {
              const at = document.activeElement;
              const style = getComputedStyle(at);
              const name = at.getAttribute("aria-label") || at.labels?.[0]?.textContent || at.textContent || at.title;
              return [at.tagName, name.trim(), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
            }""")
        )
    assert stops[0][1] == "Skip to the run"
    assert [stop for stop in stops if stop[0] != "BODY" and not (stop[1] and stop[2])] == []
    assert {"SELECT", "INPUT", "BUTTON"} <= {stop[0] for stop in stops}


def test_the_language_changes_at_once_and_is_kept(open_page, server):
    page = open_page(server, "baseline", tab="events")
    page.locator("#language").select_option("zh")
    page.wait_for_function("() => document.documentElement.lang === 'zh-Hans'")
    assert page.locator("#tab-curves").inner_text() == "曲线"
    assert row(page, "baseline").locator(".badge").inner_text() == "已完成"
    page.wait_for_selector("#panel-events td .badge")
    page.reload()
    page.wait_for_selector("#tab-curves >> text=曲线")


def test_a_chinese_browser_gets_chinese(open_page, server):
    page = open_page(server, "baseline", locale="zh-CN")
    drawn(page)
    assert page.locator("[data-chart=loss] h3").inner_text() == "损失"
    english = page.evaluate("""() => [...document.querySelectorAll("button, label, h2, dt, summary, caption")]
      .filter((one) => !one.closest(".run, .more-charts") && !one.querySelector("#language"))
      .map((one) => one.textContent.trim()).filter((text) => /[a-z]{5,}/i.test(text))""")
    assert [text for text in english if "/" not in text and text != "baseline"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_that_of_the_system_until_it_is_chosen(open_page, server, scheme):
    page = open_page(server, "baseline", color_scheme=scheme, tab="events")

    def is_dark():
        return page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(14, 19, 23)"

    assert is_dark() == (scheme == "dark")
    other = "light" if scheme == "dark" else "dark"
    page.locator("#theme").select_option(other)
    assert is_dark() == (other == "dark")
    page.reload()
    page.wait_for_selector("#connection[data-state=live]")
    assert is_dark() == (other == "dark")


def test_charts_take_the_colours_of_the_theme(open_page, server):
    page = open_page(server, "baseline")
    drawn(page)
    page.locator("#theme").select_option("dark")
    page.wait_for_function("() => document.querySelector('[data-chart=loss] .plot').data[0].line.color === '#64a8f5'")


@pytest.mark.parametrize("tab", ["curves", "events"])
def test_a_phone_shows_one_column_without_scrolling_sideways(open_page, server, tab):
    page = open_page(server, "baseline", "sweep/zero1", tab=tab, viewport={"width": 390, "height": 844}, has_touch=True)
    if tab == "curves":
        drawn(page)
        lefts = page.evaluate("[...document.querySelectorAll('.chart')].map((one) => one.getBoundingClientRect().left)")
        assert len(set(lefts)) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_names_from_run_folders_are_text_never_markup(open_page, server):
    """A run and a metric named like an attack: no element of theirs, no dialog, nothing blocked; and a legible name."""
    page = open_page(server, HOSTILE, "baseline")
    drawn(page)
    page.locator(".more-charts summary").click()
    page.locator(f'[data-chart="key:{HOSTILE_METRIC}"]').scroll_into_view_if_needed()
    drawn(page, f"key:{HOSTILE_METRIC}")
    assert page.locator("#headline h2").inner_text() in (HOSTILE, "baseline")
    assert page.locator(f'[data-chart="key:{HOSTILE_METRIC}"] h3').inner_text() == HOSTILE_METRIC
    assert page.evaluate("document.querySelectorAll('img, [onerror], [onmouseover]').length") == 0
    assert HOSTILE in hovered(page, "loss", share=0.1)
    page.locator("#tab-events").click()
    page.wait_for_selector("#panel-events td")


def test_the_first_paint_does_not_wait_for_plotly(open_page, server):
    """The list is there before plotly.min.js is even asked for."""
    page = open_page(server, "baseline")
    drawn(page)
    times = page.evaluate("""() => ({
      paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
      runs: performance.getEntriesByType("resource").find((one) => one.name.endsWith("/api/runs")).responseEnd,
      plotly: performance.getEntriesByType("resource").find((one) => one.name.endsWith("plotly.min.js")).startTime,
    })""")
    assert times["paint"] < times["plotly"] and times["runs"] < times["plotly"]


def test_what_cannot_be_shown_is_said(open_page, serve, tmp_path):
    """Damaged lines, a kind from the future, a run.json that is no JSON, an empty folder."""
    future = make_run(tmp_path / "future", steps=20)
    with open(future / "events-0.jsonl", "a") as file:
        file.write('{"kind": "ste\n')
        file.write(json.dumps({"kind": "hologram", "step": 3, "time_s": 1.0, "values": {}}) + "\n")
        file.write('{"kind": "step", "step": 21')  # torn: still being written
    (make_run(tmp_path / "damaged", steps=20) / "run.json").write_text('{"task": ')
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "run.json").write_text("{}")
    page = open_page(serve(tmp_path), "future")
    note = page.locator(".cannot")
    assert note.locator("summary").inner_text() == "What cannot be shown (2)"
    note.locator("summary").click()
    assert (
        "Damaged lines passed over in the events of process 0: 1" in note.inner_text()
        and "hologram" in note.inner_text()
    )
    assert page.locator("[data-number=step]").inner_text().startswith("20")
    row(page, "damaged").locator(".run-open").click()
    assert "run.json" in page.locator(".cannot").text_content()
    drawn(page)
    row(page, "empty").locator(".run-open").click()
    page.wait_for_function("() => document.querySelector('#headline h2').textContent === 'empty'")
    page.wait_for_selector("text=No metric has a value yet.")
    page.locator("#tab-events").click()
    assert page.locator("#panel-events .empty").inner_text() == "No events but steps."


def test_a_folder_without_runs_says_that_they_will_show_up(open_page, serve, tmp_path):
    page = open_page(serve(tmp_path))
    assert "No runs here yet" in page.locator(".side .empty").inner_text()
    assert page.locator("#headline .empty").is_visible()
    make_run(tmp_path / "first", steps=30)
    page.wait_for_selector('.run[data-run="first"]')
    drawn(page)


def test_default_names_of_runs_are_read_whole(open_page, serve, tmp_path):
    """They differ at their ends: task, date and time."""
    names = ["image-20261201-042302", "image-20261201-042955"]
    for name in names:
        make_run(tmp_path / name, steps=20)
    page = open_page(serve(tmp_path), names[0], tab="compare")
    page.wait_for_selector(".cmp-choice-name")
    for place in (".run-name", ".cmp-choice-name"):
        assert sorted(page.locator(place).all_inner_texts()) == names
        cut = page.eval_on_selector_all(place, "all => all.filter((one) => one.scrollWidth > one.clientWidth).length")
        assert page.eval_on_selector_all(place, "all => all.every((one) => one.clientWidth > 0)") and cut == 0, place


def test_a_changed_address_brings_its_tab_and_its_runs_together(open_page, server):
    page = open_page(server, "baseline", tab="events")
    page.evaluate(
        """() => {
          window.written = [];
          const write = history.replaceState.bind(history);
          history.replaceState = (data, unused, address) => {
            window.written.push(address);
            write(data, unused, address);
          };
          location.hash = "#tab=replicas&run=sweep%2Fzero1";
        }"""
    )
    page.wait_for_selector("#panel-replicas:not([hidden])")
    written = page.evaluate("window.written")
    assert written and all("tab=replicas" in one and "zero1" in one for one in written)
    assert page.locator("#headline h2").inner_text() == "sweep/zero1"


def test_the_run_of_the_address_lies_in_sight_of_the_list(open_page, serve, tmp_path):
    for at in range(24):
        make_run(tmp_path / f"run-{at:02}", steps=5)
    page = open_page(serve(tmp_path), "run-23", tab="events")
    box = row(page, "run-23").bounding_box()
    assert box["y"] + box["height"] <= 901 and page.evaluate("scrollY") == 0
