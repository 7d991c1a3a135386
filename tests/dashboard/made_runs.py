"""Run folders as a training run leaves them, made in milliseconds and without jax.

Owns: the files of a made run, written by hand as the format says: a reader is not tested against its own writer.
Invariant: the same arguments give the same bytes; every number follows from the step and the seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

START_S = 1_790_000_000.0
GRADIENT_BYTES = 44_724_264


@dataclass(frozen=True)
class Made:
    """What a made run did.

    Args:
      steps: steps that it has made.
      planned: steps that it was to make; as many as it made by default.
      step_s: usual time of a step [s].
      wait_share: part of a step in which the devices waited for input.
      ended: whether it wrote its end and its report.
      nan_at: steps whose loss is not a number.
      skip_at: steps that all devices left out.
      restart_at: a step before which it was killed: it goes on from the checkpoint before, so some steps stand twice.
      diverges_at: an audit that found a device that differs.
      slow_process: the process whose input is slow.
      batch_shape: shape of a row.
    """

    steps: int = 200
    planned: int | None = None
    seed: int = 0
    task: str = "image"
    devices: int = 4
    processes: int = 1
    batch: int = 256
    row_shape: tuple[int, ...] = (28, 28, 1)
    scheme: str = "per_device"
    placement: str = "replicated"
    precision: str = "float32"
    accumulation: int = 1
    prefetch: int = 2
    step_s: float = 0.02
    wait_share: float = 0.02
    every: int = 50
    start_s: float = START_S
    ended: bool = True
    stopped: str | None = None
    program: bool = True
    nan_at: tuple[int, ...] = ()
    skip_at: tuple[int, ...] = ()
    restart_at: int | None = None
    diverges_at: int | None = None
    slow_process: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def make_run(path: Path, made: Made | None = None, **changes: Any) -> Path:
    """Writes the folder of a run; ``changes`` are fields of `Made`. Returns ``path``."""
    made = made or Made(**changes)
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "run.json", run_document(made))
    if made.program:
        write_json(path / "program.json", program_document(made))
    for process in range(made.processes):
        lines = [json.dumps(event) for event in events(made, process=process)]
        (path / f"events-{process}.jsonl").write_text("".join(line + "\n" for line in lines))
    if made.ended:
        write_json(path / "report.json", report_document(made))
    return path


class LiveRun:
    """A run that goes on: each call of `step` appends one step to the events of process 0."""

    def __init__(self, path: Path, made: Made | None = None, **changes: Any) -> None:
        self.made = made or Made(**{"steps": 0, "planned": 1000, "ended": False, **changes})
        self.path = make_run(path, self.made)
        self.last = self.made.steps

    def step(self, *, time_s: float | None = None, **values: float | str) -> int:
        """Append the next step; ``values`` replace numbers by key, with ``__`` for the slash."""
        self.last += 1
        event = step_event(self.made, self.last, process=0)
        if time_s is not None:
            event["time_s"] = time_s
        event["values"] |= {key.replace("__", "/"): value for key, value in values.items()}
        self.append(event)
        return self.last

    def append(self, event: dict[str, Any] | str, *, process: int = 0) -> None:
        """Append an event, or a line as it is (without a newline: a torn one)."""
        line = event if isinstance(event, str) else json.dumps(event) + "\n"
        with open(self.path / f"events-{process}.jsonl", "a") as file:
            file.write(line)

    def end(self) -> None:
        """The run ends as planned."""
        self.append({"kind": "end", "step": self.last, "time_s": when_s(self.made, self.last), "values": {}})
        write_json(self.path / "report.json", report_document(self.made))


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def run_document(made: Made) -> dict[str, Any]:
    per_device = made.batch // made.devices
    return {
        "task": made.task,
        "command": ["paceline", "train", made.task],
        "config": {"target": made.task},
        "parallel": {
            "scheme": made.scheme, "placement": made.placement, "precision": made.precision,
            "accumulation": made.accumulation, "wire_dtype": None,
        },
        "placement": {"summary": f"{made.placement} on {made.devices} devices", "fields": []},
        "data": {"batch": made.batch, "prefetch": made.prefetch, "seed": made.seed, "shuffle": True},
        "audit": {"every": made.every, "on_divergence": "stop"},
        "checkpoints": {"every": made.every},
        "devices": {"count": made.devices, "platform": "cpu", "kind": "cpu", "processes": made.processes},
        "batch": [
            {"name": "image", "shape": [made.batch, *made.row_shape], "dtype": "float32"},
            {"name": "label", "shape": [made.batch], "dtype": "int32"},
        ],
        "counts": {
            "parameters": 11_181_066, "parameter_leaves": 62, "global_batch": made.batch,
            "per_device_batch": per_device, "first_step": 0, "started_at": 0, "resumed_at": None,
            "steps": made.planned or made.steps, "steps_per_epoch": made.every, "rows": made.batch * made.every,
            "dropped_per_epoch": 0,
        },
        "versions": {"python": "3.13.0", "paceline": "0.1.0", "jax": "0.12.0"},
        **made.extra,
    }  # fmt: skip


def program_document(made: Made) -> dict[str, Any]:
    return {
        "compile_s": 3.1,
        "read_s": 0.2,
        "memory": {"peak_bytes": 812_000_000, "parts_bytes": {"state": 180_000_000, "temporary": 632_000_000}},
        "collectives": [
            {
                "kind": "all-reduce", "bytes": GRADIENT_BYTES, "dtype": "f32", "devices": made.devices, "times": 1,
                "blocking": True, "leaves": ["params.conv1.kernel"], "exposed_s": made.step_s * 0.1,
            }
        ],
        "wire_bytes": GRADIENT_BYTES,
        "blocking_collectives": 1,
        "flops": 1.2e10,
        "traffic_bytes": 3.4e9,
        "stages": {"forward_backward": 0.85, "all_reduce": 0.1, "update": 0.05},
        "stages_basis": "modelled: roofline of this machine",
        "communication_s": made.step_s * 0.1,
        "step_s": made.step_s,
        "notes": [],
        "error": None,
    }  # fmt: skip


def report_document(made: Made) -> dict[str, Any]:
    last = step_event(made, max(made.steps, 1), process=0)["values"]
    differing = made.diverges_at is not None
    return {
        "task": made.task,
        "scheme": made.scheme,
        "placement": made.placement,
        "devices": made.devices,
        "global_batch": made.batch,
        "per_device_batch": made.batch // made.devices,
        "accumulation": made.accumulation,
        "steps": made.steps,
        "last_step": made.steps,
        "epochs": made.steps / made.every,
        "rows_seen": made.steps * made.batch,
        "rows_dropped": 0,
        "skipped_updates": len(made.skip_at),
        "compile_s": 3.1,
        "total_s": 3.1 + made.steps * made.step_s,
        "samples_per_s": made.batch / made.step_s,
        "step_p50_s": made.step_s,
        "step_p95_s": made.step_s * 1.05,
        "input_wait_share": made.wait_share,
        "final": last,
        "evaluation": evaluation_values(made, made.steps),
        "audit": {
            "audits": made.steps // made.every, "differing": int(differing), "leaves": 62, "devices": made.devices,
            "excluded": {}, "differences": [], "repairs": 0,
        },
        "stopped": made.stopped,
        "notices": [],
        "run_folder": None,
        "processes": made.processes,
        "checkpoints": made.steps // made.every,
        "checkpoint_s": 0.01,
        "resumed_at": None,
        "restore_s": 0.0,
        "stragglers": None,
        "noise_scale": None,
    }  # fmt: skip


def events(made: Made, *, process: int) -> Iterator[dict[str, Any]]:
    """The events of one process, in the order in which it wrote them."""
    yield _event("start", 0, made.start_s)
    ran = 0
    for step in _order(made):
        if made.restart_at is not None and ran == made.restart_at - 1 and step <= ran:
            yield _event("start", step - 1, when_s(made, ran) + 5)
        ran = step
        yield step_event(made, step, process=process)
        if process == 0:
            yield from _beside(made, step)
    if made.ended:
        yield _event("end", made.steps, when_s(made, made.steps) + 0.1, text=made.stopped)


def _order(made: Made) -> Sequence[int]:
    """Steps in the order in which they were computed."""
    if made.restart_at is None:
        return range(1, made.steps + 1)
    resumed = (made.restart_at - 1) // made.every * made.every
    return [*range(1, made.restart_at), *range(resumed + 1, made.steps + 1)]


def _beside(made: Made, step: int) -> Iterator[dict[str, Any]]:
    """What process 0 writes beside the step."""
    at_s = when_s(made, step) + 0.001
    if step in made.skip_at:
        yield _event("skip", step, at_s, text=f"update {step} left out: not finite")
    if step % made.every:
        return
    yield _event("evaluation", step, at_s, values=evaluation_values(made, step))
    yield _event("checkpoint", step, at_s, text=f"checkpoint of step {step} saved")
    if step == made.diverges_at:
        where = {"leaf": "params.conv1.kernel", "devices": [2], "processes": [0], "replicas": made.devices, "odd": True}
        text = f"after step {step}: params.conv1.kernel on device 2 (process 0) is unlike the other replicas"
        values = {"audit/compared_leaves": 62, "audit/differing_leaves": 1}
        yield _event("audit", step, at_s, values=values, text=text) | {"where": [where]}
    else:
        yield _event("audit", step, at_s, values={"audit/compared_leaves": 62, "audit/differing_leaves": 0})


def step_event(made: Made, step: int, *, process: int) -> dict[str, Any]:
    """Step ``step`` of one process; only process 0 tells what all have in common."""
    noise = _noise(made.seed, step)
    step_s = made.step_s * (1 + 0.05 * noise)
    slow = 6.0 if process == made.slow_process else 1.0
    input_part = {
        "input/wait_s": step_s * made.wait_share * slow,
        "input/queued_batches": made.prefetch if slow == 1 else 0,
        "input/make_s": step_s * 0.2 * slow,
        "input/place_s": step_s * 0.05,
        "memory/process_bytes": 400_000_000 + 1000 * step,
    }
    if process:
        return _event("step", step, when_s(made, step), values=input_part)
    loss: float | str = 0.3 + 2.3 * math.exp(-step / 80) + 0.03 * noise
    common = {
        "train/loss": "nan" if step in made.nan_at else loss,
        "train/learning_rate": 0.1 * min(1, step / 50),
        "train/gradient_norm": 1.5 + 0.2 * noise,
        "train/rows": made.batch,
        "train/accuracy": 1 - math.exp(-step / 100) * 0.9,
        "speed/step_s": step_s,
        "speed/samples_per_s": made.batch / step_s,
        "speed/latency_s": step_s * 5,
        "speed/rows_in_flight": made.batch * 5,
    }
    return _event("step", step, when_s(made, step), values=common | input_part)


def evaluation_values(made: Made, step: int) -> dict[str, float]:
    accuracy = 1 - math.exp(-step / 100) * 0.92
    return {"evaluate/loss": 0.35 + 2.3 * math.exp(-step / 80), "evaluate/accuracy": accuracy, "evaluate/rows": 10_000}


def when_s(made: Made, step: int) -> float:
    """When a step ended."""
    return made.start_s + 3 + step * made.step_s


def _noise(seed: int, step: int) -> float:
    """In -1 to 1, from step and seed alone."""
    return float(np.sin((step + 1) * 12.9898 + seed * 78.233))


def _event(
    kind: str, step: int, time_s: float, *, values: dict[str, Any] | None = None, text: str | None = None
) -> dict[str, Any]:
    event: dict[str, Any] = {"kind": kind, "step": step, "time_s": time_s, "values": values or {}}
    return event if text is None else event | {"text": text}
