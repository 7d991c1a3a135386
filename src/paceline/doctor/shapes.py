"""What the step is given: batch and parameters, leaf by leaf, with the share of one device.

Owns: leading device axes that a user put on, types that change on the way to a device, sizes of the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from paceline.base.errors import PacelineError
from paceline.base.units import format_bytes, format_count
from paceline.data.example import Example
from paceline.data.tree import check_integers, count_rows, label
from paceline.doctor.finding import Finding, error_finding
from paceline.doctor.subject import Program, Subject
from paceline.engine.abstract import device_dtype
from paceline.tasks.tree import named_leaves


def batch_shape_findings(subject: Subject, example: Example, *, rows: int | None) -> list[Finding]:
    """One line a leaf of the batch; an error for a leaf that no step can take.

    Args:
      rows: of the batch as the step sees it; None if that is not known.
    """
    try:
        count_rows(example.structure, noun="batch")
        check_integers(example.structure, noun="batch")
    except PacelineError as error:
        return [error_finding("shapes", error)]
    size = rows if rows is not None else subject.batch if example.source_rows is not None else example.rows
    return [*_device_axis(subject, example), *(_leaf(subject, *leaf, rows=size) for leaf in example.leaves)]


def _leaf(subject: Subject, name: str, shape: tuple[int, ...], dtype: np.dtype, *, rows: int) -> Finding:
    whole = (rows, *shape[1:])
    devices = subject.num_devices
    text = f"{label(name, 'batch')}: {dtype}{list(whole)}"
    on_device = device_dtype(dtype)
    if on_device != dtype:
        text += f", {on_device} on the devices"
    if rows % devices == 0:
        share = math.prod(whole) // devices * np.dtype(on_device).itemsize
        text += f", {[rows // devices, *shape[1:]]} a device ({format_bytes(share)})"
    return Finding("shapes", "ok", text)


def _device_axis(subject: Subject, example: Example) -> Iterator[Finding]:
    """A device axis of size K in front of the rows, as `jax.pmap` wants it and no scheme here."""
    devices = subject.num_devices
    leading = example.rows if example.source_rows is None else example.source_rows
    inner = {shape[1] if len(shape) > 1 else 1 for _, shape, _ in example.leaves}
    if devices > 1 and leading == devices and len(inner) == 1 and min(inner) > 1:
        yield Finding(
            "shapes",
            "warning",
            f"every leaf begins with [{devices}, {min(inner)}]: a device axis of size {devices}, put on by hand? "
            f"It is taken for {devices} rows",
            "give the rows without it, leaf.reshape(-1, *leaf.shape[2:]): Paceline splits them, under pmap too",
        )


def state_findings(subject: Subject, program: Program) -> list[Finding]:
    """Number and size of the parameters and of what the optimizer and the model keep beside them."""
    params, model_state, _ = program.one_device
    copies = subject.num_devices if subject.parallel.scheme == "pmap" else 1
    number = sum(math.prod(leaf.shape) for _, leaf in named_leaves(params))
    text = f"{format_count(len(named_leaves(params)), 'parameter leaf').replace('leafs', 'leaves')}, "
    text += f"{format_count(number, 'parameter')}, {format_bytes(tree_bytes(params))}; optimizer state "
    text += format_bytes(tree_bytes(program.state.opt_state) // copies)
    if named_leaves(model_state):
        text += f"; model state {format_bytes(tree_bytes(model_state))}"
    return [Finding("shapes", "ok", text)]


def tree_bytes(tree: object) -> int:
    """Bytes of all leaves, one copy of each."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for _, leaf in named_leaves(tree))
