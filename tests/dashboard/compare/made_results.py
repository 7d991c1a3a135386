"""Results of `scale`, `plan` and `verify` as their ``--json`` has them, small, with numbers to reckon with a pencil.

Owns: the documents; they are written out here, not by the commands: a reader is not tested against its own writer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OPTIONS = {"batch": None, "scheme": "per_device", "placement": "replicated", "accumulation": 1, "precision": "float32"}


def interval(value: float, *, spread: float = 0.0) -> dict[str, float]:
    """``value`` with ends that far below and above."""
    return {"value": value, "low": value - spread, "high": value + spread, "coverage": 0.96}


def scale_document(**changes: Any) -> dict[str, Any]:
    """1 and 2 devices with 64 rows each: 1000 and 1800 samples/s, so E_2 = 90 %; 4 and 6 points lost."""
    points = [
        {
            "devices": 1, "batch": 64, "samples_per_s": interval(1000, spread=10),
            "step_s": {"local": interval(0.06), "fit": interval(0.064, spread=0.001)},
            "efficiency": interval(1.0), "not_claimed": None, "waterfall_percent": None,
        },
        {
            "devices": 2, "batch": 128, "samples_per_s": interval(1800, spread=20),
            "step_s": {"local": interval(0.06), "fit": interval(0.0711, spread=0.001)},
            "efficiency": interval(0.9, spread=0.02), "not_claimed": None,
            "waterfall_percent": {"compute": interval(4, spread=1), "communication": interval(6, spread=1)},
        },
    ]  # fmt: skip
    return {
        "task": "image", "platform": "gpu (NVIDIA H100 80GB HBM3)", "conditions": ["measured on a quiet machine"],
        "rounds": 9, "scalings": [{"mode": "weak", "points": points, "time_to_loss": None}],
        "config": {"target": "image", "options": dict(OPTIONS), "recipe": {"width": 64}}, **changes,
    }  # fmt: skip


def plan_document(**changes: Any) -> dict[str, Any]:
    """2 devices with 64 rows each: 1980 samples/s, E_2 = 95 % (1, 3, 1 points lost); of 3 collectives 1 blocks."""
    step_s = 128 / 1980
    plan = {
        "machine": "2 x H100 SXM 80 GB", "devices": 2, "parallel": {**OPTIONS, "donate": True}, "batch": 128,
        "rows_per_device": 64, "notes": ["a note of the plan"], "platform": "cuda",
        "memory": {"peak_bytes": 900_000_000, "parts_bytes": {}}, "fits": True,
        "single_samples_per_s": 1042.1, "single_interval_samples_per_s": [900.0, 1200.0], "single_is_measured": False,
        "samples_per_s": 1980.0, "efficiency": 0.95, "efficiency_low": 0.9, "efficiency_high": 0.98,
        "step_s": step_s, "binding": "communication",
        "terms": {"compute_s": 0.9 * step_s, "contention_s": 0.01 * step_s, "exposed_s": 0.03 * step_s, "jitter_s": 0.0,
                  "input_s": 0.0, "host_s": 0.06 * step_s, "hidden_s": 0.01},
        "communication": [
            {"kind": "all-reduce", "bytes": 1000, "dtype": "float32", "times": 2, "blocking": False, "exposed_s": 0.0},
            {"kind": "all-reduce", "bytes": 16, "dtype": "float32", "times": 1, "blocking": True, "exposed_s": 0.003},
        ],
        "curve": [
            {"devices": 1, "samples_per_s": 1042.1, "efficiency": 1.0, "efficiency_low": 1.0, "efficiency_high": 1.0},
            {"devices": 2, "samples_per_s": 1980.0, "efficiency": 0.95, "efficiency_low": 0.9, "efficiency_high": 0.98},
            {"devices": 4, "samples_per_s": 3600.0, "efficiency": 0.86, "efficiency_low": 0.8, "efficiency_high": 0.9},
        ],
        **changes,
    }  # fmt: skip
    return {"plan": plan, "config": {"target": "image", "options": dict(OPTIONS), "recipe": {"width": 64}}}


def verify_document(*, differs: bool = False) -> dict[str, Any]:
    """Three programs; with ``differs`` one is beyond its tolerance and one's replicas drift."""
    results = [
        result("per_device", deviation=2e-7),
        result("global_view", deviation=3e-3 if differs else 0.0, verdict="differs" if differs else "equal"),
        result("pmap", deviation=1e-7, verdict="drifts" if differs else "equal"),
    ]
    return {
        "ok": not differs, "subject": "image", "results": results, "causes": [],
        "setting": "image: one device against 2, 4 (cpu); 3 updates of 64 rows", "skipped": [], "seconds": 3.0,
        "config": {"target": "image", "options": {"precision": "float32"}, "recipe": {"width": 64}},
    }  # fmt: skip


def result(case: str, *, deviation: float | None, verdict: str = "equal") -> dict[str, Any]:
    """One program of a verification."""
    return {
        "case": case, "devices": 2, "accumulation": 1, "precision": "float32", "worst_leaf": "params.w", "update": 1,
        "deviation": deviation, "tolerance": 1e-5, "drifting": [], "verdict": verdict, "note": "",
    }  # fmt: skip


def write(path: Path, content: Any) -> str:
    """The file's path as text."""
    path.write_text(json.dumps(content))
    return str(path)
