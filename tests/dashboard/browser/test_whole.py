"""What the page says first: replicas that differ, and a run that has ended by all its steps."""

from __future__ import annotations

import pytest

from tests.dashboard.browser.conftest import wait_until
from tests.dashboard.made_runs import LiveRun, make_run


@pytest.mark.parametrize(("steps", "said"), [(100, "no longer one model"), (150, "a later one found them equal")])
def test_replicas_that_differ_are_told_on_every_panel_and_in_the_list(open_page, serve, tmp_path, steps, said):
    """The newest audit in the list too; an earlier one keeps its leaf and device beside the tiles."""
    make_run(tmp_path / "run", steps=steps, diverges_at=100)
    page = open_page(serve(tmp_path), "run", tab="pipeline")
    warning = page.locator(".head-warning")
    assert said in warning.inner_text() and "step 100" in warning.inner_text()
    badge = page.locator(".run .badge").inner_text()
    assert badge == ("finished, replicas differ" if steps == 100 else "finished")
    page.locator("#tab-replicas").click()
    verdicts = page.locator(".rc-verdict")
    wait_until(lambda: verdicts.count() == (1 if steps == 100 else 2), what="the verdict")
    if steps == 150:
        assert "Last divergence: step 100 params.conv1.kernel (device 2)" in verdicts.last.inner_text()


def test_without_a_difference_nothing_is_warned_of(open_page, serve, tmp_path):
    make_run(tmp_path / "run", steps=100)
    page = open_page(serve(tmp_path), "run", tab="replicas")
    assert not page.locator(".head-warning").is_visible()


def test_a_run_that_has_ended_is_shown_by_all_its_steps_in_each_place(open_page, serve, tmp_path):
    """Its last 50 steps were four times as fast: 100 of 0.4 s and 50 of 0.1 s make 853 rows a second."""
    live = LiveRun(tmp_path / "run", planned=150, batch=256)
    for step in range(1, 151):
        step_s = 0.4 if step <= 100 else 0.1
        live.step(speed__step_s=step_s, speed__samples_per_s=256 / step_s, speed__latency_s=step_s, train__rows=256)
    rate = 256 * 150 / (100 * 0.4 + 50 * 0.1)
    page = open_page(serve(tmp_path), "run", tab="curves")
    places = ["[data-flight=rate]", "[data-number=samples_per_s]"]
    assert f"{rate:,.0f}" == "853"
    wait_until(lambda: [page.locator(one).inner_text() for one in places] == ["2,560/s"] * 2, what="the last steps")
    live.end()
    report = (tmp_path / "run" / "report.json").read_text()
    (tmp_path / "run" / "report.json").write_text(
        report.replace('"samples_per_s": 12800.0', f'"samples_per_s": {rate}')
    )
    wait_until(lambda: [page.locator(one).inner_text() for one in places] == ["853/s"] * 2, what="the whole run")
    page.locator("#tab-pipeline").click()
    page.wait_for_selector(".pl-facts")
    wait_until(lambda: "853/s" in page.locator(".pl-facts").inner_text(), what="the pipeline's rate")
    assert "means of the whole run, 150 steps" in page.locator("#panel-pipeline").inner_text()
