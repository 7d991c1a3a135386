"""Takes the pictures of the page that the documents show: ``python -m tests.dashboard.pictures /runs``.

Owns: the made runs on them, what each picture shows.
Not here: run folders (`tests.dashboard.made_runs`), the server (`tests.dashboard.browser.conftest`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.dashboard.browser.conftest import ARGUMENTS, CHROMIUM, PageServer
from tests.dashboard.made_runs import LiveRun, make_run

PICTURES = Path(__file__).parents[2] / "docs" / "images"
_LARGE = {"devices": 8, "batch": 1024, "row_shape": (224, 224, 3)}
_WIDE = {"width": 1280, "height": 860}


def make_runs(root: Path) -> LiveRun:
    """Four runs that have ended, and the one that goes on."""
    now_s = time.time()
    make_run(root / "slow-input", steps=800, seed=4, processes=4, slow_process=2, wait_share=0.4 / 6, step_s=0.05,
             start_s=now_s - 12_000)  # fmt: skip
    make_run(root / "image-digits", steps=40, seed=5, scheme="global_view", start_s=now_s - 9_000)
    make_run(root / "zero1", steps=2000, seed=2, placement="zero1", diverges_at=800, step_s=0.22, every=200,
             start_s=now_s - 8_000, **_LARGE)  # fmt: skip
    make_run(root / "resnet-8gpu", steps=3000, seed=1, step_s=0.2, every=200, nan_at=(700,), skip_at=(701,),
             restart_at=1300, start_s=now_s - 4_000, **_LARGE)  # fmt: skip
    return LiveRun(root / "live", steps=240, step_s=0.1, start_s=now_s - 27, seed=3, **_LARGE)


@contextmanager
def stepping(live: LiveRun) -> Iterator[None]:
    """Ten steps a second."""
    done = threading.Event()

    def step() -> None:
        while not done.wait(0.1):
            live.step(time_s=time.time())

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    yield
    done.set()
    thread.join()


def take(browser: Any, server: PageServer, name: str, *, runs: list[str], tab: str, **options: Any) -> None:
    """One picture, of what is in view after everything was drawn."""
    page = browser.new_context(**{"viewport": _WIDE, "locale": "en-GB", **options}).new_page()
    page.goto(f"{server.url}/#{'&'.join([f'tab={tab}', *(f'run={run}' for run in runs)])}")
    page.wait_for_selector("#connection[data-state=live]")
    page.wait_for_timeout(6000)
    taken = Image.open(BytesIO(page.screenshot()))
    taken.quantize(256).save(PICTURES / f"{name}.png", optimize=True)  # a third of the bytes, and looks the same
    page.close()


def main(root: Path) -> None:
    """All pictures; ``root`` is the folder that they name, and must be new."""
    root.mkdir()
    live = make_runs(root)
    server = PageServer(root)
    tall = {"width": 1280, "height": 1000}
    with sync_playwright() as playwright, stepping(live):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        take(browser, server, "pipeline", runs=["live"], tab="pipeline")
        take(browser, server, "bottleneck", runs=["slow-input"], tab="pipeline", color_scheme="dark")
        take(browser, server, "curves", runs=["resnet-8gpu", "zero1"], tab="curves", viewport=tall)
        take(browser, server, "compare-chinese", runs=["resnet-8gpu", "zero1"], tab="compare", locale="zh-CN",
             viewport=tall)  # fmt: skip
        take(browser, server, "phone", runs=["live"], tab="pipeline", color_scheme="dark",
             viewport={"width": 390, "height": 1560})  # fmt: skip
        browser.close()
    server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
