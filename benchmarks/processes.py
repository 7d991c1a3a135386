"""Several processes: their throughput and start beside one process with as many devices, and the way back after a
kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, alternate, say, spread, text_s
from paceline.telemetry.status import read_status, status_path

NAME = "processes"
DEVICES = (2,)

_TRAIN = [sys.executable, "-m", "paceline.cli.main", "train"]
_FLAGS = ["--simulate", "2", "--progress", "none"]


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    found: dict[str, list[tuple[float, float]]] = {"one": [], "two": []}

    def side(name: str, flags: list[str]) -> float:
        with tempfile.TemporaryDirectory() as folder:
            found[name].append(_train(Path(folder), [*flags, "--steps", "40"]))
        return found[name][-1][0]

    alternate(
        {"one": lambda: side("one", []), "two": lambda: side("two", ["--processes", "2"])},
        repeats=3 if quick else 5,
        limit_s=300,
    )
    pairs = list(zip(found["two"], found["one"], strict=True))[1:]
    yield Row(
        NAME, "image recipe, two processes of one device / one process of two: samples a second",
        spread(two[1] / one[1] for two, one in pairs),
    )  # fmt: skip
    first = " and ".join(text_s(spread(entry[0] for entry in found[name]).median) for name in ("two", "one"))
    yield Row(
        NAME, f"the same, from the command to the first step: {first}", spread(two[0] / one[0] for two, one in pairs),
        at_most=1.3,
    )  # fmt: skip
    yield _after_a_kill(3 if quick else 5)


def _train(folder: Path, flags: list[str]) -> tuple[float, float]:
    """Seconds from the command to the first finished step, and samples a second."""
    start_s = time.time()
    command = [*_TRAIN, "image", *_FLAGS, "--run", str(folder / "run"), *flags]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    report = json.loads((folder / "run" / "report.json").read_text())
    return next(_steps(folder / "run"))["time_s"] - start_s, report["samples_per_s"]


def _steps(run: Path) -> Iterator[dict[str, Any]]:
    lines = (run / "events-0.jsonl").read_text().splitlines()
    return (event for event in map(json.loads, lines) if event["kind"] == "step")


def _after_a_kill(repeats: int) -> Row:
    """From SIGKILL of process 1 to the first step of the next attempt, programs cached; of it restore and
    compilation."""
    taken, rest = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            back_s, own_s = _kill_once(Path(folder))
        taken.append(back_s)
        rest.append(own_s)
        say(f"  {back_s:.2f} s, of it {own_s:.2f} s of restoring, tracing and compiling")
    own = text_s(spread(rest).median)
    compared = (
        f"linear recipe, two processes, from a kill to the next step, less restoring, tracing and compiling ({own})"
    )
    return Row(NAME, compared, spread(a - b for a, b in zip(taken, rest, strict=True)), "s", at_most=3.0)


def _kill_once(folder: Path) -> tuple[float, float]:
    run = folder / "run"
    command = [*_TRAIN, "linear", *_FLAGS, "--run", str(run), "--processes", "2", "--max-restarts", "1"]
    with subprocess.Popen(
        [*command, "--steps", "20000", "--checkpoint-every", "100"], cwd=folder, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as launched:  # fmt: skip
        status = _wait_for_step(folder, 200)
        killed_s = time.time()
        os.kill(status, signal.SIGKILL)
        launched.wait(timeout=120)
    events = [json.loads(line) for line in (run / "events-0.jsonl").read_text().splitlines()]
    again = [number for number, event in enumerate(events) if event["kind"] == "start"][-1]
    first = next(event for event in events[again:] if event["kind"] == "step")
    began = json.loads((run / "report.json").read_text())
    return first["time_s"] - killed_s, began["restore_s"] + began["compile_s"]


def _wait_for_step(folder: Path, step: int) -> int:
    """The pid of process 1 once it has made so many steps."""
    deadline_s = time.time() + 120
    while time.time() < deadline_s:
        for logs in folder.glob("runs/launch-*"):
            status = read_status(status_path(logs, 1))
            if status is not None and status.step >= step:
                return status.pid
        time.sleep(0.02)
    raise TimeoutError("process 1 made no steps")
