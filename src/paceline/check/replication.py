"""Which leaves of the next state differ between devices, read from the traced step before it runs.

Owns: the check of Paceline's own steps, and of steps that a user wrote for `jax.pmap`, `jax.shard_map` or to be mapped.
Not here: the interpreter (`check.dataflow`), tracing of foreign steps (`check.foreign`), values at run time
(`check.audit`).
Invariant: a leaf that is not named comes out the same on all devices if the state went in the same on all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from paceline.base.errors import OptionError, ReplicationError
from paceline.base.units import format_count
from paceline.check.dataflow import flow
from paceline.check.foreign import next_state, trace_foreign
from paceline.check.places import place
from paceline.check.values import SPLIT, Labels, differs
from paceline.engine.state import TrainState
from paceline.engine.step import StepFunction
from paceline.tasks.tree import named_leaves
from paceline.topology.mesh import DATA_AXIS

_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class Drift:
    """A leaf of the next state that each device would hold its own version of.

    Args:
      leaf: dotted name.
      where: the user's ``file:line`` that last computed the difference, if it can be told.
    """

    leaf: str
    where: str | None

    def __str__(self) -> str:
        return self.leaf if self.where is None else f"{self.leaf} ({self.where})"


def varying_leaves(
    jaxpr: Any, labels: Sequence[Labels], *, outputs: Iterable[tuple[int, str]], device_axis: bool
) -> list[Drift]:
    """Those of the named outputs that differ between devices.

    Args:
      jaxpr, labels: as `check.dataflow.flow` takes them.
      outputs: flat index and name of each leaf of the next state.
      device_axis: the leaves of the state carry a leading device axis, one copy of the leaf for each device.
    """
    values = flow(jaxpr, labels).outputs
    return [
        Drift(name, place(values[index].site))
        for index, name in outputs
        if differs(values[index].labels) or (device_axis and SPLIT in values[index].labels)
    ]


def drifting(
    step: Callable[..., Any],
    *arguments: Any,
    state_argnums: int | Sequence[int] = (0,),
    axis_name: str | None = None,
    devices: int | None = None,
    device_axis: bool | None = None,
) -> list[Drift]:
    """The leaves of the next state that would differ between devices after one step. Nothing is run.

    ``drifting(step, state, batch)`` finds, for example, ``params.w`` where gradients are not reduced, or
    ``batch_stats.bn1.mean`` where BatchNorm is not.

    Args:
      step: a function made by `jax.pmap`, a function that contains a `jax.shard_map`, or one written to be mapped, as
        one device runs it. Its result holds the next state: a part of the same structure and shapes as the state.
      arguments: what the step is called with, as arrays or `jax.ShapeDtypeStruct`; for a function to be mapped, as one
        device sees them. What is no array is taken as static.
      state_argnums: which argument is the state, or which are: what all devices hold alike. All others may differ.
      axis_name: of a function to be mapped; default: the axis that it reduces over.
      devices: size of that axis; default: the devices there are.
      device_axis: whether the state carries a leading device axis, as `jax.pmap` wants it; default: it does if every
        leaf has that leading size. Without it, leaves that a `shard_map` splits are parts, not copies: not compared.
    Returns: one `Drift` a leaf, empty if none differs. Named as in the state; with several states, each name begins
      with that of its parameter.
    Raises: TaskError: the step cannot be traced, or returns no next state. AxisNameError: a device axis that does not
      exist, or none at all. OptionError: `state_argnums` or `devices` that cannot be.
    """
    state_argnums = _numbers(state_argnums, len(arguments))
    if devices is not None and (isinstance(devices, bool) or not isinstance(devices, int) or devices < 1):
        raise OptionError(
            what=f"devices={devices!r}",
            why="it is the size of the axis that the step is mapped over",
            fix="use devices=2 or more, or leave it out for the devices there are",
        )
    traced = trace_foreign(step, arguments, axis_name=axis_name, devices=devices)
    stacked = traced.is_stacked(state_argnums) if device_axis is None else device_axis
    labels = traced.labels(state_argnums, device_axis=stacked)
    outputs = next_state(traced, state_argnums)
    return varying_leaves(traced.jaxpr, labels, outputs=outputs, device_axis=stacked)


def _numbers(argnums: Any, count: int) -> tuple[int, ...]:
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not numbers or any(not isinstance(number, int) or not 0 <= number < count for number in numbers):
        raise OptionError(
            what=f"state_argnums={argnums!r} for a step that is called with {format_count(count, 'argument')}",
            why="it says which of them are the state",
            fix="use the number of an argument, 0 for the first, or several of them",
        )
    return numbers


def check_step(step: StepFunction, state: TrainState, *, batch: Any, valid: Array | jax.ShapeDtypeStruct) -> None:
    """Raise ReplicationError if a step would leave the devices with different states.

    The program of `global_view` has no devices, so nothing in it can differ. Leaves that a placement splits are parts
    of one array, not copies.

    Args:
      state, batch, valid: as the step takes them, or their abstract values.
    """
    parallel = step.spec.parallel
    if parallel.scheme == "global_view" or step.spec.mesh.size == 1:
        return
    device_axis = parallel.scheme == "pmap"
    names = [name for name, _ in named_leaves(state)]
    jaxpr = step.traced(state, batch, valid)
    same = len(names) if device_axis else 0
    labels = [frozenset({SPLIT} if index >= same else ()) for index in range(len(jaxpr.in_avals))]
    found = varying_leaves(jaxpr, labels, outputs=enumerate(names), device_axis=device_axis)
    if found:
        raise _error(found)


def _error(found: Sequence[Drift]) -> ReplicationError:
    names = [drift.leaf for drift in found[:_NAMED_AT_MOST]]
    more = len(found) - len(names)
    where = next((drift.where for drift in found if drift.where is not None), None)
    return ReplicationError(
        what="after one step the devices would hold different values of "
        + ", ".join(names)
        + (f" and {more} more" if more else ""),
        why="every device would go on training a model of its own, and which one is saved would be chance",
        fix=("" if where is None else f"look at {where}: ")
        + f"reduce what differs, for example jax.lax.pmean(x, {DATA_AXIS!r}), or compute it without "
        "jax.lax.axis_index",
    )
