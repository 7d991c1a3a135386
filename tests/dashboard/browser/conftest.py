"""A real server and a real Chromium for the tests of the page.

Owns: starting both once, a page for a test, and what every page must hold: no error on the console, no request to
another host, nothing that the page's policy had to block.
Not here: run folders (`tests.dashboard.made_runs`).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from tests.dashboard.made_runs import make_run

CHROMIUM = os.environ.get("PACELINE_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
WAIT_MS = 15_000
HOSTILE = "<img src=x onerror=alert(1)>"
HOSTILE_METRIC = "train/<b onmouseover=alert(1)>&amp;"

_BLOCKED = """
window.blocked = [];
document.addEventListener("securitypolicyviolation", (event) => window.blocked.push(
  `${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""


class PageServer:
    """The server on a port of its own, in a thread; it can end and begin again on the same port."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        uvicorn = pytest.importorskip("uvicorn", reason="needs the extra watch")

        from paceline.dashboard.follow.library import Library
        from paceline.dashboard.serve.app import make_app

        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._app = make_app(Library(self.root))
        self._server = uvicorn.Server(uvicorn.Config(self._app, log_level="error", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, what="the server listens")

    def stop(self) -> None:
        self._app.state.pulse.close()
        self._server.should_exit = True
        self._thread.join(timeout=10)
        assert not self._thread.is_alive(), "the server did not end"


def wait_until(holds: Callable[[], Any], *, what: str, within_s: float = 15.0) -> Any:
    """Polls until ``holds()`` is true and returns it."""
    deadline = time.monotonic() + within_s
    while not (value := holds()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.01)
    return value


def module(page: Any, name: str, body: str, *arguments: Any) -> Any:
    """What a function of one of the page's modules gives."""
    return page.evaluate(f"async (args) => {{ const m = await import('/assets/{name}.js'); {body} }}", list(arguments))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"needs chromium: none at {CHROMIUM} (PACELINE_CHROMIUM names another)")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def runs_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs that no test changes."""
    root = tmp_path_factory.mktemp("runs")
    start_s = time.time() - 7200
    make_run(root / "baseline", steps=400, seed=1, nan_at=(120,), skip_at=(121,), restart_at=231, start_s=start_s)
    make_run(
        root / "sweep" / "zero1", steps=300, seed=2, placement="zero1", diverges_at=150, processes=2, slow_process=1,
        start_s=start_s - 3600,
    )  # fmt: skip
    hostile = make_run(root / HOSTILE, steps=60, seed=3, task="<b>bold</b>", start_s=start_s - 7200)
    events = hostile / "events-0.jsonl"
    events.write_text(events.read_text().replace('"train/accuracy"', f'"{HOSTILE_METRIC}"'))
    return root


@pytest.fixture(scope="session")
def server(runs_root: Path) -> Iterator[PageServer]:
    """Serves `runs_root`."""
    running = PageServer(runs_root)
    yield running
    running.stop()


@pytest.fixture
def serve() -> Iterator[Callable[[Path], PageServer]]:
    """Starts servers of other folders, for one test. They end after its pages."""
    running: list[PageServer] = []

    def start(root: Path) -> PageServer:
        running.append(PageServer(root))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture(scope="session")
def contexts(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Browser contexts by their options: shared, so that plotly.min.js is fetched and compiled once for all tests.

    A clock that a test installs stays in its context: such a test names its ``clock`` and gets one to itself.
    """
    made: dict[str, Any] = {}

    def context(*, clock: str = "", **options: Any) -> Any:
        key = json.dumps([clock, options], sort_keys=True)
        if key not in made:
            made[key] = chromium.new_context(**options)
        return made[key]

    yield context
    for one in made.values():
        one.close()


def _is_of_removed(answer: Any, server: PageServer) -> bool:
    """Whether a run was asked for that a test has just removed, before the page could know."""
    runs = parse_qs(urlsplit(answer.url).query).get("run", [])
    return answer.status == 404 and bool(runs) and not any((server.root / run).exists() for run in runs)


class Pages:
    """Pages of one test, or of one module, and what each of them must keep."""

    def __init__(self, contexts: Callable[..., Any]) -> None:
        self._contexts = contexts
        self._open: list[Any] = []

    def open(self, server: PageServer, *runs: str, tab: str = "curves", **options: Any) -> Any:
        """A page that shows ``runs`` on ``tab`` and is connected; ``options`` are those of a browser context, or
        ``clock="name"`` for a test that installs a clock."""
        page = self._contexts(**{"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", **options}).new_page()
        self._open.append(page)
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(_BLOCKED)
        page.trouble, page.asked_too_late = [], []
        page.on("console", lambda said: said.type in ("error", "warning") and page.trouble.append(said.text))
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on("dialog", lambda dialog: (page.trouble.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: _note_foreign(request.url, server, page.trouble))
        page.on("response", lambda answer: _is_of_removed(answer, server) and page.asked_too_late.append(answer.url))
        query = "&".join([f"tab={tab}", *(f"run={quote(run, safe='')}" for run in runs)])
        page.goto(f"{server.url}/#{query}")
        page.wait_for_selector("#connection[data-state=live]")
        return page

    def close(self) -> list[str]:
        """Closes them; returns what went wrong on any: errors, dialogs, foreign requests, blocked content."""
        found: list[str] = []
        for page in self._open:
            for _ in page.asked_too_late:  # the browser itself notes these on the console
                told = next(
                    (text for text in page.trouble if "the server responded with a status of 404" in text), None
                )
                if told is not None:
                    page.trouble.remove(told)
            found += page.trouble + page.evaluate("window.blocked")
            page.evaluate("localStorage.clear()")
            page.close()
        return found


@pytest.fixture
def open_page(contexts: Callable[..., Any], serve: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages for one test, and afterwards asks whether each kept what every page must hold."""
    pages = Pages(contexts)
    yield pages.open
    assert pages.close() == []


@pytest.fixture(scope="module")
def shared_page(contexts: Callable[..., Any], server: PageServer) -> Iterator[Callable[..., Any]]:
    """Pages of `server` for tests that only look: the same runs on the same tab give the same page."""
    pages = Pages(contexts)
    kept: dict[tuple[str, ...], Any] = {}

    def page(*runs: str, tab: str = "curves") -> Any:
        key = (tab, *runs)
        if key not in kept:
            kept[key] = pages.open(server, *runs, tab=tab)
        return kept[key]

    yield page
    assert pages.close() == []


def _note_foreign(url: str, server: PageServer, trouble: list[str]) -> None:
    parts = urlsplit(url)
    if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != f"127.0.0.1:{server.port}":
        trouble.append(f"a request to another host: {url}")


def drawn(page: Any, chart: str = "loss", *, traces: int = 1) -> None:
    """Waits until a chart has at least so many traces."""
    page.wait_for_function(
        "([chart, traces]) => (document.querySelector(`[data-chart='${chart}'] .plot`)?.data ?? []).length >= traces",
        arg=[chart, traces],
    )


def trace(page: Any, chart: str, name: str) -> dict[str, Any]:
    """The x and y of the line of a chart whose run and key end in ``name``; ``band`` is the outline around it."""
    return page.evaluate(
        """([chart, name]) => {
          const plot = document.querySelector(`[data-chart="${chart}"] .plot`);
          const parts = plot.data.filter((one) => one.meta && `${one.meta.run} ${one.meta.key}`.endsWith(name));
          const found = parts.find(({meta}) => meta.part === "line");
          const band = parts.find(({meta}) => meta.part === "band" && meta.key === found.meta.key);
          const points = (one) => one && {x: [...one.x], y: [...one.y]};
          return found && {...points(found), name: found.name, line: found.line, band: points(band)};
        }""",
        [chart, name],
    )


def hovered(page: Any, chart: str, *, share: float) -> str:
    """What a chart says of the point at ``share`` of its width."""
    plot = page.locator(f"[data-chart='{chart}'] .plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    left, right = 58, 12  # margins of the plot
    position = {"x": left + share * (box["width"] - left - right), "y": box["height"] * 0.4}
    plot.hover(position={**position, "y": position["y"] + 2}, force=True)
    plot.hover(position=position, force=True)
    layer = page.locator(f"[data-chart='{chart}'] .hoverlayer")
    return wait_until(lambda: layer.text_content(), what=f"{chart} shows a label")
