"""What a user waits for before the first step: imports, help, compilation, and how little of it comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, alternate, say, speedup, spread

NAME = "start"
DEVICES = (4,)

_MAIN = ["-m", "paceline.cli.main"]
_TRAIN = [*_MAIN, "train", "image", "--simulate", "4", "--steps", "1", "--progress", "none"]


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    yield from _imports(5 if quick else 11)
    yield from _second_fit(devices, quick=quick)
    if not quick:
        yield from _compilation_cache(2)


def _imports(repeats: int) -> Iterator[Row]:
    times = alternate(
        {
            "python": lambda: _seconds(["-c", "pass"]),
            "import": lambda: _seconds(["-c", "import paceline"]),
            "help": lambda: _seconds([*_MAIN, "--help"]),
        },
        repeats=repeats,
    )
    imported = spread((full - bare) * 1e3 for full, bare in zip(times["import"], times["python"], strict=True))
    yield Row(NAME, "import paceline, the start of Python taken off", imported, "ms", at_most=60)
    yield Row(NAME, "paceline --help, the whole process", spread(times["help"]), "s", at_most=0.7)


def _second_fit(devices: int, *, quick: bool) -> Iterator[Row]:
    """The first and second fit of one step, and the programs that XLA compiled in the second."""
    import jax  # the other parts of this module need no jax
    import optax  # as above

    from benchmarks.models import mlp  # as above
    from benchmarks.paced import Paced  # as above

    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    times: dict[str, list[float]] = {"first": [], "second": []}
    programs = []
    for number in range(3 if quick else 7):
        model = mlp([64 + number, 64], rows=64)  # another shape, another program
        paced = Paced(model, optax.adam(1e-3), devices=devices)
        for name in times:
            before, start_s = len(compiled), time.perf_counter()
            paced.fit(iter(model.batches), steps=1, evaluation=model.data(), batch=model.rows)
            times[name].append(time.perf_counter() - start_s)
        programs.append(float(len(compiled) - before))
    assert compiled, "JAX no longer reports its compilations under this name"
    yield Row(
        NAME,
        "first fit / second fit of the same shapes, one step and an evaluation",
        speedup(times, "second", over="first"),
    )
    yield Row(NAME, "programs that the second fit compiled", spread(programs), "programs", at_most=0)


def _compilation_cache(repeats: int) -> Iterator[Row]:
    cold, warm = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for taken in (cold, warm):
                run = Path(folder) / f"run-{len(cold)}-{len(warm)}"
                cache = str(Path(folder) / "cache")
                taken.append(_seconds([*_TRAIN, "--run", str(run), "--compilation-cache", cache]))
            say(f"  image recipe, one step: {cold[-1]:.1f} s cold, {warm[-1]:.1f} s with the compilation cache")
    at = "paceline train image --simulate 4 --steps 1, the whole process"
    yield Row(NAME, f"{at}, no compiled programs kept", spread(cold), "s")
    yield Row(NAME, f"{at}, --compilation-cache from an earlier run", spread(warm), "s")


def _seconds(arguments: list[str]) -> float:
    start_s = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=os.environ, capture_output=True, text=True, check=False)
    taken_s = time.perf_counter() - start_s
    if done.returncode:
        raise RuntimeError(f"{arguments} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return taken_s
