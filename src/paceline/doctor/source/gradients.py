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
from paceline.doctor.source.flow import GradientFlow, returned_values
from paceline.doctor.source.mapped import Mapped, mapped_functions
from paceline.doctor.source.project import COLLECTIVES, Function, Project, SourceFile, keyword, parameters
from paceline.doctor.source.removed import PORTING_FIX

_OPTIMIZERS = frozenset(
    f"optax.{name}"
    for name in ("stateless", "stateless_with_tree_map", "GradientTransformation", "GradientTransformationExtraArgs")
)
_CASTS = frozenset({"jax.lax.pcast", "jax.lax.pvary"})
_DIVIDES = frozenset({"jax.numpy.divide", "jax.numpy.true_divide", "jax.numpy.reciprocal"})


def gradient_findings(project: Project) -> list[Finding]:
    """One finding for each mapped function whose gradients or axis names are wrong."""
    optimizer_reduces = _optimizer_reduces(project)
    found: list[Finding] = []
    for mapped in mapped_functions(project):
        found += _axis_findings(project, mapped)
        flow = GradientFlow(project, mapped.file, mapped.function)
        unknown = flow.leaves_the_project or optimizer_reduces or _of_inputs(mapped, flow)
        if flow.lines and not unknown:
            judged = _too_large(project, mapped, flow) if mapped.checked else _unreduced(project, mapped, flow)
            judged = judged or _summed(project, mapped, flow)
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


def _of_inputs(mapped: Mapped, flow: GradientFlow) -> bool:
    """Whether all gradients are with respect to the last of several parameters, a batch, and no optimizer takes them.

    Each device wants its own then: saliency, adversarial examples.
    """
    names = parameters(mapped.function)
    last = set(names[-1:]) - mapped.shared()
    return len(names) > 1 and flow.arguments == last and not flow.updates


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
    updates = flow.updates or flow.joins
    if not updates:
        what += " (right only if the caller averages them over the leading axis)"
    level = "error" if updates else "warning"
    return Finding("source", level, what, fix, mapped.file.path, flow.lines[0])


def _too_large(project: Project, mapped: Mapped, flow: GradientFlow) -> Finding | None:
    """Under check_vma=True: right with a cast before, or with a collective inside the differentiated function."""
    if flow.loss_communicates or not _CASTS.isdisjoint(project.names(mapped.file, mapped.function)):
        return None
    times = "K^2" if "jax.lax.psum" in flow.reducers and "jax.lax.pmean" not in flow.reducers else "K"
    replicated, mean = bool(mapped.shared()), _is_mean(project, flow)
    conditions = [] if mean else ["its loss is a mean over the rows of one device"]
    conditions += [] if replicated else ["its parameters are replicated (in_specs P())"]
    what = f"the gradients in {mapped.name} are {times} times those of the mean loss"
    what += f", if {' and '.join(conditions)}" if conditions else ""
    what += ": with check_vma=True the gradient of replicated parameters is summed over the devices already"
    if not mean:
        what += "; of a sum divided by the number of all rows it is right without a collective and with pmean, and K "
        what += "times too large with psum"
    level = "error" if replicated and mean and flow.reducers else "warning"
    return Finding("source", level, what, PORTING_FIX, mapped.file.path, flow.lines[0])


def _summed(project: Project, mapped: Mapped, flow: GradientFlow) -> Finding | None:
    """Where gradients stay local: psum of those of a mean, and no division that could make a mean of the sum."""
    if mapped.checked or flow.reducers != {"jax.lax.psum"} or not _is_mean(project, flow):
        return None
    if _divides(project, mapped, flow):
        return None
    what = (
        f"the gradients in {mapped.name} are K times those of the mean loss: each device takes them of the mean over "
    )
    what += "its own rows, and psum adds them up"
    fix = "take jax.lax.pmean of the gradients in place of jax.lax.psum, or divide the sum by the number of devices"
    return Finding("source", "warning", what, fix, mapped.file.path, flow.lines[0])


def _is_mean(project: Project, flow: GradientFlow) -> bool:
    """Whether every differentiated function is seen to return a mean."""
    return bool(flow.losses) and all(loss is not None and _returns_mean(project, *loss) for loss in flow.losses)


def _returns_mean(project: Project, file: SourceFile, function: Function, *, depth: int = 4) -> bool:
    values = [file.value(value) for value in returned_values(function)]
    heads = [file.value(value.elts[0]) if isinstance(value, ast.Tuple) and value.elts else value for value in values]

    def is_mean(value: ast.expr | None) -> bool:
        if not isinstance(value, ast.Call):
            return False
        target = project.function(file, value.func)
        if target is not None:
            return depth > 0 and _returns_mean(project, *target, depth=depth - 1)
        return isinstance(value.func, ast.Attribute) and value.func.attr == "mean"

    return bool(heads) and all(is_mean(value) for value in heads)


def _divides(project: Project, mapped: Mapped, flow: GradientFlow) -> bool:
    """Whether the mapped function divides by something, apart from the functions that it differentiates."""
    places: list[tuple[SourceFile, ast.AST]] = [(mapped.file, mapped.function)]
    places += project.reached(mapped.file, mapped.function)
    losses = {child for loss in flow.losses if loss for child in ast.walk(loss[1])}
    nodes = [(file, node) for file, code in places for node in ast.walk(code) if node not in losses]
    nodes += [
        (file, inner)
        for file, node in nodes
        if isinstance(node, ast.Name) and (value := file.value(node)) is not None and value is not node
        for inner in ast.walk(value)
    ]
    return any(
        (isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)) or file.dotted(node) in _DIVIDES
        for file, node in nodes
    )


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
