"""The register of metric keys ``group/name_unit``.

Owns: every key that an event may carry, its unit, what it means and which way is better, declared once.
Not here: how values are computed (`train`, `engine`) or drawn (`dashboard`).
Invariant: a key means one thing; a user's metric that would take a key that is declared here is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from paceline.base.errors import LossError

Better = Literal["lower", "higher", "none"]


@dataclass(frozen=True)
class Metric:
    """One declared number.

    Args:
      key: ``group/name_unit``, as events carry it.
      unit: the unit as people write it (``samples/s``); empty for a pure number.
      description: one sentence that the page shows.
      better: which way is better; ``none`` when neither is, as for a learning rate.
    """

    key: str
    unit: str
    description: str
    better: Better

    @property
    def group(self) -> str:
        """The part before the slash: ``train``."""
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        """The part after the slash: ``loss``."""
        return self.key.partition("/")[2]


TRAIN_LOSS = Metric("train/loss", "", "Loss of the update's batch, the mean over its valid rows or weights.", "lower")
TRAIN_LEARNING_RATE = Metric("train/learning_rate", "", "Learning rate that the update used.", "none")
TRAIN_GRADIENT_NORM = Metric(
    "train/gradient_norm", "", "Global 2-norm of the mean gradient, after unscaling and before clipping.", "none"
)
TRAIN_LOSS_SCALE = Metric("train/loss_scale", "", "Factor that keeps float16 gradients in range.", "none")
TRAIN_SKIPPED_UPDATES = Metric(
    "train/skipped_updates", "updates", "Updates that all devices skipped so far: not finite.", "lower"
)
TRAIN_WEIGHT = Metric(
    "train/weight", "", "Sum of weights that the update's loss was divided by: rows, or what the task counts.", "none"
)
TRAIN_ROWS = Metric("train/rows", "rows", "Valid rows in the update's global batch; padding does not count.", "none")
TRAIN_LOCAL_GRADIENT_NORM = Metric(
    "train/local_gradient_norm",
    "",
    "2-norm of a device's own mean gradient: root of the mean square over devices, weighted by their rows.",
    "none",
)
TRAIN_GRADIENT_DEVICES = Metric(
    "train/gradient_devices", "devices", "Devices whose share of the batch had rows that count.", "none"
)
TRAIN_NOISE_SCALE_ROWS = Metric(
    "train/noise_scale_rows",
    "rows",
    "Gradient noise scale, averaged over steps: the batch at which a row brings half of what it does in a small one.",
    "none",
)
SPEED_SAMPLES_PER_S = Metric("speed/samples_per_s", "samples/s", "Valid rows trained on each second.", "higher")
SPEED_STEP_S = Metric("speed/step_s", "s", "Time from one completed update to the next.", "lower")
SPEED_LATENCY_S = Metric(
    "speed/latency_s", "s", "Time from the begin of making a batch to the end of the update that used it.", "lower"
)
SPEED_ROWS_IN_FLIGHT = Metric(
    "speed/rows_in_flight",
    "rows",
    "Rows of batches begun and not yet trained on when the update ended: made, queued or in a step.",
    "none",
)
INPUT_WAIT_S = Metric("input/wait_s", "s", "Part of the step in which the devices idled: no batch was there.", "lower")
INPUT_QUEUED_BATCHES = Metric("input/queued_batches", "batches", "Batches ready when the step asked for one.", "none")
INPUT_MAKE_S = Metric("input/make_s", "s", "Host time to read and assemble the update's batch.", "lower")
INPUT_PLACE_S = Metric("input/place_s", "s", "Host time to hand the update's batch to the devices.", "lower")
MEMORY_PROCESS_BYTES = Metric("memory/process_bytes", "bytes", "Host memory that the process holds.", "lower")
MEMORY_IN_USE_BYTES = Metric(
    "memory/in_use_bytes", "bytes", "Device memory in use: of the process's devices, the one with most.", "lower"
)
MEMORY_PEAK_BYTES = Metric(
    "memory/peak_bytes",
    "bytes",
    "Most device memory in use so far: of the process's devices, the one with most.",
    "lower",
)
EVALUATE_LOSS = Metric("evaluate/loss", "", "Loss over every row of the evaluation set, each counted once.", "lower")
EVALUATE_ROWS = Metric("evaluate/rows", "rows", "Rows that the evaluation counted.", "none")
AUDIT_COMPARED_LEAVES = Metric(
    "audit/compared_leaves", "leaves", "Leaves of the state whose replicas were compared.", "none"
)
AUDIT_DIFFERING_LEAVES = Metric(
    "audit/differing_leaves", "leaves", "Leaves of the state whose replicas were not equal, bit for bit.", "lower"
)

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.key: metric
        for metric in (
            TRAIN_LOSS,
            TRAIN_LEARNING_RATE,
            TRAIN_GRADIENT_NORM,
            TRAIN_LOSS_SCALE,
            TRAIN_SKIPPED_UPDATES,
            TRAIN_WEIGHT,
            TRAIN_ROWS,
            TRAIN_LOCAL_GRADIENT_NORM,
            TRAIN_GRADIENT_DEVICES,
            TRAIN_NOISE_SCALE_ROWS,
            SPEED_SAMPLES_PER_S,
            SPEED_STEP_S,
            SPEED_LATENCY_S,
            SPEED_ROWS_IN_FLIGHT,
            INPUT_WAIT_S,
            INPUT_QUEUED_BATCHES,
            INPUT_MAKE_S,
            INPUT_PLACE_S,
            MEMORY_PROCESS_BYTES,
            MEMORY_IN_USE_BYTES,
            MEMORY_PEAK_BYTES,
            EVALUATE_LOSS,
            EVALUATE_ROWS,
            AUDIT_COMPARED_LEAVES,
            AUDIT_DIFFERING_LEAVES,
        )
    }
)

_NAME = re.compile(r"[^\W\d_][\w.-]*(/[\w.-]+)*")  # letters of any script: users name metrics in their own language
_SUFFIX_UNITS = {  # the longest suffix first: `tokens_per_s` ends in `_s` too
    "_tokens_per_s": "tokens/s",
    "_samples_per_s": "samples/s",
    "_bytes_per_s": "bytes/s",
    "_bytes": "bytes",
    "_s": "s",
}
_LAST_WORD_BETTER: dict[str, Better] = {"accuracy": "higher", "loss": "lower", "error": "lower", "perplexity": "lower"}


def user_metric(name: str, *, description: str = "") -> Metric:
    """The key ``train/<name>`` of a metric that the user's loss returns beside the loss.

    Raises: LossError: ``name`` makes no key, or takes one that Paceline writes itself (``loss``, ``rows``), in
      which case one of the two would overwrite the other in every event.
    """
    key = f"train/{name}"
    if key in METRICS:
        raise LossError(
            what=f"the task returns a metric named {name!r}, which Paceline itself records as {key!r}",
            why="one of the two would overwrite the other",
            fix=f"rename the metric, for example 'task_{name}'",
        )
    return _derived("train", name, description)


def evaluation_metric(name: str, *, description: str = "") -> Metric:
    """The key ``evaluate/<name>``; ``loss`` and ``rows`` give the declared ones.

    Raises: LossError: ``name`` makes no key.
    """
    return METRICS.get(f"evaluate/{name}") or _derived("evaluate", name, description)


def describe(key: str) -> Metric:
    """What ``key`` means, for a reader of any run.

    Never raises: a page must also show keys of users' metrics and of other versions. What is not declared is described
    by the form of its key alone.
    """
    declared = METRICS.get(key)
    if declared is not None:
        return declared
    group, _, name = key.partition("/")
    kinds = {"train": "of the training batch", "evaluate": "over the evaluation set"}
    description = f"The task's own metric {name!r} {kinds[group]}." if group in kinds else "Not declared by Paceline."
    return Metric(key, _unit(key), description, _better(key))


def _derived(group: str, name: str, description: str) -> Metric:
    if not _NAME.fullmatch(name):
        raise LossError(
            what=f"{name!r} cannot name a metric",
            why="names become keys such as 'train/accuracy', read again by the page and by exporters",
            fix="begin with a letter and go on with letters, digits, '_', '.', '-' or '/'",
        )
    metric = describe(f"{group}/{name}")
    return Metric(metric.key, metric.unit, description or metric.description, metric.better)


def _unit(key: str) -> str:
    return next((unit for suffix, unit in _SUFFIX_UNITS.items() if key.endswith(suffix)), "")


def _better(key: str) -> Better:
    return _LAST_WORD_BETTER.get(re.split(r"[/_.-]", key)[-1].lower(), "none")
