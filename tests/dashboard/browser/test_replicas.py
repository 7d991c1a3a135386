"""The replicas: what the last audit found, device by device; the processes; the counts."""

from __future__ import annotations

import pytest

from tests.dashboard.browser.conftest import PageServer, wait_until
from tests.dashboard.made_runs import LiveRun, make_run


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that goes on, beside which the others lie."""
    return LiveRun(tmp_path_factory.mktemp("replicas") / "begun")


@pytest.fixture(scope="module")
def replicas_server(begun):
    """A run whose last audit found a difference, one found equal on 64 devices, one that was never audited."""
    root = begun.path.parent
    make_run(
        root / "diverged", steps=100, diverges_at=100, processes=2, slow_process=1, skip_at=(40, 41), restart_at=80
    )
    make_run(root / "many", steps=50, devices=64)
    make_run(root / "never", steps=20)
    running = PageServer(root)
    yield running
    running.stop()


def open_replicas(open_page, server, run, **options):
    page = open_page(server, run, tab="replicas", **options)
    page.wait_for_selector(".rc-tile")
    return page


def tile(page, device):
    return page.locator(".rc-tile").nth(device)


def test_a_difference_names_leaf_and_device_and_the_rest_is_called_equal(open_page, replicas_server):
    page = open_replicas(open_page, replicas_server, "diverged")
    assert "≠ differs" in tile(page, 2).inner_text()
    assert tile(page, 2).locator(".rc-leaves").inner_text() == "params.conv1.kernel"
    assert [tile(page, device).get_attribute("data-state") for device in range(4)] == ["equal", "equal", "odd", "equal"]
    assert "= equal" in tile(page, 0).inner_text()
    verdict = page.locator(".rc-verdict").inner_text()
    assert "At step 100: 1 of 62 leaves differ." in verdict
    assert "params.conv1.kernel on device 2 (process 0)" in verdict


def test_processes_show_their_step_input_and_who_lags_and_why(open_page, replicas_server):
    """Process 1 is six times slower at input: 24 ms to make a batch, 2.4 ms of waiting against 0.4."""
    page = open_replicas(open_page, replicas_server, "diverged")
    rows = page.locator(".rc table tbody tr")
    assert rows.count() == 2
    first, second = rows.nth(0).inner_text(), rows.nth(1).inner_text()
    assert "straggler" not in first
    assert "straggler" in second and "a step for input, the others" in second
    assert [rows.nth(place).locator("td").nth(2).inner_text() for place in (0, 1)] == ["100", "100"]
    assert rows.nth(1).locator("td").nth(3).inner_text().endswith(" ms")
    assert "end" in first
    counts = dict(
        zip(
            page.locator(".rc-counts dt").all_inner_texts(),
            page.locator(".rc-counts dd").all_inner_texts(),
            strict=True,
        )
    )
    assert counts == {"Divergences": "1", "Restarts": "1", "Skipped updates": "2", "Checkpoints": "2"}


def test_what_was_never_audited_is_not_called_equal(open_page, replicas_server):
    page = open_replicas(open_page, replicas_server, "never", locale="zh-CN", color_scheme="dark")
    assert {tile(page, device).get_attribute("data-state") for device in range(4)} == {"not_audited"}
    assert "未审计" in page.locator(".rc-verdict").inner_text()
    assert "一致" not in page.locator(".rc-tiles").inner_text()


def test_many_devices_are_small_tiles_that_still_say_their_state(open_page, replicas_server):
    page = open_replicas(open_page, replicas_server, "many", viewport={"width": 390, "height": 800})
    assert page.locator(".rc-tile").count() == 64
    assert tile(page, 63).locator(".unseen").text_content() == "device 63, process 0: equal"
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def test_an_audit_that_comes_while_the_page_is_open_shows(open_page, replicas_server, begun):
    page = open_replicas(open_page, replicas_server, "begun")
    assert tile(page, 0).get_attribute("data-state") == "not_audited"
    values = {"audit/compared_leaves": 62, "audit/differing_leaves": 0}
    begun.append({"kind": "audit", "step": 5, "time_s": 1_790_000_010.0, "values": values})
    wait_until(lambda: tile(page, 0).get_attribute("data-state") == "equal", what="the audit shows")
    assert "At step 5: 62 leaves compared on every device, all equal." in page.locator(".rc-verdict").inner_text()
