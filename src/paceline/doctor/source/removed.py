"""Finds JAX names and arguments that are gone or have changed, each with its line and what to write instead.

Owns: names of the table (`names`), arguments of `shard_map`, `.vma`, the old pmap escape, meshes that are Explicit now.
Not here: whether the program is right (`gradients`, `keys`, `loops`).
Invariant: code that asks for the version, or expects a name to be missing, is left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.doctor.finding import Finding, Level
from paceline.doctor.source.mapped import SHARD_MAPS
from paceline.doctor.source.names import ARGUMENTS, Change, change_of
from paceline.doctor.source.project import SourceFile, keyword

PORTING = (
    "in jax.shard_map with check_vma=True (the default) the gradient of a local mean loss with respect to replicated "
    "parameters is summed over the devices already: pmean of it is K times the gradient, psum K^2 times"
)
PORTING_FIX = (
    'cast the parameters before the gradient, params = jax.lax.pcast(params, "data", to="varying"), and take one '
    "jax.lax.pmean of the gradients; or take jax.lax.pmean of the loss inside the differentiated function and no other"
)

_ESCAPE = "pmap_shmap_merge"


def removed_names(file: SourceFile) -> list[Finding]:
    """Every finding of this module for one file, in the order of its lines."""
    named, ports = _named(file)
    ported = [*_shard_map_arguments(file), *_escape(file)]
    found = [*named, *ported, *_arguments(file), *_vma(file), *_meshes(file)]
    lines = ports | {finding.line for finding in ported if finding.line}
    if lines:
        what = f"when you port this: {PORTING}"
        found.append(Finding("source", "warning", what, PORTING_FIX, file.path, min(lines)))
    return sorted(found, key=lambda finding: finding.line or 0)


def _named(file: SourceFile) -> tuple[list[Finding], set[int]]:
    """One finding for each entry of the table that the file spells, and the lines that will become a shard_map."""
    lines: dict[str, list[int]] = {}
    changes: dict[str, Change] = {}
    for name, line in _spelled(file):
        known = change_of(name)
        if known is not None:
            entry, changes[entry] = known[0], known[1]
            lines.setdefault(entry, []).append(line)
    ports = {min(lines[entry]) for entry, change in changes.items() if change.to_shard_map}
    return [_named_finding(file, entry, changes[entry], sorted(set(lines[entry]))) for entry in lines], ports


def _named_finding(file: SourceFile, entry: str, change: Change, lines: list[int]) -> Finding:
    level: Level = "error" if change.removed else "warning"
    state = "is gone from JAX" if change.removed else "is deprecated"
    more = f" (also in line {', '.join(map(str, lines[1:]))})" if lines[1:] else ""
    return Finding("source", level, f"{entry} {state}{more}", f"use {change.replacement}", file.path, lines[0])


def _spelled(file: SourceFile) -> Iterator[tuple[str, int]]:
    """Dotted names with their lines: imports, and the longest attribute chains that start at an import."""
    for node in ast.walk(file.tree):
        if node in file.guarded or node in file.never_evaluated:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((f"{node.module}.{alias.name}", alias.lineno) for alias in node.names)
        elif isinstance(node, ast.Attribute | ast.Name) and not isinstance(file.parents.get(node), ast.Attribute):
            name = file.dotted(node)
            if name is not None and isinstance(node.ctx, ast.Load) and _origin_is_import(file, node):
                yield name, node.lineno


def _origin_is_import(file: SourceFile, node: ast.expr) -> bool:
    """False for a name imported only under a guard, which may come from either of two places."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id not in _guarded_imports(file)


def _guarded_imports(file: SourceFile) -> set[str]:
    imports = (node for node in file.guarded if isinstance(node, ast.Import | ast.ImportFrom))
    return {alias.asname or alias.name.split(".")[0] for node in imports for alias in node.names}


def _arguments(file: SourceFile) -> Iterator[Finding]:
    """Keyword arguments of the table."""
    for call in file.calls():
        name = file.called(call)[0]
        gone = ARGUMENTS.get(name or "", {})
        for found in call.keywords if call not in file.guarded else []:
            if found.arg in gone:
                what = f"{name} no longer takes {found.arg}="
                yield Finding("source", "error", what, f"use {gone[found.arg]}", file.path, found.value.lineno)


def _shard_map_arguments(file: SourceFile) -> Iterator[Finding]:
    """Arguments that `jax.shard_map` no longer takes, or takes by keyword only."""
    for call in file.calls():
        name, positional = file.called(call)
        if name not in SHARD_MAPS or call in file.guarded or _compatible(file, call):
            continue
        new = name == "jax.shard_map"
        if (auto := keyword(call, "auto")) is not None:
            what = "shard_map no longer takes auto="
            yield Finding("source", "error", what, f"use {_axis_names(file, auto)} of jax.shard_map: the axes that "
                          "the function handles itself, the others are automatic", file.path, auto.lineno)  # fmt: skip
        if (check := keyword(call, "check_rep")) is not None:
            what = "jax.shard_map has no check_rep=" if new else "check_rep= is the old name of check_vma="
            fix = f"use check_vma={ast.unparse(check)} of jax.shard_map"
            yield Finding("source", "error" if new else "warning", what, fix, file.path, check.lineno)
        if new and len(positional) > 1:
            what = "jax.shard_map takes mesh, in_specs and out_specs by keyword only"
            fix = "use jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...)"
            yield Finding("source", "error", what, fix, file.path, call.lineno)


def _compatible(file: SourceFile, call: ast.Call) -> bool:
    """Whether the called name is imported under a guard."""
    return not all(_origin_is_import(file, node) for node in [call.func, *call.args[:1]] if file.dotted(node))


def _axis_names(file: SourceFile, auto: ast.expr) -> str:
    """``axis_names=`` for what ``auto=`` said, which named the other axes."""
    value = file.value(auto)
    text = ast.unparse(value if value is not None else auto)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and "axis_names" in ast.unparse(value.left):
        return f"axis_names={ast.unparse(value.right)}"
    return f"axis_names=set(mesh.axis_names) - {text}"


def _vma(file: SourceFile) -> Iterator[Finding]:
    """``jax.typeof(x).vma``, also through a name."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Attribute) and node.attr == "vma" and node not in file.guarded:
            value = file.value(node.value)
            if isinstance(value, ast.Call) and file.dotted(value.func) == "jax.typeof":
                fix = f"use {ast.unparse(node.value)}.manual_axis_type.varying, a frozenset of axis names"
                yield Finding("source", "error", "the type of an array has no .vma", fix, file.path, node.lineno)


def _escape(file: SourceFile) -> Iterator[Finding]:
    """The option that brought the old `jax.pmap` back."""
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node in file.guarded:
            continue
        if _ESCAPE not in node.value.lower() or isinstance(file.parents.get(node), ast.Expr):
            continue
        fails = node.value.startswith("jax_")  # an option of jax.config; the environment variable is ignored
        yield Finding(
            "source",
            "error" if fails else "warning",
            f"{node.value} is gone: jax.pmap is built on shard_map, and the old one cannot be brought back"
            + ("; jax.config.update raises" if fails else ""),
            "remove it, give every mapped argument a leading device axis of size K, or port to jax.shard_map",
            file.path,
            node.lineno,
        )


def _meshes(file: SourceFile) -> Iterator[Finding]:
    """`jax.make_mesh` without axis types."""
    for call in file.calls():
        if file.dotted(call.func) != "jax.make_mesh" or len(call.args) > 2 or call in file.guarded:
            continue
        if not {"axis_types", None}.isdisjoint(found.arg for found in call.keywords):
            continue
        axes = len(_elements(call.args[0])) if call.args else 0
        types = "AxisType.Auto," if axes < 2 else ", ".join(["AxisType.Auto"] * axes)
        what = "jax.make_mesh makes Explicit axes now, under which ordinary model code (reshape, gather) does not trace"
        fix = f"use axis_types=({types}), with from jax.sharding import AxisType"
        yield Finding("source", "warning", what, fix, file.path, call.lineno)


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
