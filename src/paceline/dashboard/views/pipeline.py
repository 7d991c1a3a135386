"""The pipeline at one step: input, prefetch, shard, forward and backward, all-reduce, update, output.

Owns: the answer of ``/api/pipeline``: times, shapes, what is known of each stage.
Not here: how the step is divided, and the rule for the bottleneck (`views.division`); drawing (the page).
Invariant: every number says whether it was measured, modelled, or follows from measured ones by Little's law; what is
not known is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.dashboard.follow.columns import Columns
from paceline.dashboard.follow.documents import entry, number_in, text_in, whole_in
from paceline.dashboard.follow.run import Run
from paceline.dashboard.views.division import COMPILED, WORTH_NAMING, Division, bottleneck, divide
from paceline.dashboard.views.plain import mean_of, median_of_others, number
from paceline.dashboard.views.summary import RECENT_STEPS, recent_samples_per_s
from paceline.telemetry.metrics import (
    INPUT_MAKE_S,
    INPUT_PLACE_S,
    INPUT_QUEUED_BATCHES,
    INPUT_WAIT_S,
    SPEED_LATENCY_S,
    SPEED_ROWS_IN_FLIGHT,
    SPEED_STEP_S,
    TRAIN_LEARNING_RATE,
    TRAIN_LOSS,
    TRAIN_ROWS,
)


def pipeline(run: Run, *, step: int | None = None) -> dict[str, Any]:
    """The state at ``step``, or at the latest one before it, see docs/watch-api.md."""
    with run.lock:
        columns = run.columns(run.main or 0)
        at = _step_at(columns, step)
        last = run.last_event(run.main or 0)
        whole = step is None and last is not None and last.kind == "end"
        means = _Means(columns, at, steps=len(columns) if whole else RECENT_STEPS)
        slowest, wait_s = _slowest_input(run, means)
        division = divide(run.program, step_s=means.of(SPEED_STEP_S.key), wait_s=wait_s)
        devices = whole_in(run.document, "devices", "count")
        latency_s, rate = means.of(SPEED_LATENCY_S.key), recent_samples_per_s(run, before=at, steps=means.steps)
        why = bottleneck(division, process=slowest)
        return {
            "step": at,
            "means": {"steps": min(means.steps, columns.rows_before((at or 0) + 1)), "whole_run": whole},
            "time_s": means.time_s,
            "steps": whole_in(run.document, "counts", "steps"),
            "first_step": _first_step(columns),
            "last_step": columns.last_step,
            "devices": devices,
            "rows": number(means.last(TRAIN_ROWS.key)) or whole_in(run.document, "counts", "global_batch"),
            "shapes": _shapes(run, devices),
            "stages": _stages(run, means, division, wait_s=wait_s, slowest=slowest),
            "queue": {
                "batches": number(means.of(INPUT_QUEUED_BATCHES.key)),
                "depth": whole_in(run.document, "data", "prefetch"),
            },
            "rows_in_flight": number(means.of(SPEED_ROWS_IN_FLIGHT.key)),
            "latency_s": number(latency_s),
            "samples_per_s": number(rate),
            "little_rows": None if latency_s is None or rate is None else number(latency_s * rate),
            "step_s": number(means.of(SPEED_STEP_S.key)),
            "bottleneck": None if why is None else {"stage": why[0], "why": why[1].text, "words": why[1].as_dict()},
            "loss": number(means.last(TRAIN_LOSS.key)),
            "learning_rate": number(means.last(TRAIN_LEARNING_RATE.key)),
        }


class _Means:
    """Means over the last ``steps`` steps up to one."""

    def __init__(self, columns: Columns, step: int | None, *, steps: int) -> None:
        self._columns = columns
        self.step = step
        self.steps = steps
        times_s = columns.recent(TRAIN_LOSS.key, 1, before=step).time_s
        self.time_s: float | None = float(times_s[-1]) if len(times_s) else None

    def of(self, key: str) -> float | None:
        """The mean of the finite numbers; None if there is none."""
        return mean_of(self._columns.recent(key, self.steps, before=self.step).value)

    def last(self, key: str) -> float | None:
        """The newest number; None if the last steps have none."""
        values = self._columns.recent(key, RECENT_STEPS, before=self.step).value
        return float(values[-1]) if len(values) else None


def _slowest_input(run: Run, means: _Means) -> tuple[int | None, float | None]:
    """The process whose devices wait longest for input, if the others wait for them, and the wait [s].

    Devices reduce gradients together, so the step ends for all when the last of them has had its batch.
    """
    own_s = means.of(INPUT_WAIT_S.key)
    waits = {
        process: wait_s
        for process in run.processes
        if (wait_s := mean_of(run.columns(process).recent(INPUT_WAIT_S.key, means.steps, before=means.step).value))
        is not None
    }
    step_s = means.of(SPEED_STEP_S.key)
    if len(waits) < 2 or step_s is None:
        return None, own_s
    slowest = max(waits, key=lambda process: waits[process])
    others_s = median_of_others(waits[slowest], ordered=sorted(waits.values()))
    is_alone = waits[slowest] - others_s > WORTH_NAMING * step_s
    return (slowest if is_alone else None), waits[slowest]


def _step_at(columns: Columns, step: int | None) -> int | None:
    """The last step that the run has made, not beyond ``step``; the first if that lies before it."""
    if not len(columns):
        return None
    rows = len(columns) if step is None else columns.rows_before(step + 1)
    return int(columns.rows((), from_row=max(0, rows - 1), to_row=max(1, rows))[0][0])


def _first_step(columns: Columns) -> int | None:
    return int(columns.rows((), from_row=0, to_row=1)[0][0]) if len(columns) else None


def _stages(
    run: Run, means: _Means, division: Division, *, wait_s: float | None, slowest: int | None
) -> list[dict[str, Any]]:
    step_s, shares = means.of(SPEED_STEP_S.key), division.shares
    seconds = {
        "input": means.of(INPUT_MAKE_S.key),
        "prefetch": _queue_s(means),
        "shard": means.of(INPUT_PLACE_S.key),
        **{name: shares[name] * step_s for name in COMPILED if name in shares and step_s is not None},
    }
    details = _details(run, means, is_whole=division.is_whole)
    details["input"] |= {"wait_s": number(wait_s), "process": slowest}
    if slowest is not None:
        make_s = run.columns(slowest).recent(INPUT_MAKE_S.key, means.steps, before=means.step).value
        seconds["input"] = mean_of(make_s)
    for name in COMPILED:
        details[name]["modelled_s"] = number(division.modelled_s.get(name))
    return [
        {
            "id": name,
            "seconds": number(seconds.get(name)),
            "share": shares.get(name),
            "basis": "none" if seconds.get(name) is None
            else "little" if name == "prefetch"
            else "modelled" if name in COMPILED and not division.is_whole
            else "measured",
            "detail": detail,
        }
        for name, detail in details.items()
    ]  # fmt: skip


def _details(run: Run, means: _Means, *, is_whole: bool) -> dict[str, dict[str, Any]]:
    """What the page shows of a stage when it is asked, by stage in the order of the pipeline."""
    program = run.program
    return {
        "input": {},
        "prefetch": {"depth": whole_in(run.document, "data", "prefetch")},
        "shard": {},
        "forward_backward": {
            "flops": number_in(program, "flops"),
            "traffic_bytes": number_in(program, "traffic_bytes"),
            "accumulation": whole_in(run.document, "parallel", "accumulation"),
            "basis_text": text_in(program, "stages_basis"),
            "whole_step": is_whole,
        },
        "all_reduce": {
            "wire_bytes": number_in(program, "wire_bytes"),
            "blocking_collectives": number_in(program, "blocking_collectives"),
            "communication_s": number_in(program, "communication_s"),
        },
        "update": {"placement": text_in(run.document, "parallel", "placement")},
        "output": {"loss": number(means.last(TRAIN_LOSS.key))},
    }


def _queue_s(means: _Means) -> float | None:
    """How long a batch waits in the queue: by Little's law, the batches there times the step that takes one."""
    queued, step_s = means.of(INPUT_QUEUED_BATCHES.key), means.of(SPEED_STEP_S.key)
    return None if queued is None or step_s is None else queued * step_s


def _shapes(run: Run, devices: int | None) -> dict[str, Any]:
    """The batch as it enters, and the part of it that one device gets: ``[B, ...]`` and ``[B/K, ...]``."""
    leaves = entry(run.document, "batch")
    whole = [leaf for leaf in map(_leaf, leaves if isinstance(leaves, list) else ()) if leaf is not None]
    return {"input": whole, "shard": [_shard(leaf, devices) for leaf in whole]}


def _leaf(leaf: object) -> dict[str, Any] | None:
    if not isinstance(leaf, dict):
        return None
    shape = leaf.get("shape")
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        return None
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in shape):
        return None
    return {"name": str(leaf.get("name", "")), "shape": list(shape), "dtype": str(leaf.get("dtype", ""))}


def _shard(leaf: dict[str, Any], devices: int | None) -> dict[str, Any]:
    shape = leaf["shape"]
    if not shape or not devices or devices < 1 or shape[0] % devices:
        return leaf | {"shape": [None, *shape[1:]] if shape else []}
    return leaf | {"shape": [shape[0] // devices, *shape[1:]]}
