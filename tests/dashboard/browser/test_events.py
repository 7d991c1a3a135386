"""The Events panel: what each event is called, and choosing by kind."""

from __future__ import annotations

import pytest

from tests.dashboard.browser.conftest import wait_until


@pytest.mark.parametrize(
    ("locale", "equal", "differing"), [("en-GB", "audit, all equal", "divergence"), ("zh-CN", None, "副本不一致")]
)
def test_an_audit_that_found_a_difference_is_called_a_divergence(open_page, server, locale, equal, differing):
    page = open_page(server, "sweep/zero1", tab="events", locale=locale)
    rows = page.locator("#panel-events tbody tr")
    wait_until(lambda: rows.count() > 10, what="events")
    bad = page.locator("#panel-events tbody .badge[data-tone=bad]")
    assert bad.all_inner_texts() == [differing]
    kinds = page.locator("#panel-events select")
    kinds.select_option(label=differing)
    assert rows.count() == 1 and "params.conv1.kernel" in rows.inner_text()
    kinds.select_option("audit")
    badges = set(page.locator("#panel-events tbody .badge").all_inner_texts())
    assert rows.count() > 1 and len(badges) == 1 and differing not in badges
    assert equal is None or badges == {equal}
