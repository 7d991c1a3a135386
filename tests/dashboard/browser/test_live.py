"""The page while runs go on: steps at once, new and deleted runs, dropped connections, replaced files."""

from __future__ import annotations

import json
import shutil
import time

import numpy as np
import pytest

from tests.dashboard.browser.conftest import drawn, trace, wait_until
from tests.dashboard.made_runs import LiveRun, make_run

SHOWN_S = 0.25
LAST_STEP = "(last) => document.querySelector('[data-chart=loss] .plot').data[0].x.at(-1) === last"

_WATCH = """() => {
  window.seen = {headline: {}, curve: {}};
  const watch = (element, name, step) => new MutationObserver(() => {
    window.seen[name][step()] ??= Date.now() / 1000;
  }).observe(element, {childList: true, characterData: true, subtree: true, attributeFilter: ["data-step"]});
  const number = document.querySelector("[data-number=step]");
  watch(number, "headline", () => parseInt(number.textContent.replaceAll(",", "")));
  const plot = document.querySelector("[data-chart=loss] .plot");
  watch(plot, "curve", () => parseInt(plot.dataset.step));
}"""


def step_shown(page):
    return int(page.locator("[data-number=step]").inner_text().split(" / ")[0].replace(",", ""))


@pytest.fixture
def live(tmp_path):
    return LiveRun(tmp_path / "live", steps=30, planned=1000, start_s=time.time() - 5)


def test_a_step_is_seen_within_a_quarter_of_a_second(open_page, serve, tmp_path, live):
    """Ten a second: 95 % of them in the headline and on the curve 250 ms after the write; every one in the end.

    The best of five rounds: other programs on the machine can hold up any one of them.
    """
    page = open_page(serve(tmp_path), "live")
    drawn(page)
    page.wait_for_function("() => window.requestIdleCallback && !document.querySelector('.chart[data-waiting=true]')")
    page.evaluate(_WATCH)
    rounds = []
    while len(rounds) < 5 and min((max(one.values()) for one in rounds), default=SHOWN_S) >= SHOWN_S:
        rounds.append(p95_delays_s(page, live))
    assert min(max(one.values()) for one in rounds) < SHOWN_S, rounds
    page.wait_for_function(LAST_STEP, arg=live.last)
    assert trace(page, "loss", "loss")["x"] == list(range(1, live.last + 1))


def p95_delays_s(page, live):
    """From the write of a step to the moment at which each part of the page shows it or a later one."""
    written = {}
    for _ in range(20):
        began_s = time.time()
        written[live.step(time_s=began_s)] = began_s
        page.wait_for_timeout(max(0, 100 - 1000 * (time.time() - began_s)))
    wait_until(lambda: step_shown(page) == live.last == curve_shown(page), what="the last step")
    seen = page.evaluate("window.seen")
    return {name: p95_s({int(step): at_s for step, at_s in found.items()}, written) for name, found in seen.items()}


def p95_s(seen, written):
    return np.quantile(
        [min(at for step, at in seen.items() if step >= one) - at_s for one, at_s in written.items()], 0.95
    )


def curve_shown(page):
    return int(page.locator("[data-chart=loss] .plot").get_attribute("data-step"))


_TAILS = """() => {
  const plot = document.querySelector("[data-chart=loss] .plot");
  const tail = document.querySelector("[data-chart=loss] .tail");
  window.tails = {};
  new MutationObserver(() => {
    const path = tail.querySelector("path");
    if (!path) return;
    const {x, y} = path.getPointAtLength(path.getTotalLength());
    window.tails[plot.dataset.step] = [x, y];
  }).observe(tail, {childList: true, subtree: true});
}"""


def test_the_newest_step_lies_where_plotly_will_draw_it(open_page, serve, tmp_path, live):
    """To a pixel: at once as the tail of the curve, a little later as a part of it.

    A step that comes just when the whole chart is due has no tail: then the next one is looked at.
    """
    page = open_page(serve(tmp_path), "live")
    drawn(page)
    page.wait_for_function("() => !document.querySelector('.chart[data-waiting=true]')")
    page.evaluate(_TAILS)
    tail = None
    for _ in range(5):
        last = live.step(train__loss=2.2)
        page.wait_for_function(LAST_STEP, arg=last)
        if tail := page.evaluate("(last) => window.tails[last]", last):
            break
    line = page.evaluate("""() => {
      const path = document.querySelector("[data-chart=loss] .js-line");
      const box = document.querySelector("[data-chart=loss] .tail").getBoundingClientRect();
      const point = path.getPointAtLength(path.getTotalLength()).matrixTransform(path.getScreenCTM());
      return [point.x - box.left, point.y - box.top];
    }""")
    assert line == pytest.approx(tail, abs=1)
    page.wait_for_selector("[data-chart=loss] .tail path", state="detached")


def test_a_run_that_grows_long_becomes_means_which_count_every_step(open_page, serve, tmp_path):
    """From 600 single steps to 660: stretches of two, in a band that has the spike of the last step."""
    live = LiveRun(tmp_path / "live", steps=400, planned=1000, start_s=time.time() - 10)
    page = open_page(serve(tmp_path), "live")
    drawn(page)
    losses = [0.5 + 0.001 * step for step in range(300)]
    for loss in losses:
        live.step(train__loss=loss)
    last = live.step(train__loss=7.5)
    page.wait_for_function(
        "(last) => document.querySelector('[data-chart=loss] .plot').dataset.step === last", arg=str(last)
    )
    page.wait_for_function("""() => {
      const data = document.querySelector("[data-chart=loss] .plot").data;
      return data[0].meta.part === "band" && Math.max(...data[0].y) === 7.5;
    }""")
    found = trace(page, "loss", "loss")
    means = dict(zip(found["x"], found["y"], strict=True))
    for step in range(411, 691, 2):
        assert means[step + 0.5] == pytest.approx((losses[step - 401] + losses[step - 400]) / 2, rel=1e-9)
    assert found["x"][-1] == last == 701


def test_a_long_run_that_is_resumed_forgets_the_steps_that_came_after(open_page, serve, tmp_path):
    """3,000 steps, a spike at the last of them; it goes on from step 2,000."""
    live = LiveRun(tmp_path / "live", steps=2999, planned=9000, start_s=time.time() - 100)
    live.step(train__loss=50.0)
    page = open_page(serve(tmp_path), "live")
    drawn(page)
    cells = page.locator("[data-chart=loss] tbody tr:first-child td")
    wait_until(lambda: cells.all_inner_texts()[2:] == ["50"], what="the spike")
    live.append({"kind": "start", "step": 2000, "time_s": time.time(), "values": {}})
    live.last = 2000
    last = [live.step(train__loss=1.0) for _ in range(3)][-1]
    page.wait_for_function(
        "(last) => document.querySelector('[data-chart=loss] .plot').data[1].x.at(-1) === last", arg=last
    )
    assert float(cells.all_inner_texts()[2]) < 3


def test_throughput_is_rows_by_seconds_in_all_places(open_page, serve, tmp_path, live):
    """Of steps of 10 and 90 ms: 256 rows in 50 ms, where the mean of their rates is almost three times as much."""
    page = open_page(serve(tmp_path), "live")
    drawn(page)
    for number in range(50):
        step_s = 0.01 if number % 2 else 0.09
        live.step(train__rows=256, speed__step_s=step_s, speed__samples_per_s=256 / step_s)
    wait_until(lambda: step_shown(page) == live.last, what="the last step")
    for place in ("[data-flight=rate]", "[data-number=samples_per_s]"):
        wait_until(lambda at=place: page.locator(at).inner_text().startswith("5,120"), what=f"5,120 rows/s in {place}")
    assert page.locator("[data-number=step_time]").inner_text() == "50 ms"


def test_new_runs_show_up_and_deleted_ones_go(open_page, serve, tmp_path, live):
    page = open_page(serve(tmp_path), "live", tab="events")
    make_run(tmp_path / "another", steps=10)
    page.wait_for_selector('.run[data-run="another"]')
    shutil.rmtree(tmp_path / "another")
    page.wait_for_selector('.run[data-run="another"]', state="detached")
    assert page.locator("#headline h2").inner_text() == "live"


def test_the_run_in_focus_may_be_deleted(open_page, serve, tmp_path, live):
    """Another selected run takes its place."""
    make_run(tmp_path / "other", steps=20)
    page = open_page(serve(tmp_path), "other", "live")
    drawn(page, traces=2)
    shutil.rmtree(live.path)
    page.wait_for_function("() => document.querySelector('#headline h2').textContent === 'other'")
    page.wait_for_function(
        "() => document.querySelector('[data-chart=loss] .plot').data.every((one) => !one.name.includes('live'))"
    )


def test_a_dropped_connection_is_said_and_resumes_without_loss_or_repetition(open_page, serve, tmp_path, live):
    """The server ends, the run goes on, the server is there again."""
    server = serve(tmp_path)
    page = open_page(server, "live")
    drawn(page)
    heard = []
    page.expose_function("heard", lambda one: heard.append(one))
    page.evaluate("""() => {
      const add = EventSource.prototype.addEventListener;
      EventSource.prototype.addEventListener = function (name, handler) {
        return add.call(this, name, (message) => {
          if (name === "events") for (const one of JSON.parse(message.data).events) window.heard(one.step);
          if (name === "reset") window.heard("reset");
          handler(message);
        });
      };
    }""")
    server.stop()
    page.wait_for_selector("#connection[data-state=reconnecting]")
    assert page.locator("#connection").inner_text().startswith("reconnecting")
    missed = [live.step() for _ in range(5)]
    server.start()
    page.wait_for_selector("#connection[data-state=live]")
    after = [live.step() for _ in range(3)]
    wait_until(lambda: step_shown(page) == live.last, what="the last step in the headline")
    wait_until(lambda: heard[-1:] == after[-1:], what="the last event")
    assert heard == missed + after
    page.wait_for_function(LAST_STEP, arg=live.last)
    assert trace(page, "loss", "loss")["x"] == list(range(1, live.last + 1))
    # The browser itself writes refused connections to the console; nothing else may be there.
    assert [text for text in page.trouble if "ERR_" not in text] == []
    page.trouble.clear()


def test_a_run_that_begins_anew_under_its_name_is_read_anew(open_page, serve, tmp_path, live):
    page = open_page(serve(tmp_path), "live")
    drawn(page)
    shutil.rmtree(live.path)
    make_run(tmp_path / "live", steps=12, planned=50, ended=False, start_s=time.time())
    page.wait_for_function(
        "() => (document.querySelector('[data-chart=loss] .plot')?.data?.[0]?.x ?? []).at(-1) === 12"
    )
    wait_until(lambda: step_shown(page) == 12, what="the new step")


def test_a_torn_last_line_is_shown_when_it_is_whole(open_page, serve, tmp_path, live):
    page = open_page(serve(tmp_path), "live", tab="events")
    event = {"kind": "notice", "step": 30, "time_s": time.time(), "values": {}, "text": "a <b>bold</b> notice"}
    line = json.dumps(event)
    live.append(line[:25])
    live_before = page.locator("#panel-events tbody").inner_text()
    assert "bold" not in live_before
    live.append(line[25:] + "\n")
    page.wait_for_selector("#panel-events td >> text=a <b>bold</b> notice")
    assert page.locator(".cannot").is_hidden()


def test_live_values_that_are_not_finite_leave_a_gap_and_a_mark(open_page, serve, tmp_path, live):
    page = open_page(serve(tmp_path), "live")
    drawn(page)
    live.step(train__loss="inf")
    last = live.step()
    page.wait_for_function(LAST_STEP, arg=last)
    found = trace(page, "loss", "loss")
    assert dict(zip(found["x"], found["y"], strict=True))[last - 1] is None, (found["x"][-4:], found["y"][-4:])
    page.wait_for_selector(".mark[data-kind=nonfinite]")
    assert page.locator("[data-number=loss]").inner_text() != "NaN"


def test_a_clock_that_jumps_back_breaks_nothing(open_page, serve, tmp_path, live):
    page = open_page(serve(tmp_path), "live")
    drawn(page)
    live.step(time_s=time.time() - 86_400)
    last = live.step(time_s=time.time())
    page.wait_for_function(LAST_STEP, arg=last)
    page.locator("[data-axis=time]").click()
    page.wait_for_function(
        "() => document.querySelector('[data-chart=loss] .plot').layout.xaxis.ticksuffix !== undefined"
    )


def test_a_metric_that_appears_later_gets_its_chart(open_page, serve, tmp_path, live):
    page = open_page(serve(tmp_path), "live")
    drawn(page)
    live.step(train__noise_scale_rows=512.0)
    page.wait_for_selector("[data-chart=noise]")


def test_the_end_of_a_run_shows_in_its_badge(open_page, serve, tmp_path, live):
    page = open_page(serve(tmp_path), "live", tab="events")
    assert page.locator("#headline .badge").inner_text() == "running"
    live.end()
    page.wait_for_selector("#headline .badge[data-state=finished]")
