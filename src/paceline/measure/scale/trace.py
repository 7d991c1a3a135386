"""Stage times from a profiler's trace: how long each device computed, how long it communicated and did nothing else.

Owns: finding and reading the trace that `jax.profiler.trace` leaves, the sums by device.
Not here: making it (`bench`), the waterfall from truncated steps, beside which these times are printed.
Invariant: an instant counts once, however many operations overlap in it; what is inside a loop or a branch counts, the
loop or branch around it does not.

The trace is the "trace event" JSON that XLA writes next to its own format: an event ``X`` with ``ts`` and ``dur`` in
microseconds is an operation if its arguments name one (``hlo_op``). The device is ``device_ordinal`` on the CPU, and
the process ``/device:GPU:0`` of the trace on a GPU. Read on jax 0.10.2 and 0.12.0, CPU; not tried on a GPU.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACED_STEPS = 8

_COLLECTIVE = re.compile(r"(all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute|nccl)", re.IGNORECASE)
_CONTAINER = re.compile(r"(while|conditional|call|async-start|async-done)(\.\d+)?$")
_GPU = re.compile(r"/device:GPU:(\d+)")

Span = tuple[float, float]


@dataclass(frozen=True)
class DeviceTimes:
    """One device, in a step [s].

    Args:
      device: its number in the trace.
      compute_s: at least one operation that is no collective ran.
      communication_s: a collective was in flight.
      exposed_s: one was, and nothing else ran; waiting for other devices is part of it.
    """

    device: int
    compute_s: float
    communication_s: float
    exposed_s: float


def find_trace(folder: str | Path) -> Path | None:
    """The newest trace under a folder that `jax.profiler.trace` was given."""
    found = sorted(Path(folder).glob("plugins/profile/*/*.trace.json.gz"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def read_trace(path: Path, *, steps: int) -> list[DeviceTimes]:
    """The times of every device in a trace of so many steps; empty if it names no operation."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    spans: dict[int, tuple[list[Span], list[Span]]] = {}
    for device, name, span in _operations(events):
        compute, collectives = spans.setdefault(device, ([], []))
        (collectives if _COLLECTIVE.match(name) else compute).append(span)
    return [_times(device, *spans[device], steps=steps) for device in sorted(spans)]


def _operations(events: list[dict[str, Any]]) -> Iterator[tuple[int, str, Span]]:
    names = {
        event["pid"]: event["args"].get("name", "")
        for event in events
        if event.get("ph") == "M" and event.get("name") == "process_name"
    }
    for event in events:
        name = event.get("args", {}).get("hlo_op")
        if event.get("ph") != "X" or name is None or _CONTAINER.match(name):
            continue
        gpu = _GPU.search(names.get(event["pid"], ""))
        device = int(gpu[1]) if gpu else int(event["args"].get("device_ordinal", 0))
        start = float(event["ts"])
        yield device, name, (start, start + event.get("dur", 0.0))


def _times(device: int, compute: list[Span], collectives: list[Span], *, steps: int) -> DeviceTimes:
    scale = 1e-6 / steps
    both = covered([*compute, *collectives])
    alone = covered(compute)
    return DeviceTimes(device, scale * alone, scale * covered(collectives), scale * (both - alone))


def covered(spans: Iterable[Span]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
