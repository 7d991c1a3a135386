"""Gradients in functions that run once a device: never reduced, or summed once too often; axes that do not exist.

Owns: the judgement of what `flow` has followed.
Not here: which leaves drift in a step that traces (`check.replication`), which is exact; this reads source alone.
Invariant: no finding where a gradient goes through code that is not there to read.

What JAX does, measured on 0.10 and 0.12 with K = 4 and a one-device gradient of -70: under pmap, and under shard_map
with check_vma=False, the local gradient stays local, also where the loss is a pmean; pmean of it is -70. Under
check_vma=True the gradient of a replicated parameter is -280 without and with pmean, -1120 with psum, and -70 with a
pmean inside the loss, or with `lax.pcast` of the parameters before and pmean after.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.doctor.finding import Finding
from paceline.doctor.source.flow import GradientFlow
from paceline.doctor.source.mapped import Mapped, mapped_functions
from paceline.doctor.source.project import COLLECTIVES, Function, Project, SourceFile, keyword
from paceline.doctor.source.removed import PORTING_FIX

_OPTIMIZERS = frozenset(
    f"optax.{name}"
    for name in ("stateless", "stateless_with_tree_map", "GradientTransformation", "GradientTransformationExtraArgs")
)
_CASTS = frozenset({"jax.lax.pcast", "jax.lax.pvary"})


def gradient_findings(project: Project) -> list[Finding]:
    """One finding for each mapped function whose gradients or axis names are wrong."""
    optimizer_reduces = _optimizer_reduces(project)
    found: list[Finding] = []
    for mapped in mapped_functions(project):
        found += _axis_findings(project, mapped)
        flow = GradientFlow(project, mapped.file, mapped.function)
        if flow.lines and not flow.leaves_the_project and not optimizer_reduces:
            judged = _too_large(project, mapped, flow) if mapped.checked else _unreduced(project, mapped, flow)
            found += [judged] if judged else []
    return list(dict.fromkeys(found))


def _optimizer_reduces(project: Project) -> bool:
    """Whether an optimizer is made in the project from a function that communicates."""
    return any(
        project.communicates(file, argument)
        for file in project.files.values()
        for call in file.calls()
        if file.dotted(call.func) in _OPTIMIZERS
        for argument in [*call.args, *(found.value for found in call.keywords)]
    )


def _unreduced(project: Project, mapped: Mapped, flow: GradientFlow) -> Finding | None:
    if flow.reducers:
        return None
    axis = '"data"' if mapped.axis is None else ast.unparse(mapped.axis)
    what = (
        f"the gradients in {mapped.name} are not reduced over the devices: each trains on its own rows and they drift"
    )
    fix = f"average them before the update: gradients = jax.lax.pmean(gradients, {axis})"
    if mapped.kind == "pmap" and mapped.axis is None:
        what += "; its pmap has no axis_name, so nothing in it can be reduced"
        fix += f", in jax.pmap(..., axis_name={axis})"
    elif project.communicates(mapped.file, mapped.function):
        what += "; its collectives reduce other values, such as the loss"
    if not flow.updates:
        what += " (right only if the caller averages them over the leading axis)"
    level = "error" if flow.updates else "warning"
    return Finding("source", level, what, fix, mapped.file.path, flow.lines[0])


def _too_large(project: Project, mapped: Mapped, flow: GradientFlow) -> Finding | None:
    """Under check_vma=True: right with a cast before, or with a collective inside the differentiated function."""
    if flow.loss_communicates or not _CASTS.isdisjoint(project.names(mapped.file, mapped.function)):
        return None
    times = "K^2" if "jax.lax.psum" in flow.reducers and "jax.lax.pmean" not in flow.reducers else "K"
    replicated = bool(mapped.shared())
    what = f"the gradients in {mapped.name} are {times} times those of the mean loss"
    what += "" if replicated else ", if its parameters are replicated (in_specs P())"
    what += ": with check_vma=True the gradient of replicated parameters is summed over the devices already"
    return Finding("source", "error" if replicated else "warning", what, PORTING_FIX, mapped.file.path, flow.lines[0])


def _axis_findings(project: Project, mapped: Mapped) -> Iterator[Finding]:
    """Collectives of a pmap that name another axis than it binds, unless something inside it binds axes too."""
    bound = mapped.site_file.literal(mapped.axis)
    if mapped.kind != "pmap" or (mapped.axis is not None and not isinstance(bound, str)):
        return
    places: list[tuple[SourceFile, Function]] = [(mapped.file, mapped.function)]
    places += project.reached(mapped.file, mapped.function)
    calls = [(file, node) for file, code in places for node in ast.walk(code) if isinstance(node, ast.Call)]
    if any(keyword(call, "axis_name") and file.dotted(call.func) not in COLLECTIVES for file, call in calls):
        return
    for file, call in calls:
        axis = call.args[1] if len(call.args) > 1 else keyword(call, "axis_name")
        named = file.literal(axis) if file.dotted(call.func) in COLLECTIVES else None
        if isinstance(named, str) and named != bound:
            has = f"axis_name={bound!r}" if mapped.axis is not None else "no axis_name"
            what = f"{ast.unparse(call.func)} names the axis {named!r}, but the pmap of {mapped.name} has {has}"
            fix = f"use one name in both: jax.pmap({mapped.name}, axis_name={named!r})"
            yield Finding("source", "error", what, fix, file.path, call.lineno)
            return
