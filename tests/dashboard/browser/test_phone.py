"""The page on a phone, 390 px wide: what a table says is read there, and the page never scrolls sideways."""

from __future__ import annotations

import pytest

from tests.dashboard.browser.conftest import drawn, hovered, wait_until
from tests.dashboard.made_runs import make_run

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
LANGUAGES = pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])

_BOX = """(one) => {
  const {left, right, width, height} = one.getBoundingClientRect();
  return [left, right, width, height];
}"""


def stays_put(page):
    return page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def cells(page, selector):
    """Of each cell: its left and right edge, its width and height, its text."""
    return page.evaluate(
        f"(selector) => [...document.querySelectorAll(selector)].map((one) => [...({_BOX})(one), one.innerText])",
        selector,
    )


@LANGUAGES
def test_an_event_is_read_whole_on_a_phone(open_page, server, locale):
    """Every text lies on the page and has its width; a row is a few lines high; step and process have their names."""
    page = open_page(server, "baseline", tab="events", locale=locale, **PHONE)
    page.wait_for_selector("#panel-events tbody tr")
    assert stays_put(page)
    texts = cells(page, ".events td:nth-child(5)")
    assert any("checkpoint of step 400 saved" in text for *_, text in texts)
    assert all(left >= 0 and right <= 390 and width > 200 for left, right, width, _, text in texts if text)
    assert all(height <= 110 for _, _, _, height, _ in cells(page, ".events tbody tr"))
    names = page.evaluate("""[2, 4].map((at) => getComputedStyle(
      document.querySelector(`.events td:nth-child(${at})`), "::before").content)""")
    assert [name.split('"')[1].strip() for name in names] == (
        ["Step", "Process"] if locale == "en-GB" else ["步", "进程"]
    )
    assert page.get_by_role("columnheader").count() == 5  # still a table for whoever hears it
    assert page.get_by_role("cell").count() == 5 * len(texts)


@LANGUAGES
@pytest.mark.parametrize("tab", ["events", "compare"])
def test_the_chosen_tab_lies_in_the_bar(open_page, server, locale, tab):
    """By its address and by the keyboard; on a narrow phone too, where the bar scrolls."""
    page = open_page(server, "baseline", tab=tab, locale=locale, viewport={"width": 320, "height": 700})

    def is_seen(tab):
        return page.evaluate(
            """(tab) => {
              const [bar, button] = ["tabs", `tab-${tab}`].map((id) => document.getElementById(id)
                .getBoundingClientRect());
              return button.left >= bar.left - 1 && button.right <= bar.right + 1;
            }""",
            tab,
        )

    assert is_seen(tab) and stays_put(page)
    page.locator(f"#tab-{tab}").focus()
    page.keyboard.press("Home")
    assert is_seen("pipeline")
    page.keyboard.press("End")
    assert is_seen("events")
    page.set_viewport_size({"width": 390, "height": 844})
    assert all(is_seen(one) for one in ("pipeline", "curves", "replicas", "compare", "events"))


@LANGUAGES
@pytest.mark.parametrize("runs", [("baseline",), ("baseline", "sweep/zero1")])
def test_a_comparison_shows_its_values_on_a_phone(open_page, server, locale, runs):
    """The values of every run are on the page; when the table is scrolled, what they are of stays."""
    page = open_page(server, *runs, tab="compare", locale=locale, **PHONE)
    page.wait_for_selector(".cmp-table")
    assert stays_put(page)
    row = ".cmp-table tbody tr:has(.cmp-value)"
    names = cells(page, f"{row} th")
    assert all(left >= 0 and width <= 120 for left, _, width, *_ in names)
    ((_, edge, *_),) = cells(page, ".cmp-block .scroll:has(.cmp-table)")
    for run in range(len(runs)):
        values = cells(page, f"{row} td:nth-child({run + 2}) .cmp-value")
        assert values and all(left > names[0][1] - 1 and right <= edge for left, right, *_ in values)
    page.evaluate("document.querySelector('.cmp-block .scroll').scrollLeft = 1000")
    assert [left for left, *_ in cells(page, f"{row} th")] == [left for left, *_ in names]
    verdicts = cells(page, ".cmp-verdict")
    if len(runs) == 1:
        assert verdicts == []  # nothing to judge
    else:
        assert all(right <= 390 for _, right, *_ in verdicts)


@LANGUAGES
def test_the_processes_are_read_whole_on_a_phone(open_page, server, locale):
    page = open_page(server, "sweep/zero1", tab="replicas", locale=locale, **PHONE)
    page.wait_for_selector(".rc-why")
    assert stays_put(page)
    found = cells(page, ".rc table tbody td")
    assert len(found) == 12
    assert all(left >= 0 and right <= 390 for left, right, *_ in found)
    assert all(height <= 140 for *_, height, _ in found)
    named = page.evaluate(
        "[...document.querySelectorAll('.rc tbody tr:first-child td')].map((td) => td.dataset.column)"
    )
    assert named == page.locator(".rc thead th").all_text_contents()
    wait_until(lambda: page.get_by_role("columnheader").count() == 6, what="still a table for whoever hears it")


@LANGUAGES
def test_the_stages_as_a_table_are_read_whole_on_a_phone(open_page, server, locale):
    page = open_page(server, "baseline", tab="pipeline", locale=locale, **PHONE)
    page.locator(".pl-details summary").click()
    assert stays_put(page)
    found = cells(page, ".pl-table tbody :is(th, td)")
    assert len(found) == 7 * 5
    assert all(left >= 0 and right <= 390 for left, right, *_ in found)
    facts = cells(page, ".pl-fact")
    assert len({left for left, *_ in facts}) == 2  # two columns, like those on the curves


@pytest.mark.parametrize("width", [390, 1280])
def test_a_long_name_of_a_run_leaves_room_for_what_a_line_is(open_page, serve, tmp_path, width):
    """Training or evaluation, and how the name ends, which is where runs of a series differ."""
    names = [f"experiments/resnet50-bfloat16-global_view-batch-4096-attempt-{number}" for number in (1, 2)]
    for name in names:
        make_run(tmp_path / name, steps=100)
    page = open_page(serve(tmp_path), *names, viewport={"width": width, "height": 844})
    drawn(page, traces=4)
    lines = page.locator("[data-chart=loss] tbody th")
    assert lines.all_text_contents() == [f"{name} · {line}" for name in names for line in ("training", "evaluation")]
    for line, (left, right, *_) in zip(
        cells(page, "[data-chart=loss] .series-line"), cells(page, "[data-chart=loss] tbody th"), strict=True
    ):
        assert left <= line[0] and line[1] <= right + 1 and line[2] > 40
    said = hovered(page, "loss", share=0.5)
    assert all(f"attempt-{number} training" in said for number in (1, 2))
