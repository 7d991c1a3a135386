"""The line of a script that used a device too early.

Owns: a guess from the source of the calling file: its first statement before the call that calls into jax.
Invariant: it only reads; no line is named that does not call a function of jax.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from types import FrameType

# Calls into jax that use no device.
_HARMLESS = (
    "config",
    "tree",
    "tree_util",
    "jit",
    "grad",
    "vmap",
    "value_and_grad",
    "named_scope",
    "distributed",
    "ShapeDtypeStruct",
)


@dataclass(frozen=True)
class EarlyUse:
    """A line that uses a device: file, number from 1, its text."""

    file: str
    line: int
    code: str


def early_use(frame: FrameType | None) -> EarlyUse | None:
    """The first line above the running one, in the outermost file of the call, that calls into jax; None if none
    does."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("paceline."):
        frame = frame.f_back
    if frame is None:
        return None
    file, last = frame.f_code.co_filename, frame.f_lineno
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    names = _names_of_jax(tree)
    first = frame.f_code.co_firstlineno
    found = sorted(
        node.lineno
        for node in _executed(tree, inside=(first, last))
        if isinstance(node, ast.Call) and node.lineno < last and _calls_jax(node, names)
    )
    if not found:
        return None
    return EarlyUse(file, found[0], linecache.getline(file, found[0]).strip())


def _names_of_jax(tree: ast.AST) -> set[str]:
    """Names that the file binds to jax, a module of it, or something imported from it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names if a.name.split(".")[0] == "jax"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jax":
            names |= {a.asname or a.name for a in node.names if a.name not in _HARMLESS}
    return names


def _executed(tree: ast.AST, *, inside: tuple[int, int]) -> list[ast.AST]:
    """Nodes that ran by the time of the call: not the bodies of functions, except of the one that makes the call."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if is_function and not node.lineno <= inside[0] <= (node.end_lineno or 0):
            continue
        waiting.extend(ast.iter_child_nodes(node))
    return found


def _calls_jax(call: ast.Call, names: set[str]) -> bool:
    parts: list[str] = []
    target: ast.expr = call.func
    while isinstance(target, ast.Attribute):
        parts.append(target.attr)
        target = target.value
    return isinstance(target, ast.Name) and target.id in names and not set(parts) & set(_HARMLESS)
