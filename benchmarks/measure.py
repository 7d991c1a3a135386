"""How a benchmark measures: sides in turn, ratios of neighbours, medians with quartiles.

Owns: alternating repeats, the bounded bare loop, rows of the table, the description of the machine.
Not here: what is compared (one module a benchmark), models (`models`, `hand`), the command line (`run`).
Invariant: both sides of a ratio run in one process, in turn, and a ratio is formed from neighbours in time: on a shared
machine the load changes within seconds, and then it changes both.
"""

from __future__ import annotations

import itertools
import os
import platform
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

IN_FLIGHT = 16
"""Steps that a hand-written loop keeps in flight. Without a bound, loops over simulated devices end in XLA's
"Termination timeout for all reduce" on jax 0.10: at 32 programs in flight its CPU client deadlocks."""

Side = Callable[[], float]
"""One repeat of one side; returns seconds a step."""


class Spread(NamedTuple):
    """A median between its quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Args:
      benchmark: name of the module.
      compared: what stands over what, with the sizes and times that matter.
      value: what was measured, in `unit`.
      unit: ``x`` for ratios, ``s``, ``ms``, ``us``, ``%``, ``bytes`` or ``programs``.
      at_least, at_most: the target, if there is one.
    """

    benchmark: str
    compared: str
    value: Spread
    unit: str = "x"
    at_least: float | None = None
    at_most: float | None = None

    def met(self) -> str:
        """Whether the median meets the target; a miss by less than the quartiles are apart is called noise."""
        at_least, at_most = self.at_least, self.at_most
        if at_least is None and at_most is None:
            return ""
        if (at_least is None or self.value.median >= at_least) and (at_most is None or self.value.median <= at_most):
            return "yes"
        near = (at_least is None or self.value.high >= at_least) and (at_most is None or self.value.low <= at_most)
        return "within noise" if near else "**no**"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def row_from_dict(fields: Mapping[str, Any]) -> Row:
    return Row(**{**fields, "value": Spread(*fields["value"])})


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    if len(ordered) == 1:
        return Spread(ordered[0], ordered[0], ordered[0])
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return Spread(statistics.median(ordered), low, high)


def alternate(sides: Mapping[str, Side], *, repeats: int, limit_s: float = 20.0) -> dict[str, list[float]]:
    """Every side in turn, forwards then backwards, after one repeat that does not count.

    Args:
      repeats: how often, at least 3.
      limit_s: after so long no repeat is begun, unless there are fewer than 3.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    start_s = time.perf_counter()
    for repeat in range(-1, repeats):
        if repeat >= 3 and time.perf_counter() - start_s > limit_s:
            break
        for name in list(sides)[:: 1 if repeat % 2 else -1]:
            taken = sides[name]()
            if repeat >= 0:
                times[name].append(taken)
    return times


def speedup(times: Mapping[str, list[float]], of: str, *, over: str) -> Spread:
    """How many times the throughput of `over` the side `of` has, repeat by repeat."""
    return spread(base / taken for base, taken in zip(times[over], times[of], strict=True))


def drive(
    step: Callable[[Any, Any], tuple[Any, Any]], state: Any, *, batches: Iterable[Any], steps: int, warm: int = 3
) -> tuple[float, Any]:
    """The bare loop: seconds a step from the end of step `warm` to that of the last, and the last state.

    Args:
      step: ``(state, batch) -> (state, loss)``, where loss is an array on the devices.
    """
    in_flight: deque[Any] = deque()
    start_s = time.perf_counter()
    for number, batch in enumerate(itertools.islice(itertools.cycle(batches), steps), start=1):
        state, loss = step(state, batch)
        in_flight.append(loss)
        if len(in_flight) > IN_FLIGHT:
            in_flight.popleft().block_until_ready()
        if number == warm:
            loss.block_until_ready()
            start_s = time.perf_counter()
    in_flight[-1].block_until_ready()
    return (time.perf_counter() - start_s) / (steps - warm), state


class Mark:
    """A callback for `Trainer.fit` that notes when the step `warm` of a run is finished."""

    def __init__(self, warm: int = 3) -> None:
        self._left = self._warm = warm
        self._start_s = 0.0

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        self._left -= 1
        if self._left == 0:
            self._start_s = time.perf_counter()

    def seconds_a_step(self, steps: int) -> float:
        """From the mark until now; `steps` is the length of the run."""
        return (time.perf_counter() - self._start_s) / (steps - self._warm)


def steps_for(step_s: float, *, seconds: float) -> int:
    """Steps that take about so long; at least 10."""
    return max(10, round(seconds / step_s))


def text_s(seconds: float) -> str:
    """Seconds for people: ``1.23 ms`` or ``4.5 s``."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def timed(call: Callable[[], Any]) -> Side:
    """One repeat: seconds of the call, until what it returns is computed."""
    import jax  # the parent of the workers needs no jax

    def run() -> float:
        start_s = time.perf_counter()
        jax.block_until_ready(call())
        return time.perf_counter() - start_s

    return run


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> str:
    """Processor, cores, memory and versions; nothing that tells whose machine it is."""
    import jax  # the parent of the workers needs no jax but for this line
    import jaxlib  # as above

    processor = platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), processor)
    versions = f"Python {platform.python_version()}, jax {jax.__version__}, jaxlib {jaxlib.__version__}"
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}; {versions}"
