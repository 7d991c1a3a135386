"""Loops that take replica 0 and replicate it again: the state of the other devices is thrown away in every pass.

Owns: that pattern, which hides drift: replicas that differ look equal after each pass.
Invariant: taking replica 0 for a checkpoint, an evaluation or a log is no finding; only feeding it back is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.doctor.finding import Finding
from paceline.doctor.source.project import Function, Project, SourceFile, bound_names

_TAKES = frozenset({"flax.jax_utils.unreplicate", "chex.get_first"})
REPLICATES = frozenset({"flax.jax_utils.replicate", "jax.device_put_replicated"})
_MAPS = frozenset({"jax.tree.map", "jax.tree_map", "jax.tree_util.tree_map"})
COPIES = frozenset({f"jax.numpy.{name}" for name in ("stack", "broadcast_to", "repeat", "tile")})
COPIES |= {f"numpy.{name}" for name in ("stack", "broadcast_to", "repeat", "tile")}


def loop_findings(project: Project) -> list[Finding]:
    """One finding for each loop that feeds replica 0 back to all devices."""
    return [finding for file in project.files.values() for finding in _in_file(project, file)]


def _in_file(project: Project, file: SourceFile) -> Iterator[Finding]:
    for loop in (node for node in ast.walk(file.tree) if isinstance(node, ast.For | ast.While | ast.AsyncFor)):
        call = _fed_back(project, file, loop)
        if call is not None:
            yield Finding(
                "source",
                "warning",
                "the loop takes replica 0 and replicates it again in every pass: what the other devices learned is "
                "thrown away, and replicas that drift apart look equal",
                "keep the replicated state over the loop and reduce the gradients inside the step; take replica 0 for "
                "checkpoints and evaluation only, without feeding it back",
                file.path,
                call.lineno,
            )


def _fed_back(project: Project, file: SourceFile, loop: ast.stmt) -> ast.Call | None:
    """The call in a loop that replicates what was taken from replica 0 in the same loop."""
    nodes = list(ast.walk(loop))
    taken = {node for node in nodes if isinstance(node, ast.Call) and _is_one(project, file, node, _takes_first)}
    names: set[str] = set()
    for _ in range(2):  # a second pass for what the first hands to the next
        for node in nodes:
            if isinstance(node, ast.Assign) and _mentions(node.value, taken, names):
                names |= {name for target in node.targets for name in bound_names(target)}
    for node in nodes:
        copies = isinstance(node, ast.Call) and _is_one(project, file, node, _replicates)
        if isinstance(node, ast.Call) and copies and any(_mentions(part, taken, names) for part in node.args):
            return node
    return None


def _mentions(node: ast.AST, taken: set[ast.Call], names: set[str]) -> bool:
    return any(child in taken or (isinstance(child, ast.Name) and child.id in names) for child in ast.walk(node))


def _is_one(project: Project, file: SourceFile, call: ast.Call, kind: object) -> bool:
    """Whether a call is of that kind, directly or as a function of the project that returns nothing else."""
    assert callable(kind), "one of the two functions below"
    if kind(file, call):
        return True
    target = project.function(file, call.func)
    return target is not None and any(
        isinstance(value, ast.Call) and kind(target[0], value) for value in _returned(target[1])
    )


def _returned(function: Function) -> list[ast.expr]:
    if isinstance(function, ast.Lambda):
        return [function.body]
    return [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]


def _takes_first(file: SourceFile, call: ast.Call) -> bool:
    """``unreplicate(x)`` or ``jax.tree.map(lambda leaf: leaf[0], x)``."""
    mapped = _mapped_lambda(file, call)
    if mapped is None:
        return file.dotted(call.func) in _TAKES
    body = mapped.body
    return isinstance(body, ast.Subscript) and isinstance(body.slice, ast.Constant) and body.slice.value == 0


def _replicates(file: SourceFile, call: ast.Call) -> bool:
    """``replicate(x)`` or ``jax.tree.map(lambda leaf: jnp.stack([leaf] * K), x)``."""
    mapped = _mapped_lambda(file, call)
    if mapped is None:
        return file.dotted(call.func) in REPLICATES
    calls = [node for node in ast.walk(mapped.body) if isinstance(node, ast.Call)]
    return any(file.dotted(found.func) in COPIES for found in calls)


def _mapped_lambda(file: SourceFile, call: ast.Call) -> ast.Lambda | None:
    if file.dotted(call.func) not in _MAPS or not call.args:
        return None
    function = file.value(call.args[0])
    return function if isinstance(function, ast.Lambda) else None
