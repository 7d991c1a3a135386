"""Why a step was not finite: the step, the leaf, and the row of the data if the data is to blame.

Owns: when the run stops for it, and the words of the error.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.base.errors import DataError, NonFiniteError, PacelineError
from paceline.data.batch import HostBatch
from paceline.data.tree import label, named_leaves
from paceline.engine.metrics import StepMetrics
from paceline.engine.parallel import Parallel
from paceline.engine.precision import MINIMUM_SCALE


def must_stop(parallel: Parallel, values: Mapping[str, float], *, skipped_before: int | float) -> bool:
    """Whether the step with these values ends the run: it was not finite and no smaller loss scale could help."""
    if parallel.nonfinite == "skip" or values["skipped_updates"] <= skipped_before:
        return False
    return parallel.precision != "float16" or values["loss_scale"] <= MINIMUM_SCALE


def nonfinite_error(step: int, *, values: Mapping[str, float], metrics: StepMetrics, host: HostBatch) -> PacelineError:
    """The error for a step that was not finite; a DataError when the batch itself holds the culprit."""
    in_data = _bad_row(host)
    if in_data is not None:
        return DataError(
            what=f"step {step}: {in_data}",
            why="one such row makes the gradient of the whole global batch not finite; the update was not applied",
            fix="clean the row, or leave such updates out with --nonfinite skip",
        )
    fix = "lower the learning rate, clip with --clip-norm 1, or leave such updates out with --nonfinite skip"
    if "loss_scale" in values:
        fix = (
            "use --precision bfloat16 or float32: with a loss scale of 1 it is the forward pass that overflows float16"
        )
    return NonFiniteError(
        what=f"step {step}: {_culprit(values, metrics=metrics)}",
        why="an update with it would destroy the parameters on every device; it was not applied",
        fix=fix,
    )


def left_out(values: Mapping[str, float], *, metrics: StepMetrics) -> str:
    """Why the update of a step that was not finite was left out, in words for a run that goes on."""
    if "loss_scale" in values:
        return f"update left out: its gradients overflowed float16 under a loss scale of {values['loss_scale']:g}"
    return f"update left out: {_culprit(values, metrics=metrics)}"


def _culprit(values: Mapping[str, float], *, metrics: StepMetrics) -> str:
    leaves = metrics.bad_leaves()
    shown = ", ".join(leaves[:4]) + (f" and {len(leaves) - 4} more" if len(leaves) > 4 else "")
    where = f"the gradient of {shown} is not finite" if leaves else "the loss is not finite"
    return f"{where} (loss {values['loss']:.4g})"


def _bad_row(host: HostBatch) -> str | None:
    for name, leaf in named_leaves(host.data):
        array = np.asarray(leaf)
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            continue
        bad = ~np.isfinite(array.astype(np.float32).reshape(array.shape[0], -1)).all(axis=1)
        if bad.any():
            row = host.place_of(int(np.argmax(bad)))
            number = f"row {host.indices[row]} of the data" if host.indices is not None else f"row {row} of the batch"
            return f"{label(name, 'batch')} is not finite in {number}"
    return None
