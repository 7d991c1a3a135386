"""Random keys that are used twice, never change, or are the same where they should differ.

Owns: what the random draws of a program say about its keys.
Not here: how draws are found (`check.dataflow`).
Invariant: a finding points at draws of the program as it is traced. A key that a loop draws from in each of its
iterations is not reported: recurrent networks share a mask over time on purpose.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

from paceline.check.dataflow import flow
from paceline.check.foreign import trace_foreign
from paceline.check.values import SPLIT, Draw, Labels, differs

KeyFault = Literal["shared", "reused", "same_on_devices", "depends_on_devices"]


@dataclass(frozen=True)
class KeyFinding:
    """Draws whose keys are not what a reader of the code would think.

    Args:
      kind: `shared`: two draws use one key. `reused`: the key is the same in every step. `same_on_devices`: each device
        draws the same numbers for its own rows. `depends_on_devices`: the numbers change with the number of devices.
      where: the user's ``file:line`` of each draw, as far as known, in the order of the program.
      shapes: of the draws.
      what: what happens, in one sentence.
      fix: the change to make.
    """

    kind: KeyFault
    where: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    what: str
    fix: str


def draws(jaxpr: Any, labels: Sequence[Labels]) -> list[Draw]:
    """Every random draw of a jaxpr. Arguments as in `check.dataflow.flow`."""
    return flow(jaxpr, labels).draws


def key_findings(found: Sequence[Draw], *, local_rows: Collection[int] = ()) -> list[KeyFinding]:
    """What is wrong with the keys of some draws.

    Args:
      found: from `draws`, of a program whose inputs each have a label of their own.
      local_rows: rows that one device sees, to know a draw for rows from one for parameters.
    """
    return [*_shared(found), *_reused(found), *_across_devices(found, local_rows)]


def loss_key_findings(
    loss: Callable[..., Any], *, params: Any, model_state: Any, batch: Any, rng: Any = None
) -> list[KeyFinding]:
    """What is wrong with the keys of a task's loss ``loss(params, model_state, batch, rng)``.

    Args:
      params, model_state, batch: arrays, or their `jax.ShapeDtypeStruct`.
      rng: default: a key as steps give it.
    """
    key = jax.eval_shape(lambda: jax.random.key(0)) if rng is None else rng
    arguments = {"params": params, "model_state": model_state, "batch": batch, "rng": key}
    jaxpr = jax.make_jaxpr(loss)(*arguments.values())
    labels = [frozenset({name}) for name, argument in arguments.items() for _ in jax.tree.leaves(argument)]
    return key_findings(draws(jaxpr, labels))


def step_key_findings(
    step: Callable[..., Any],
    *arguments: Any,
    state_argnums: Sequence[int] = (0,),
    axis_name: str | None = None,
    devices: int | None = None,
    device_axis: bool | None = None,
) -> list[KeyFinding]:
    """What is wrong with the keys of a step that is mapped over devices. Arguments as in `check.replication.drifting`.

    Raises: TaskError: the step cannot be traced. AxisNameError: a device axis that does not exist, or none at all.
    """
    traced = trace_foreign(step, arguments, axis_name=axis_name, devices=devices)
    stacked = traced.is_stacked(state_argnums) if device_axis is None else device_axis
    found = draws(traced.jaxpr, traced.labels(state_argnums, device_axis=stacked))
    return key_findings(found, local_rows=traced.local_rows(state_argnums, device_axis=stacked))


def _shared(found: Sequence[Draw]) -> list[KeyFinding]:
    groups: dict[int, list[Draw]] = {}
    for draw in found:
        if not draw.backward:
            groups.setdefault(draw.key, []).append(draw)
    findings = []
    for group in groups.values():
        if any(_both_happen(a, b) for a, b in itertools.combinations(group, 2)):
            findings.append(
                _finding(
                    "shared",
                    group,
                    what=f"{len(group)} draws use one key, so their numbers are not independent",
                    fix="split the key and give each draw its own: first, second = jax.random.split(key)",
                )
            )
    return findings


def _both_happen(a: Draw, b: Draw) -> bool:
    """Not so if they stand in different branches of one conditional."""
    choices = dict(a.branches)
    return all(choices.get(conditional, branch) == branch for conditional, branch in b.branches)


def _reused(found: Sequence[Draw]) -> list[KeyFinding]:
    return [
        _finding(
            "reused",
            [draw],
            what="the key is a constant of the program: every step draws the same numbers",
            fix="draw from the key that the loss is given, or fold the step in: jax.random.fold_in(key, step)",
        )
        for draw in found
        if not draw.backward and all(label.startswith("@") or label == SPLIT for label in draw.labels)
    ]


def _across_devices(found: Sequence[Draw], local_rows: Collection[int]) -> list[KeyFinding]:
    findings = []
    for draw in found:
        if not draw.axes or draw.backward:
            continue
        axis = draw.axes[0]
        if differs(draw.labels):
            findings.append(
                _finding(
                    "depends_on_devices",
                    [draw],
                    what="each device draws from a key of its own, so the numbers change with the number of devices",
                    fix="draw for the whole batch and let each device take its rows, or accept that runs on other "
                    "numbers of devices differ",
                )
            )
        elif draw.shape and draw.shape[0] in local_rows:
            findings.append(
                _finding(
                    "same_on_devices",
                    [draw],
                    what=f"every device draws the same {draw.shape[0]} rows of random numbers",
                    fix=f"fold the device in: jax.random.fold_in(key, jax.lax.axis_index({axis!r}))",
                )
            )
    return findings


def _finding(kind: KeyFault, group: Sequence[Draw], *, what: str, fix: str) -> KeyFinding:
    where = tuple(dict.fromkeys(draw.where for draw in group if draw.where is not None))
    return KeyFinding(kind, where, tuple(draw.shape for draw in group), what, fix)
