"""The replay: a run's steps again, at a speed, from the keyboard, without flooding the server."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from tests.dashboard.browser.conftest import PageServer, wait_until
from tests.dashboard.made_runs import make_run

STEPS = 400
STEP_S = 0.05


@pytest.fixture(scope="module")
def replay_server(tmp_path_factory):
    """A finished run of 400 steps of 50 ms, and another."""
    root = tmp_path_factory.mktemp("replays")
    make_run(root / "done", steps=STEPS, step_s=STEP_S)
    make_run(root / "other", steps=30)
    running = PageServer(root)
    yield running
    running.stop()


@pytest.fixture
def page(open_page, replay_server, request):
    opened = open_page(replay_server, "done", tab="pipeline", clock=request.node.name)
    opened.wait_for_selector("rect.pl-lane")
    return opened


def stand_still(page):
    """From now on time passes only when a test says so."""
    page.clock.install()
    page.clock.pause_at(datetime.now() + timedelta(seconds=5))


def place(page):
    """The step that the controls show."""
    return int(re.findall(r"step (\d+) of 400", page.locator(".rp-place").inner_text())[0])


def shown(page):
    """The step that the drawing shows."""
    found = re.findall(r"up to step (\d+)|the whole run, (\d+) steps", page.locator(".pl-caption").inner_text())
    return int("".join(found[0]))


def test_a_finished_run_is_played_again_step_by_step(page):
    """x1 makes 20 steps a second, as the run did; the loss shown is that of the step; at the end it stops."""
    assert (place(page), shown(page)) == (STEPS, STEPS)
    stand_still(page)
    page.get_by_role("button", name="Play").click()
    assert place(page) == 1
    page.clock.run_for(2000)
    assert 1 + 36 <= place(page) <= 1 + 46
    page.get_by_role("button", name="Pause").click()
    stopped = place(page)
    page.clock.run_for(1000)
    assert place(page) == stopped
    wait_until(
        lambda: page.clock.run_for(100) or shown(page) == stopped, what="the drawing shows the step of the controls"
    )
    loss = float(page.locator(".pl-loss").text_content())
    assert loss == pytest.approx(0.3 + 2.3 * 2.718281828 ** (-stopped / 80), abs=0.04)
    page.get_by_label("Speed").select_option("10")
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(1000)
    assert stopped + 180 <= place(page) <= stopped + 230
    page.get_by_label("Speed").select_option("100")
    page.clock.run_for(1000)
    assert place(page) == STEPS
    assert page.get_by_role("button", name="Play").is_visible(), "it stops at the end"


def test_the_whole_run_takes_half_a_minute(page):
    stand_still(page)
    page.get_by_label("Speed").select_option(label="whole run in 30 s")
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(15_000)
    assert place(page) == pytest.approx(STEPS / 2, abs=5)
    page.clock.run_for(16_000)
    assert place(page) == STEPS


def test_the_keyboard_moves_plays_and_leaves(page):
    page.get_by_label("Step shown").focus()
    for key, step in (("ArrowLeft", 399), ("ArrowLeft", 398), ("PageDown", 378), ("PageUp", 398), ("Home", 1)):
        page.keyboard.press(key)
        assert place(page) == step, key
    wait_until(lambda: shown(page) == 1, what="the first step is drawn")
    assert page.locator(".rp").get_attribute("data-mode") == "replay"
    page.keyboard.press("Space")
    wait_until(lambda: place(page) > 3, what="the replay goes on")
    page.keyboard.press("Space")
    stopped = place(page)
    assert page.get_by_role("button", name="Play").is_visible()
    assert place(page) == stopped
    page.keyboard.press("Escape")
    assert place(page) == STEPS
    wait_until(lambda: shown(page) == STEPS, what="the last step is drawn")
    assert page.get_by_role("button", name="Whole run").get_attribute("aria-pressed") == "true"


_ASKED = """() => {
  const ask = window.fetch;
  window.asked = [];
  window.fetch = async (address, options) => {
    if (!address.startsWith("/api/pipeline")) return ask(address, options);
    const one = {step: Number(new URLSearchParams(address.split("?")[1]).get("step")), begin_ms: performance.now()};
    window.asked.push(one);
    const response = await ask(address, options);
    if (window.asked.length % 2) await new Promise((done) => setTimeout(done, 150)); // longer than the least gap
    one.end_ms = performance.now();
    return response;
  };
}"""


def test_a_replay_asks_at_most_ten_times_a_second_and_one_at_a_time(page):
    """By the page's own clock [ms] at each request, with every second answer slow."""
    page.evaluate(_ASKED)
    page.get_by_role("button", name="Play").click()
    wait_until(lambda: page.evaluate("window.asked.filter((one) => one.end_ms).length >= 6"), what="six answers")
    asked = [one for one in page.evaluate("window.asked") if "end_ms" in one]
    for one, later in pairwise(asked):
        assert later["begin_ms"] - one["begin_ms"] >= 99, "timers of a browser may be a fraction of 1 ms early"
        assert later["begin_ms"] >= one["end_ms"]
    steps = [one["step"] for one in asked]
    assert steps == sorted(set(steps))


def test_another_run_ends_the_replay(page):
    page.get_by_label("Step shown").focus()
    page.keyboard.press("Home")
    page.locator('.run[data-run="other"] .run-open').click()
    wait_until(lambda: page.locator(".rp-place").inner_text() == "step 30 of 30", what="the other run's last step")
    assert page.locator(".rp").get_attribute("data-mode") == "latest"


def test_a_paused_replay_stands_still(page):
    dots = "[...document.querySelectorAll('.pl-dot')].map((dot) => dot.getAttribute('transform')).join()"
    page.get_by_label("Step shown").focus()
    page.keyboard.press("Home")
    wait_until(lambda: shown(page) == 1, what="the first step is drawn")
    before = page.evaluate(dots)
    page.evaluate(
        """() => new Promise((done) => {
          let left = 8;
          const next = () => (left-- ? requestAnimationFrame(next) : done());
          next();
        })"""
    )
    assert page.evaluate(dots) == before
