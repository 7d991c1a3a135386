"""What tuning found, as data and as text.

Owns: `TuneResult`, its words, its documented keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.base.units import format_bytes, format_count, format_duration, format_percent, format_rate
from paceline.measure.timing import Interval
from paceline.measure.tune.search import Pairs, Trial
from paceline.measure.tune.setting import Setting


@dataclass(frozen=True)
class Memory:
    """How many rows fit a device.

    Args:
      largest_rows: most rows a device; None if the limit is unknown.
      peak_bytes: of one device with them.
      limit_bytes: what a program may take; None if unknown.
      compiled: peak bytes of each number of rows that was compiled.
      ended_by: what keeps the number from being larger: ``memory``, ``data``, ``time``, ``compilations``: so many as
        were to be made, ``nothing known``, or ``batch fixed``: no other number was looked at.
    """

    largest_rows: int | None
    peak_bytes: int | None
    limit_bytes: int | None
    compiled: Mapping[int, int] = field(default_factory=dict)
    ended_by: str = "memory"

    def __str__(self) -> str:
        if self.ended_by == "batch fixed" and self.peak_bytes is not None:
            of = "" if self.limit_bytes is None else f" of {format_bytes(self.limit_bytes)}"
            return f"{format_bytes(self.peak_bytes)}{of} a device; the largest batch is not looked for, as it is fixed"
        if self.ended_by == "time" and self.largest_rows is None:
            rows = format_count(min(self.compiled, default=0), "row")
            return f"unknown: {rows} a device do not fit, and the time was up before fewer were tried; more --seconds"
        if self.largest_rows is None or self.peak_bytes is None or self.limit_bytes is None:
            return "unknown: neither device nor compiler say how much there is; --memory-gb tells"
        reasons = {
            "data": ", all that the data has",
            "time": ", of those that there was time to compile",
            "compilations": ", of those that were compiled",
        }
        return (
            f"up to {format_count(self.largest_rows, 'row')} a device fit{reasons.get(self.ended_by, '')}: "
            f"{format_bytes(self.peak_bytes)} of {format_bytes(self.limit_bytes)}"
        )


@dataclass(frozen=True)
class TuneResult:
    """What tuning came to.

    Args:
      task: its name.
      devices: K.
      kind: of the devices.
      start, best: the setting that was asked for, and the one to use.
      default: what `paceline train` does untold.
      memory: how many rows fit.
      trials: in the order in which they were made.
      total: start and best, measured against each other once more; None if nothing was kept or no time was left.
      seconds: that it took.
      notes: what the reader should know, as sentences.
    """

    task: str
    devices: int
    kind: str
    start: Setting
    best: Setting
    default: Setting
    memory: Memory
    trials: tuple[Trial, ...]
    total: Pairs | None
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def flags(self) -> list[str]:
        """What to tell `paceline train` beside the user's own options."""
        return self.best.flags(default=self.default)

    def lines(self) -> list[str]:
        """The end of the report, behind the trials."""
        kept = [trial.change for trial in self.trials if trial.outcome == "kept"]
        gained = "nothing gained beyond the noise" if not kept else "kept " + "; ".join(kept)
        rows = [
            ("result", f"{gained}, in {format_duration(self.seconds)}"),
            ("in all", "" if self.total is None else speeds(self.total)),
            ("flags", " ".join(self.flags) or "none: as paceline train runs it untold"),
        ]
        return [f"{label:<11} {text}" for label, text in rows if text] + [f"note        {note}" for note in self.notes]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data, keys as in docs/tune.md."""
        return {
            "task": self.task,
            "devices": self.devices,
            "device_kind": self.kind,
            "memory": dataclasses.asdict(self.memory),
            "start": _setting(self.start),
            "best": _setting(self.best),
            "flags": self.flags,
            "trials": [_trial(trial) for trial in self.trials],
            "total": None if self.total is None else _pairs(self.total),
            "seconds": self.seconds,
            "notes": list(self.notes),
        }


def trial_line(trial: Trial) -> str:
    """One trial as a line of the report."""
    told = speeds(trial.pairs) if trial.pairs is not None and trial.pairs.after else trial.why
    note = f" [{trial.note}]" if trial.note and trial.outcome != "left out" else ""
    return f"  {trial.change:<36} {trial.outcome:<12} {told}{note}"


def speeds(pairs: Pairs) -> str:
    """``1,000 samples/s -> 1,140 samples/s, x 1.14 (1.10 to 1.18)``, with the coverage if it is not 95 % or more."""
    gain = pairs.gain
    before, after = (_middle(values) for values in (pairs.before, pairs.after))
    few = f", at {format_percent(gain.coverage)} from {format_count(len(pairs.after), 'pair')}"
    sure = "" if gain.coverage >= 0.95 else few
    interval = f"x {gain.value:.3f} ({gain.low:.3f} to {gain.high:.3f}{sure})"
    return f"{format_rate(before)} -> {format_rate(after)}, {interval}"


def _middle(values: tuple[float, ...]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "batch": setting.batch,
        "prefetch": setting.prefetch,
        "parallel": dataclasses.asdict(setting.parallel),
    }


def _trial(trial: Trial) -> dict[str, Any]:
    found = {"option": trial.option, "change": trial.change, "outcome": trial.outcome, "why": trial.why}
    return found | {"note": trial.note, "pairs": None if trial.pairs is None else _pairs(trial.pairs)}


def _pairs(pairs: Pairs) -> dict[str, Any]:
    gain: Interval | None = pairs.gain if pairs.after else None
    return {
        "before_samples_per_s": list(pairs.before),
        "after_samples_per_s": list(pairs.after),
        "gain": None if gain is None else dict(zip(("value", "low", "high", "coverage"), gain, strict=True)),
        "compile_s": pairs.compile_s,
    }
