"""What a run is, written before its first step: ``run.json`` and the lines above the progress bar."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import sys
from collections.abc import Mapping
from typing import Any

import jax

from paceline.base.units import format_count
from paceline.engine.placement import placement_text, summarize_placement
from paceline.engine.state import TrainState
from paceline.engine.update import StepSpec
from paceline.tasks.tree import named_leaves
from paceline.train.batching import RunPlan, Start
from paceline.train.machine import hosts
from paceline.train.options import FitOptions
from paceline.train.place import PlacedBatch

_PACKAGES = ("paceline", "jax", "jaxlib", "numpy", "optax", "flax", "equinox")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that shape a result; packages that are not installed are left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def run_document(
    spec: StepSpec, *, options: FitOptions, plan: RunPlan, state: TrainState, batch: PlacedBatch | None,
    start: Start, resumed_at: int | None,
) -> dict[str, Any]:  # fmt: skip
    """The content of ``run.json``: config, versions, devices, scheme, placement, counts, shapes of the batch.

    Args:
      batch: the first; None if the run has no step left to make.
      resumed_at: step of the checkpoint that the run goes on from.
    """
    devices = list(spec.mesh.devices.flat)
    leaves = named_leaves(state.params)
    fields = summarize_placement(state, parallel=spec.parallel, mesh=spec.mesh)
    # Under pmap a leaf holds one copy a device.
    copies = len(devices) if spec.parallel.scheme == "pmap" else 1
    rows = 0 if batch is None else batch.valid.size
    return {
        "task": spec.task.name,
        "command": sys.argv,
        "config": dict(options.config),
        "parallel": dataclasses.asdict(spec.parallel),
        "placement": {
            "summary": placement_text(fields, placement=spec.parallel.placement, num_devices=len(devices)),
            "fields": [dataclasses.asdict(field) for field in fields],
        },
        "data": dataclasses.asdict(options.data),
        "audit": dataclasses.asdict(options.audit),
        "checkpoints": None if options.checkpoints is None else dataclasses.asdict(options.checkpoints),
        "devices": {
            "count": len(devices),
            "platform": devices[0].platform,
            "kind": devices[0].device_kind,
            "processes": jax.process_count(),
            "machines": hosts(),
        },
        "batch": [] if batch is None else batch_shapes(batch.data, device_axis=spec.parallel.scheme == "pmap"),
        "counts": {
            "parameters": sum(leaf.size for _, leaf in leaves) // copies,
            "parameter_leaves": len(leaves),
            "global_batch": rows,
            "per_device_batch": rows // len(devices),
            "first_step": start.step,
            "started_at": start.step - start.done,
            "resumed_at": resumed_at,
            "steps": plan.num_steps,
            "steps_per_epoch": plan.batches.steps_per_epoch if plan.batches else None,
            "rows": plan.batches.rows if plan.batches else None,
            "dropped_per_epoch": plan.batches.dropped_per_epoch if plan.batches else None,
        },
        "versions": versions(),
    }


def batch_shapes(data: Any, *, device_axis: bool) -> list[dict[str, Any]]:
    """Name, shape and type of each leaf of a global batch.

    Args:
      data: as it is placed.
      device_axis: whether the leaves are ``[K, B/K, ...]``, as under `pmap`; the shape is ``[B, ...]`` all the same.
    """
    found = []
    for name, leaf in named_leaves(data):
        shape = leaf.shape
        if device_axis:
            shape = (shape[0] * shape[1], *shape[2:])
        found.append({"name": "" if name == "(whole)" else name, "shape": list(shape), "dtype": leaf.dtype.name})
    return found


def header_lines(document: Mapping[str, Any]) -> list[str]:
    """What runs, in two lines for the terminal."""
    counts, devices, parallel = document["counts"], document["devices"], document["parallel"]
    steps = "steps until the data ends" if counts["steps"] is None else f"{counts['steps']:,} steps"
    if counts["steps_per_epoch"]:
        steps += f", {counts['steps_per_epoch']:,} an epoch"
    if counts["dropped_per_epoch"]:
        steps += f" with {format_count(counts['dropped_per_epoch'], 'row')} dropped"
    accumulated = f" in {parallel['accumulation']} microbatches" if parallel["accumulation"] > 1 else ""
    placement = "" if parallel["placement"] == "replicated" else f", {parallel['placement']},"
    return [
        f"{document['task']}: {format_count(counts['parameters'], 'parameter')}, {parallel['precision']}, "
        f"scheme {parallel['scheme']}{placement} on {devices['count']} x {devices['kind']}",
        f"batch {counts['global_batch']:,} = {devices['count']} x {counts['per_device_batch']:,} rows"
        f"{accumulated}; {steps}",
    ]
