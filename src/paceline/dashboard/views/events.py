"""What happened, in words: every event but the steps.

Owns: the answer of ``/api/events``.
"""

from __future__ import annotations

from typing import Any

from paceline.dashboard.follow.run import Run
from paceline.dashboard.views.plain import number
from paceline.telemetry.events import Event

MOST_EVENTS = 2000


def events(run: Run, *, before: int | None = None, limit: int = 200) -> dict[str, Any]:
    """The newest events, oldest of them first, see docs/watch-api.md.

    Args:
      before: only those with a smaller ``number``, to go back in time.
    """
    limit = max(1, min(limit, MOST_EVENTS))
    with run.lock:
        found = [item for item in run.events() if before is None or item.number < before]
        return {
            "events": [
                {"number": item.number, **event_document(item.event, process=item.process)} for item in found[-limit:]
            ],
            "earlier": len(found) > limit,
            "unknown": run.unknown,
            "skipped": run.skipped,
        }


def event_document(event: Event, *, process: int) -> dict[str, Any]:
    """One event as the API gives it."""
    return {
        "process": process,
        "kind": event.kind,
        "step": event.step,
        "time_s": event.time_s,
        "text": event.text,
        "values": {key: number(value) for key, value in event.values.items()},
        "where": [
            {
                "leaf": item.leaf, "devices": list(item.devices), "processes": list(item.processes),
                "replicas": item.replicas, "odd": item.odd,
            }
            for item in event.where
        ],
    }  # fmt: skip
