"""What a run measures beside its steps: batches on their way, latency, memory.

Owns: how many batches are in flight on average, which latencies are told, and a look at memory each second.
Not here: the time of a step and the wait for input (`train.loop`), what a program needs by the compiler
(`train.program`).
Invariant: batches in flight are counted from when they begin and end, never computed from rate and latency, so that one
can be checked against the other (Little's law); and looking asks the devices for nothing that they compute.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.data.feed import Taken
from paceline.telemetry.metrics import (
    INPUT_MAKE_S,
    INPUT_PLACE_S,
    MEMORY_IN_USE_BYTES,
    MEMORY_PEAK_BYTES,
    MEMORY_PROCESS_BYTES,
    SPEED_LATENCY_S,
    SPEED_ROWS_IN_FLIGHT,
)

LOOK_EVERY_S = 1.0

_STATM = Path("/proc/self/statm")


class InFlight:
    """How many batches were begun and are not trained on yet: its mean over time.

    `change` may be called in any thread; `mean` in one. At the end of a step the number itself would not do: one batch
    has just ended and another begins a moment later or earlier, which says nothing of the time between.
    """

    def __init__(self) -> None:
        self._changes: deque[tuple[float, int]] = deque()
        self._count = 0
        self._area = 0.0
        self._from_s = self._at_s = 0.0

    def change(self, at_s: float, by: int) -> None:
        """One more, or one less, from a time [s] on."""
        self._changes.append((at_s, by))

    def mean(self, now_s: float) -> float:
        """The mean from the last call until now [s]; changes after `now_s` are left for the next call."""
        while self._changes and self._changes[0][0] <= now_s:
            at_s, by = self._changes.popleft()
            self._advance(at_s)
            self._count += by
        self._advance(now_s)
        mean = self._area / (now_s - self._from_s) if now_s > self._from_s else float(self._count)
        self._from_s, self._area = now_s, 0.0
        return mean

    def _advance(self, at_s: float) -> None:
        if at_s > self._at_s:  # two threads may tell theirs out of order, by microseconds
            self._area += self._count * (at_s - max(self._at_s, self._from_s))
            self._at_s = at_s


class Vitals:
    """The values of a step's event that tell of input, latency and memory in this process.

    Args:
      devices: of this process.
      in_flight: told by the feed of each batch that is begun.
      clock: seconds, for the look at memory.
    """

    def __init__(
        self, devices: Sequence[Any], *, in_flight: InFlight, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._devices = list(devices)
        self._in_flight = in_flight
        self._clock = clock
        self._next_look_s = 0.0
        self._untimed_until_s = 0.0

    def of_step(self, taken: Taken[Any], *, rows: int, ended_s: float, follows_step: bool) -> dict[str, int | float]:
        """The values of a step that ended.

        A step that follows a compilation or an evaluation is not timed (see `Loop`); no latency is told of batches that
        waited through such a time either: it would be that of the compiler.

        Args:
          taken: its batch, with times.
          rows: valid rows of the global batch.
          ended_s: `time.perf_counter` [s] when the step was known to be finished.
          follows_step: whether nothing but steps lies between the end of the step before and this one.
        """
        values: dict[str, int | float] = {INPUT_MAKE_S.key: taken.make_s, INPUT_PLACE_S.key: taken.place_s}
        mean = self._in_flight.mean(ended_s)
        self._in_flight.change(ended_s, -1)
        if follows_step:
            values[SPEED_ROWS_IN_FLIGHT.key] = mean * rows
            if taken.begun_s >= self._untimed_until_s:
                values[SPEED_LATENCY_S.key] = ended_s - taken.begun_s
        else:
            self._untimed_until_s = ended_s
        return values | self._memory()

    def _memory(self) -> dict[str, int | float]:
        now_s = self._clock()
        if now_s < self._next_look_s:
            return {}
        self._next_look_s = now_s + LOOK_EVERY_S
        found: dict[str, int | float] = {}
        resident = _resident_bytes()
        if resident is not None:
            found[MEMORY_PROCESS_BYTES.key] = resident
        stats = [device.memory_stats() for device in self._devices]
        # A CPU has none. What has none now has none later.
        self._devices = [device for device, own in zip(self._devices, stats, strict=True) if own]
        for key, name in ((MEMORY_IN_USE_BYTES.key, "bytes_in_use"), (MEMORY_PEAK_BYTES.key, "peak_bytes_in_use")):
            known = [own[name] for own in stats if own and name in own]
            if known:
                found[key] = max(known)
        return found


def _resident_bytes() -> int | None:
    """Memory that the process holds in RAM; None where the system has no /proc."""
    with suppress(OSError, ValueError, IndexError):
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None
