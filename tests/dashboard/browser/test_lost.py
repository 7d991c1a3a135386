"""What is gone: the server for a while or for good, a run that is watched. The page says so, and goes on."""

from __future__ import annotations

import shutil
import time
from datetime import datetime, timedelta

import pytest

from tests.dashboard.browser.conftest import wait_until
from tests.dashboard.made_runs import make_run

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
LANGUAGES = pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])


def refused(page):
    """What else is on the console than requests that failed: the browser itself writes those, and the page."""
    usual = ("ERR_", "Failed to fetch", "could not be reached")
    found = [text for text in page.trouble if not any(one in text for one in usual)]
    page.trouble.clear()
    return found


def notices(page):
    return page.locator("#notices .notice p").all_inner_texts()


@pytest.mark.parametrize("tab", ["replicas", "events", "compare", "pipeline"])
def test_a_view_that_could_not_be_loaded_is_there_when_the_connection_is_back(open_page, serve, tmp_path, tab):
    make_run(tmp_path / "one", steps=50)
    server = serve(tmp_path)
    page = open_page(server, "one", tab="curves")
    server.stop()
    page.locator(f"#tab-{tab}").click()
    failed = page.locator(f"#panel-{tab} [role=alert]")
    failed.wait_for()
    assert "tried again" in failed.inner_text()
    server.start()
    failed.wait_for(state="detached")
    page.wait_for_selector(f"#panel-{tab} :is(.rc-tile, .events tbody tr, .cmp-table, .pl-lane)")
    assert refused(page) == []


def test_what_a_view_asked_for_in_vain_is_asked_for_again(open_page, serve, tmp_path):
    """The events of the other run on the curves, which came into focus while the server was away."""
    make_run(tmp_path / "one", steps=50)
    make_run(tmp_path / "other", steps=100)
    server = serve(tmp_path)
    page = open_page(server, "other", "one", tab="events")
    page.wait_for_selector(".events tbody tr")
    server.stop()
    page.locator('.run[data-run="other"] .run-open').click()
    page.wait_for_selector("#panel-events .empty >> text=could not be reached")
    server.start()
    page.wait_for_selector(".events >> text=checkpoint of step 100 saved")
    assert refused(page) == []


@LANGUAGES
def test_a_server_that_stays_away_is_told_as_one_that_may_have_been_stopped(
    open_page, serve, tmp_path, locale, request
):
    """After ten seconds; the page goes on trying, and takes it back when the server answers."""
    make_run(tmp_path / "one", steps=50)
    server = serve(tmp_path)
    page = open_page(server, "one", tab="events", locale=locale, clock=request.node.name, **PHONE)
    page.clock.install()
    page.clock.pause_at(datetime.now() + timedelta(seconds=5))
    server.stop()
    page.wait_for_selector("#connection[data-state=reconnecting]")
    assert notices(page) == []
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert page.locator("#connection").bounding_box()["height"] < 25  # a short word: the header of a phone holds it
    wait_until(
        lambda: page.clock.run_for(500) or page.locator("#connection[data-state=unanswered]").count(),
        what="it says that the server does not answer",
    )
    (said,) = notices(page)
    assert ("may have been stopped" if locale == "en-GB" else "可能已被停止") in said
    assert page.locator("#notices").get_attribute("aria-live") == "polite"
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    server.start()
    wait_until(
        lambda: page.clock.run_for(500) or page.locator("#connection[data-state=live]").count(),
        what="it tries again",
    )
    assert notices(page) == []
    assert refused(page) == []


@LANGUAGES
def test_a_watched_run_that_is_removed_is_named_and_the_newest_takes_its_place(open_page, serve, tmp_path, locale):
    start_s = time.time() - 1000
    for name, ago_s in (("a_newest", 0), ("watched", 50), ("z_old", 500)):
        make_run(tmp_path / name, steps=20, start_s=start_s - ago_s)
    page = open_page(serve(tmp_path), "watched", tab="events", locale=locale)
    shutil.rmtree(tmp_path / "watched")
    page.wait_for_selector("#notices .notice")
    (said,) = notices(page)
    assert "watched" in said and ("removed" if locale == "en-GB" else "删除") in said
    assert page.locator("#headline h2").inner_text() == "a_newest"
    assert page.locator(".run input:checked").count() == 1
    page.wait_for_timeout(300)
    assert notices(page) == [said], "it stays"
    page.locator("#language").select_option("zh" if locale == "en-GB" else "en")
    wait_until(lambda: notices(page) != [said], what="it is told in the other language")
    page.locator("#notices button").focus()
    page.keyboard.press("Enter")
    assert notices(page) == []
    assert page.evaluate("document.activeElement.id") == "main"


def test_the_notice_of_removed_runs_names_all_of_them_and_goes_when_runs_are_chosen(open_page, serve, tmp_path):
    for name in ("first", "second", "third"):
        make_run(tmp_path / name, steps=20)
    page = open_page(serve(tmp_path), "first", "second", "third", tab="events")
    for name in ("first", "second"):
        shutil.rmtree(tmp_path / name)
        wait_until(lambda name=name: name in " ".join(notices(page)), what=f"{name} is named")
    (said,) = notices(page)
    assert "first, second" in said
    assert page.locator("#headline h2").inner_text() == "third"
    page.locator('.run[data-run="third"] .run-open').click()
    assert notices(page) == []


def test_a_run_that_was_not_watched_goes_without_a_word(open_page, serve, tmp_path):
    for name in ("watched", "other"):
        make_run(tmp_path / name, steps=20)
    page = open_page(serve(tmp_path), "watched", tab="events")
    shutil.rmtree(tmp_path / "other")
    page.wait_for_selector('.run[data-run="other"]', state="detached")
    assert notices(page) == []
    assert page.locator("#headline h2").inner_text() == "watched"


def test_the_last_run_may_be_removed_and_the_next_one_is_shown(open_page, serve, tmp_path):
    make_run(tmp_path / "only", steps=20)
    page = open_page(serve(tmp_path), "only", tab="events")
    shutil.rmtree(tmp_path / "only")
    page.wait_for_selector("#notices >> text=only")
    assert page.locator("#headline .empty").is_visible()
    make_run(tmp_path / "next", steps=20)
    page.wait_for_selector("#headline h2 >> text=next")
    assert len(notices(page)) == 1, "nobody has chosen anything yet"


@LANGUAGES
def test_a_run_of_the_address_that_is_not_there_is_named(open_page, serve, tmp_path, locale):
    for name in ("first", "second"):
        make_run(tmp_path / name, steps=20)
    page = open_page(serve(tmp_path), "doesnotexist", tab="events", locale=locale)
    page.wait_for_selector("#notices .notice")
    (said,) = notices(page)
    assert "doesnotexist" in said and ("not in this folder" if locale == "en-GB" else "没有") in said
    page.locator("#notices button").click()
    assert notices(page) == []
    page.evaluate("location.hash = '#tab=events&run=first&run=gone'")
    page.wait_for_selector("#notices >> text=gone")
    assert page.locator("#headline h2").inner_text() == "first"
    make_run(tmp_path / "gone", steps=20)
    wait_until(lambda: notices(page) == [], what="it is there now")


def test_a_run_of_the_address_is_waited_for_in_an_empty_folder(open_page, serve, tmp_path):
    page = open_page(serve(tmp_path), "awaited", tab="events")
    assert notices(page) == []
    make_run(tmp_path / "awaited", steps=20)
    page.wait_for_selector("#headline h2 >> text=awaited")
    assert notices(page) == []
