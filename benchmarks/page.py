"""The live page in a browser: how soon it shows long runs to somebody who has just started the server.

Twenty runs of 100,000 steps with 12 series (three with --quick), none of them read yet, all of them chosen; a browser
that has nothing kept. Needs Playwright and Chromium (PACELINE_CHROMIUM names it); without them there are no rows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, say, spread
from benchmarks.watch import KEYS, STEPS, serving, write_run

NAME = "page"
DEVICES = (1,)

_CHROMIUM = os.environ.get("PACELINE_CHROMIUM") or shutil.which("chromium")
_PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
_LISTED = "(runs) => document.querySelectorAll('.run').length >= runs && performance.now()"
_DRAWN = """(runs) => {
  const lines = (document.querySelector("[data-chart=loss] .plot")?.data ?? []).filter((one) => one.x?.length > 100);
  return new Set(lines.map((one) => one.meta?.run)).size >= runs && performance.now();
}"""


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        say("  no rows: Playwright is not installed")
        return
    if _CHROMIUM is None:
        say("  no rows: there is no Chromium")
        return
    runs = 3 if quick else 20
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        root = Path(folder)
        for number in range(runs):
            write_run(root / f"run-{number:02}", seed=number)
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        _first_look(browser, root, runs=1)  # the browser's own start is not the page's
        looks = [_first_look(browser, root, runs=runs) for _ in range(3 if quick else 7)]
        browser.close()
    what = f"{runs} runs of {STEPS:,} steps, {len(KEYS)} series"
    for place, (name, most) in enumerate((("first paint", 1.0), ("all runs listed", None), ("curves of all", None))):
        times_s = [look[place] for look in looks]
        yield Row(NAME, f"{name}, {what}, nothing read and nothing kept before", spread(times_s), "s", at_most=most)


def _first_look(browser: Any, root: Path, *, runs: int) -> tuple[float, float, float]:
    """Seconds from the opening of the address to each sight."""
    with serving(root) as server:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        chosen = "&".join(f"run=run-{number:02}" for number in range(runs))
        page.goto(f"{server.address}/#tab=curves&{chosen}")
        listed_ms = page.wait_for_function(_LISTED, arg=runs).json_value()
        drawn_ms = page.wait_for_function(_DRAWN, arg=runs).json_value()
        painted_ms = page.wait_for_function(_PAINTED).json_value()
        context.close()
    return painted_ms / 1e3, listed_ms / 1e3, drawn_ms / 1e3
