"""The server of the live page: how soon it shows long runs, what it costs, and how much it keeps.

Twenty runs of 100,000 steps with 12 series (three with --quick) lie in a folder; `paceline watch` serves it as a user
would start it. Files are warm in the page cache, as they are just after training.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Row, spread

NAME = "watch"
DEVICES = (1,)

STEPS = 100_000
KEYS = (
    "train/loss", "train/learning_rate", "train/gradient_norm", "train/loss_scale", "train/rows", "speed/step_s",
    "speed/samples_per_s", "speed/latency_s", "input/wait_s", "input/queued_batches", "input/make_s", "input/place_s",
)  # fmt: skip
_START_S = 1_790_000_000.0
_FOLLOWED_S = 15.0
_EVENTS_PER_S = 10


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    runs = 3 if quick else 20
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(runs):
            write_run(root / f"run-{number:02}", seed=number)
        yield _list_row(root, runs=runs, repeats=3 if quick else 5)
        with serving(root) as server:
            yield from _rows(server, root, runs=runs, repeats=5 if quick else 11)


def _list_row(root: Path, *, runs: int, repeats: int) -> Row:
    """The start of Python and of the server are in it: what a user waits for after typing the command."""
    times_s = []
    for _ in range(repeats):
        begin_s = time.perf_counter()
        with serving(root) as server:
            server.until(lambda: len(server.get("/api/runs")["runs"]) == runs)
            times_s.append(time.perf_counter() - begin_s)
    return Row(NAME, f"start of the server to the list of {runs} runs of {STEPS:,} steps", spread(times_s), "s")


def _rows(server: _Server, root: Path, *, runs: int, repeats: int) -> Iterator[Row]:
    ids = [f"run-{number:02}" for number in range(runs)]
    what = f"{runs} runs of {STEPS:,} steps, {len(KEYS)} series"
    query = [("run", id) for id in ids] + [("key", key) for key in KEYS] + [("points", "1000")]

    server.until(lambda: len(server.get("/api/runs")["runs"]) == runs)
    begin_s = time.perf_counter()
    first = server.get("/api/series", query)["runs"]
    picture_s = time.perf_counter() - begin_s
    assert all(run["series"] for run in first.values()), "a run without a picture"
    server.until(
        lambda: all(run["read"]["bytes"] == run["read"]["of_bytes"] for run in server.get("/api/runs")["runs"])
    )
    yield Row(NAME, f"first answer with curves, {what}", spread([picture_s]), "s", at_most=1.0)
    yield Row(NAME, f"all read to the end, {what}", spread([time.perf_counter() - begin_s]), "s")

    times_s = [server.time_s("/api/series", query) for _ in range(repeats)]
    yield Row(NAME, f"curves of all, read before, {what}", spread(times_s), "s", at_most=0.3)
    part = [*query, ("from_step", "40000"), ("to_step", "60000")]
    times_s = [server.time_s("/api/series", part) for _ in range(repeats)]
    yield Row(NAME, f"curves of a fifth of the steps, {what}", spread(times_s), "s", at_most=0.3)
    yield from _following(server, root, ids[-1])
    yield Row(NAME, f"most memory of the server, {what}", spread([server.memory_mb("VmHWM")]), "MB", at_most=150)


def _following(server: _Server, root: Path, id: str) -> Iterator[Row]:
    """An open stream of one run that writes; the other runs lie idle beside it."""
    delays_s: list[float] = []
    with _stream(server, id, delays_s):
        time.sleep(1.0)  # the first message, and the look at all files
        used_s, begin_s = server.processor_s(), time.perf_counter()
        with open(root / id / "events-0.jsonl", "ab", buffering=0) as file:
            for number in range(int(_FOLLOWED_S * _EVENTS_PER_S)):
                time.sleep(max(0.0, begin_s + number / _EVENTS_PER_S - time.perf_counter()))
                file.write(
                    _line(STEPS + 1 + number, time.time(), np.random.default_rng(number).random(len(KEYS)).tolist())
                )
        share = (server.processor_s() - used_s) / (time.perf_counter() - begin_s)
        time.sleep(0.5)
    what = f"one run that writes {_EVENTS_PER_S} events/s"
    yield Row(NAME, f"processor of the server, following {what}", spread([share * 100]), "%", at_most=3)
    yield Row(NAME, f"event written to event received, p95, {what}", spread([_p95(delays_s) * 1e3]), "ms", at_most=250)


def _p95(values: list[float]) -> float:
    assert len(values) >= 0.9 * _FOLLOWED_S * _EVENTS_PER_S, f"only {len(values)} events came"
    return float(np.quantile(values, 0.95))


@contextmanager
def _stream(server: _Server, id: str, delays_s: list[float]) -> Iterator[None]:
    """Fills in the time from each event's own time to its arrival here."""
    answer = urllib.request.urlopen(server.address + "/api/stream?" + urllib.parse.urlencode({"run": id}))

    def read() -> None:
        with suppress(OSError, ValueError, AttributeError):  # it is closed below, while it reads
            for line in answer:
                if line.startswith(b"data:") and b'"events"' in line:
                    now_s = time.time()
                    events = json.loads(line[5:])["events"]
                    delays_s.extend(now_s - event["time_s"] for event in events if event["kind"] == "step")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield
    thread.join(timeout=0.1)


class _Server:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.pid = process.pid
        self.address = address

    def get(self, path: str, query: list[tuple[str, str]] | None = None) -> Any:
        return json.loads(self._bytes(path, query))

    def time_s(self, path: str, query: list[tuple[str, str]]) -> float:
        """Seconds of one answer, decoding here left out."""
        begin_s = time.perf_counter()
        self._bytes(path, query)
        return time.perf_counter() - begin_s

    def until(self, ready: Any, *, limit_s: float = 300.0) -> None:
        """Ask again and again."""
        end_s = time.perf_counter() + limit_s
        while not ready():
            assert time.perf_counter() < end_s, "the server does not come to an end"
            time.sleep(0.05)

    def memory_mb(self, name: str) -> float:
        """`VmRSS` now or `VmHWM`, the most so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024

    def processor_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _bytes(self, path: str, query: list[tuple[str, str]] | None) -> bytes:
        address = self.address + path + ("?" + urllib.parse.urlencode(query) if query else "")
        with urllib.request.urlopen(address, timeout=120) as answer:
            return answer.read()


@contextmanager
def serving(root: Path) -> Iterator[_Server]:
    command = [sys.executable, "-u", "-m", "paceline.cli.main", "watch", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "asked for above"
        try:
            for line in process.stdout:
                if found := re.search(r"http://\S+", line):
                    break
            else:
                raise RuntimeError("the server ended without an address; what it said stands above")
            threading.Thread(target=process.stdout.read, daemon=True).start()  # else it stops when the pipe is full
            yield _Server(process, found[0].rstrip("/"))
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()


def write_run(folder: Path, *, seed: int) -> None:
    """Random numbers in full precision: nothing about them is easy to keep small."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"task": "made", "counts": {"steps": STEPS}}))
    values = np.random.default_rng(seed).random((STEPS, len(KEYS)))
    with open(folder / "events-0.jsonl", "wb") as file:
        file.write(b'{"kind":"start","step":0,"time_s":%d,"values":{}}\n' % _START_S)
        for step, row in enumerate(values.tolist(), start=1):
            file.write(_line(step, _START_S + seed * 1e5 + step * 0.1, row))


def _line(step: int, time_s: float, values: list[float]) -> bytes:
    event = {"kind": "step", "step": step, "time_s": time_s, "values": dict(zip(KEYS, values, strict=True))}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
