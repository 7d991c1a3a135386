"""A plan as one JSON object.

Owns: the keys of ``paceline plan --json``, which `paceline scale --plan` reads again.
Invariant: every number that the text shows is here, in base units.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from paceline.insight.hlo.program import CollectiveUse
from paceline.insight.model.predict import StepTime
from paceline.insight.plan.plan import Plan


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan of one way to run.

    Keys: ``machine``, ``parallel``, ``batch``, ``rows_per_device``, ``notes``, ``memory`` (bytes a device, by part),
    ``fits``, ``ways_out``, ``flops_per_sample``, ``single_samples_per_s`` with its 80 % interval, ``samples_per_s``,
    ``efficiency`` with its interval ``efficiency_low`` to ``efficiency_high``, ``terms`` (s a step), ``binding``,
    ``communication``, ``largest_rows_per_device`` (``rows``, and whether ``compiled``, whether ``is_bounded`` by
    memory, ``data_rows`` that the data have), ``efficient_rows_per_device``, ``curve``, ``cost``, ``statistical``.
    """
    memory = plan.step_program.memory
    return {
        "machine": plan.machine.name,
        "devices": plan.devices,
        "parallel": dataclasses.asdict(plan.step_program.parallel),
        "batch": plan.ask.batch,
        "rows_per_device": plan.rows,
        "notes": list(plan.notes),
        "platform": plan.step_program.compiled.platform,
        "memory": {
            "peak_bytes": memory.peak,
            "parts_bytes": memory.parts(),
            "device_bytes": round(plan.machine.device.memory_bytes),
            "default_limit_bytes": plan.limit.default_bytes,
            "most_limit_bytes": plan.limit.most_bytes,
        },
        "fits": plan.fits,
        "ways_out": [dataclasses.asdict(advice) for advice in plan.ways_out],
        "flops_per_sample": plan.flops_per_sample,
        "utilisation": plan.utilisation,
        "single_samples_per_s": plan.single_rate,
        "single_interval_samples_per_s": list(plan.single_rate_interval),
        "single_is_measured": plan.ask.rate is not None,
        **_point(plan, plan.time),
        "step_s": plan.time.step_s,
        "terms": dict(plan.time.terms),
        "binding": plan.time.binding,
        "communication": [_collective(use, plan) for use in plan.step_program.program.collectives],
        "largest_rows_per_device": dataclasses.asdict(plan.largest),
        "efficient_rows_per_device": plan.efficient_rows,
        "curve": [_point(plan, time) for time in plan.curve],
        "cost": cost_of(plan),
        "statistical": _statistical(plan),
    }


def cost_of(plan: Plan) -> dict[str, float] | None:
    """Hours, device-hours and price of the samples asked for; None if no number of samples was given."""
    if plan.ask.samples is None:
        return None
    hours = plan.ask.samples / plan.rate(plan.time) / 3600
    found = {"samples": float(plan.ask.samples), "hours": hours, "device_hours": hours * plan.devices}
    return found if plan.ask.price is None else {**found, "price": hours * plan.devices * plan.ask.price}


def _point(plan: Plan, time: StepTime) -> dict[str, Any]:
    return {
        "devices": time.devices,
        "samples_per_s": plan.rate(time),
        "efficiency": time.efficiency,
        "efficiency_low": time.efficiency_low,
        "efficiency_high": time.efficiency_high,
    }


def _collective(use: CollectiveUse, plan: Plan) -> dict[str, Any]:
    one = use.collective
    return {
        "kind": one.kind, "bytes": one.bytes, "dtype": one.dtype, "devices": one.group, "times": use.times,
        "blocking": use.blocking, "in_flight_flops": use.in_flight.total_flops, "in_flight_bytes": use.in_flight.bytes,
        "leaves": list(one.leaves), "exposed_s": plan.time.waits_s.get(one.name, 0.0),
    }  # fmt: skip


def _statistical(plan: Plan) -> dict[str, Any] | None:
    if plan.statistical is None:
        return None
    useful = plan.useful
    return {
        "noise_scale_rows": plan.ask.noise_scale,
        "hardware_efficiency": plan.statistical.hardware,
        "statistical_efficiency": plan.statistical.statistical,
        "product": plan.statistical.product,
        "useful_devices": None if useful is None else useful.devices,
        "useful_is_end_of_curve": None if useful is None else useful.is_end,
    }
