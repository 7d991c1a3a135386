"""What one drawing shows, taken from the library at one moment.

Owns: which run is shown, which curves of it.
Not here: words and widths (`terminal.screen`), reading files (`follow`), the numbers (`views`).
Invariant: a run that goes away while it is read leaves a frame without it, not an error.
"""

from __future__ import annotations

import heapq
import operator
import time
from dataclasses import dataclass, field
from typing import Any

from paceline.base.errors import RunFolderError
from paceline.dashboard.follow.derived import RECENT_SAMPLES_PER_S, STEP_P50_S, STEP_P95_S
from paceline.dashboard.follow.library import Library
from paceline.dashboard.follow.run import Run
from paceline.dashboard.views.events import events
from paceline.dashboard.views.pipeline import pipeline
from paceline.dashboard.views.replicas import replicas
from paceline.dashboard.views.series import series
from paceline.dashboard.views.summary import summary
from paceline.telemetry.metrics import INPUT_WAIT_S, TRAIN_LOSS

CURVES = (TRAIN_LOSS, RECENT_SAMPLES_PER_S, STEP_P50_S, STEP_P95_S, INPUT_WAIT_S)
POINTS = 400
MOST_EVENTS = 50
_TELLING = ("start", "end", "checkpoint", "skip", "notice")


@dataclass(frozen=True)
class Frame:
    """One drawing's content; the documents are those of the JSON API.

    Args:
      root: the folder that is watched.
      runs: summaries, the newest run first.
      problems: of the folder, in words.
      shown: id of the run that the rest is about; None if there is no run.
    """

    root: str
    runs: list[dict[str, Any]]
    problems: list[str]
    shown: str | None = None
    pipeline: dict[str, Any] = field(default_factory=dict)
    series: dict[str, Any] = field(default_factory=dict)
    replicas: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    unread: float = 0.0
    """Part of the shown run's events that is not read yet, in [0, 1]."""
    removed: str | None = None
    """Id of a run that was shown and is gone."""

    @property
    def summary(self) -> dict[str, Any]:
        """Of the shown run."""
        return next((one for one in self.runs if one["id"] == self.shown), {})


def take_frame(library: Library, *, shown: str | None = None, now_s: float | None = None) -> Frame:
    """The runs now, and all about one of them.

    Args:
      shown: which; default: the newest that goes on, else the newest.
    """
    now_s = time.time() if now_s is None else now_s
    runs = [summary(run, now_s=now_s) for run in library.runs()]
    frame = Frame(str(library.root), runs, [words.text for words in library.problems])
    ids = [one["id"] for one in runs]
    if shown not in ids:
        running = [one["id"] for one in runs if one["state"] == "running"]
        shown = (running or ids or [None])[0]
    if shown is None:
        return frame
    try:
        return _about(library.run(shown), frame, now_s=now_s)
    except RunFolderError:  # its folder was removed between the two
        return frame


def _about(run: Run, frame: Frame, *, now_s: float) -> Frame:
    with run.lock:
        told = [event for event in events(run, limit=MOST_EVENTS)["events"] if _is_worth_a_line(event)]
        return Frame(
            root=frame.root,
            runs=frame.runs,
            problems=frame.problems,
            shown=run.id,
            pipeline=pipeline(run),
            series=series(run, keys=[metric.key for metric in CURVES], points=POINTS)["series"],
            replicas=replicas(run, now_s=now_s),
            events=_in_order(told),
            unread=run.unread_bytes / run.size_bytes if run.size_bytes and not run.caught_up else 0.0,
        )


def _in_order(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By time over the processes, each in its own order whatever its clock did."""
    processes = sorted({event["process"] for event in told})
    streams = [[event for event in told if event["process"] == process] for process in processes]
    return list(heapq.merge(*streams, key=operator.itemgetter("time_s")))


def _is_worth_a_line(event: dict[str, Any]) -> bool:
    """Evaluations are; audits only if they found something; of further processes not that they began and ended."""
    if event["process"] and event["kind"] in ("start", "end"):
        return bool(event["text"])
    if event["kind"] == "audit":
        return bool(event["text"] or event["where"])
    return event["kind"] in _TELLING or event["kind"] == "evaluation"
