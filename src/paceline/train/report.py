"""`Report`: what a run did, as data and as text.

Owns: the numbers of the final report, their units and their wording.
Invariant: rows seen + rows dropped = rows of the completed epochs; throughput and latency leave out compilation and the
first step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.base.units import format_count, format_duration, format_percent, format_rate
from paceline.insight.noise import Estimate
from paceline.train.audit import AuditReport
from paceline.train.stragglers import StragglerReport


@dataclass(frozen=True)
class Report:
    """The result of `Trainer.fit`.

    Args:
      task: the task's name.
      scheme: how the step ran.
      placement: what the devices share, with the leaves that could not be split (``replicated`` if nothing is).
      devices: K.
      global_batch: rows B of an update.
      per_device_batch: B/K.
      accumulation: microbatches n of an update.
      steps: updates made by this call.
      last_step: updates since the state was made.
      epochs: passes over the data after the last step; None for a stream.
      rows_seen: valid rows trained on.
      rows_dropped: rows left out because they did not fill a batch.
      skipped_updates: updates left out because they were not finite, in this call.
      compile_s: seconds of tracing and compiling; 0 when the program was there.
      total_s: seconds of the call.
      samples_per_s: rows a second.
      step_p50_s, step_p95_s: step latency in seconds.
      input_wait_share: share of the time in which the devices of process 0 idled, since no batch was there.
      final: values of the last step by metric key.
      evaluation: values of the last evaluation by metric key.
      audit: what the comparisons of replicas came to; None on one device or without audits.
      stopped: why the run ended early (``interrupted``, ``callback``, ``the data ended``, or the error), or None.
      notices: what the reader should know, as sentences.
      run_folder: where events and report are, or None.
      processes: P.
      checkpoints: how many this call saved.
      checkpoint_s: seconds that the loop spent on saving.
      resumed_at: step of the checkpoint that the run went on from, or None.
      restore_s: seconds of reading that checkpoint.
      stragglers: the slowest process and what it costs; None in a run of one.
      noise_scale: the gradient noise scale, if it was asked for and came to be known.
    """

    task: str
    scheme: str
    placement: str
    devices: int
    global_batch: int
    per_device_batch: int
    accumulation: int
    steps: int
    last_step: int
    epochs: float | None
    rows_seen: int
    rows_dropped: int
    skipped_updates: int
    compile_s: float
    total_s: float
    samples_per_s: float
    step_p50_s: float
    step_p95_s: float
    input_wait_share: float
    final: Mapping[str, float] = field(default_factory=dict)
    evaluation: Mapping[str, float] = field(default_factory=dict)
    audit: AuditReport | None = None
    stopped: str | None = None
    notices: tuple[str, ...] = ()
    run_folder: str | None = None
    processes: int = 1
    checkpoints: int = 0
    checkpoint_s: float = 0.0
    resumed_at: int | None = None
    restore_s: float = 0.0
    stragglers: StragglerReport | None = None
    noise_scale: Estimate | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data; keys are the field names."""
        return dataclasses.asdict(self)

    def lines(self) -> list[str]:
        """The report as people read it."""
        epochs = "" if self.epochs is None else f" ({self.epochs:.4g} epoch{'' if self.epochs == 1 else 's'})"
        skipped = f", {format_count(self.skipped_updates, 'update')} left out" if self.skipped_updates else ""
        rows = [
            ("task", f"{self.task}, scheme {self.scheme} on {format_count(self.devices, 'device')}"),
            ("placement", "" if self.placement == "replicated" else self.placement),
            ("batch", self._batch() if self.global_batch else ""),
            ("steps", f"{self.steps:,}{epochs}{skipped}" + (f", ended early: {self.stopped}" if self.stopped else "")),
            ("rows", f"{self.rows_seen:,} seen, {self.rows_dropped:,} dropped"),
            ("speed", f"{format_rate(self.samples_per_s)}, {self._latency()}"),
            ("input wait", f"{format_percent(self.input_wait_share)} of the time"),
            ("time", f"{format_duration(self.total_s)}, of it compiling {format_duration(self.compile_s)}"),
            ("training", _values(self.final)),
            ("evaluation", _values(self.evaluation)),
            ("noise scale", "" if self.noise_scale is None else str(self.noise_scale)),
            ("replicas", "" if self.audit is None else str(self.audit)),
            ("processes", "" if self.stragglers is None else f"{self.processes}; {self.stragglers}"),
            ("checkpoints", self._checkpoints()),
            ("run folder", self.run_folder or ""),
        ]
        lines = [f"{label:<11} {text}" for label, text in rows if text]
        return lines + [f"note        {notice}" for notice in self.notices]

    def _batch(self) -> str:
        text = f"{self.global_batch:,} rows = {self.devices} x {self.per_device_batch:,}"
        return text + (f", in {self.accumulation} microbatches" if self.accumulation > 1 else "")

    def _checkpoints(self) -> str:
        resumed = (
            ""
            if self.resumed_at is None
            else f"resumed from step {self.resumed_at:,} in {format_duration(self.restore_s)}"
        )
        saved = (
            f"{self.checkpoints:,} saved in {format_duration(self.checkpoint_s)} of the loop"
            if self.checkpoints
            else ""
        )
        return ", ".join(text for text in (resumed, saved) if text)

    def _latency(self) -> str:
        if not math.isfinite(self.step_p50_s):
            return "no step could be timed"
        return f"step p50 {format_duration(self.step_p50_s)}, p95 {format_duration(self.step_p95_s)}"


def _values(values: Mapping[str, float]) -> str:
    shown = {key.partition("/")[2]: value for key, value in values.items() if not key.startswith(("speed/", "input/"))}
    hidden = ("rows", "skipped_updates", "weight", "gradient_devices", "noise_scale_rows")
    return ", ".join(f"{name} {value:.4g}" for name, value in shown.items() if name not in hidden)
