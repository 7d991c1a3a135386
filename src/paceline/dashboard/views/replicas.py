"""Are the replicas equal, and do the processes keep pace?

Owns: the answer of ``/api/replicas``: tiles of devices, rows of processes, who lags.
Not here: the audit itself (`check.audit`).
Invariant: a device is called odd only if the audit told so; without word of the device it is "unknown".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.dashboard.follow.documents import entry, split_leaves, whole_in
from paceline.dashboard.follow.health import ENDED
from paceline.dashboard.follow.run import Run
from paceline.dashboard.follow.words import Words, say
from paceline.dashboard.views.plain import mean_of, median_of_others, number
from paceline.dashboard.views.summary import RECENT_STEPS
from paceline.telemetry.events import Event
from paceline.telemetry.metrics import (
    AUDIT_COMPARED_LEAVES,
    AUDIT_DIFFERING_LEAVES,
    INPUT_MAKE_S,
    INPUT_WAIT_S,
    SPEED_STEP_S,
)

MOST_TILES = 65_536
MOST_LEAVES = 12
_WORTH_NAMING = 0.01  # of the step: what a process must cost the others, as in the run's own report
_STEPS_BEHIND = 5


def replicas(run: Run, *, now_s: int | float) -> dict[str, Any]:
    """Tiles and processes, see docs/watch-api.md."""
    with run.lock:
        audit = _last_audit(run)
        feed = None if run.main is None else run.feed(run.main)
        counts = {} if feed is None else feed.counts
        return {
            "audit": None if audit is None else _audit_document(audit) | {"split": split_leaves(run.document)},
            "divergence": None
            if feed is None or feed.last_divergence is None
            else _divergence_document(feed.last_divergence),
            "tiles": _tiles(run, audit),
            "processes": _processes(run, now_s=now_s),
            "counts": {
                "restarts": counts.get("restart", 0),
                "skips": counts.get("skip", 0),
                "checkpoints": counts.get("checkpoint", 0),
                "divergences": counts.get("divergence", 0),
            },
        }


def _last_audit(run: Run) -> Event | None:
    feeds = [feed for process in run.processes if (feed := run.feed(process)) is not None]
    return next((feed.last_audit for feed in feeds if feed.last_audit is not None), None)


def _audit_document(audit: Event) -> dict[str, Any]:
    return {
        "step": audit.step,
        "time_s": audit.time_s,
        "compared": number(audit.values.get(AUDIT_COMPARED_LEAVES.key)),
        "differing": number(audit.values.get(AUDIT_DIFFERING_LEAVES.key)),
        "text": audit.text,
    }


def _divergence_document(audit: Event) -> dict[str, Any]:
    """The last audit that found a difference, whatever later ones found."""
    where = [{"leaf": one.leaf, "devices": list(one.devices), "odd": one.odd} for one in audit.where[:MOST_LEAVES]]
    return {"step": audit.step, "text": audit.text, "where": where, "leaves": len(audit.where)}


def _tiles(run: Run, audit: Event | None) -> list[dict[str, Any]]:
    """One tile a device.

    Without an audit, or after one that found no leaf with copies, no device is known to be equal. An audit with
    differences but without word of where (of an old run) leaves all unknown; so does a leaf without a majority for the
    devices that hold it.
    """
    count = min(whole_in(run.document, "devices", "count") or 0, MOST_TILES)
    processes = whole_in(run.document, "devices", "processes") or max(1, len(run.processes))
    odd: dict[int, list[str]] = {}
    unsure: dict[int, list[str]] = {}
    holders: dict[int, int] = {}
    for where in audit.where if audit is not None else ():
        holders |= dict(zip(where.devices, where.processes, strict=False))
        for device in where.devices:
            (odd if where.odd else unsure).setdefault(device, []).append(where.leaf)
    differs = audit is not None and bool(audit.text or audit.values.get(AUDIT_DIFFERING_LEAVES.key))
    if audit is None or audit.values.get(AUDIT_COMPARED_LEAVES.key) == 0:
        usual = "not_audited"
    else:
        usual = "unknown" if differs and not audit.where else "equal"
    return [
        {
            "device": device,
            "process": holders.get(device, min(device * processes // max(1, count), processes - 1)),
            "state": "odd" if device in odd else "unknown" if device in unsure else usual,
            "leaves": [*odd.get(device, ()), *unsure.get(device, ())],
        }
        for device in sorted({*range(count), *odd, *unsure})
    ]


def _processes(run: Run, *, now_s: int | float) -> list[dict[str, Any]]:
    machines = entry(run.document, "machines")
    waits = {process: _recent(run, process, INPUT_WAIT_S.key) for process in run.processes}
    makes = {process: _recent(run, process, INPUT_MAKE_S.key) for process in run.processes}
    step_s = _recent(run, run.main or 0, SPEED_STEP_S.key)
    ended = run.state(now_s) in ENDED
    steps = {process: last.step for process in run.processes if (last := run.last_event(process)) is not None}
    ordered_waits, ordered_steps = sorted(wait for wait in waits.values() if wait is not None), sorted(steps.values())
    rows = []
    for process in run.processes:
        last = run.last_event(process)
        why = _lags(process, waits[process], ordered=ordered_waits, step_s=step_s)
        if why is None and not ended:
            why = _behind(process, steps.get(process), ordered=ordered_steps)
        machine = machines[process] if isinstance(machines, list) and process < len(machines) else None
        rows.append(
            {
                "process": process,
                "machine": machine if isinstance(machine, str) else None,
                "step": None if last is None else last.step,
                "time_s": None if last is None else last.time_s,
                "last_event": None if last is None else {"kind": last.kind, "text": last.text},
                "input_wait_s": number(waits[process]),
                "input_make_s": number(makes[process]),
                "straggler": why is not None,
                "why": None if why is None else why.text,
                "why_words": None if why is None else why.as_dict(),
            }
        )
    return rows


def _lags(
    process: int, own: int | float | None, *, ordered: Sequence[int | float], step_s: int | float | None
) -> Words | None:
    """Whether the others lose time to a process: its devices wait for its input, and so does the reduction of all.

    How long it takes to make a batch costs nothing while batches are ready in time.
    """
    if own is None or len(ordered) < 2 or step_s is None:
        return None
    usual = median_of_others(own, ordered=ordered)
    is_worth = own - usual > _WORTH_NAMING * step_s
    return say("straggler.input_wait", process=process, own=own, usual=usual) if is_worth else None


def _behind(process: int, own: int | None, *, ordered: Sequence[int]) -> Words | None:
    if own is None or len(ordered) < 2:
        return None
    usual = int(median_of_others(own, ordered=ordered))
    return say("straggler.behind", process=process, own=own, usual=usual) if own < usual - _STEPS_BEHIND else None


def _recent(run: Run, process: int, key: str) -> float | None:
    values: np.ndarray = run.columns(process).recent(key, RECENT_STEPS).value
    return mean_of(values)
