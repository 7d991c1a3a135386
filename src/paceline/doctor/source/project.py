"""Names in the user's source: what an expression refers to, which functions it reaches.

Owns: import aliases, functions by name, values that a name is bound to once, code that is guarded by a version test.
Invariant: a name that cannot be resolved is None; no check guesses from spelling alone.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

COLLECTIVES = frozenset(
    f"jax.lax.{name}" for name in ("psum", "pmean", "psum_scatter", "all_gather", "all_to_all", "ppermute", "pshuffle")
)
"""What can carry a value to another device. `pmax` and `pmin` are none that a gradient is reduced with."""

_PARTIAL = "functools.partial"


class SourceFile:
    """One parsed file.

    Args:
      path: as the user gave it, for findings.
      tree: its syntax tree.
    """

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.definitions = [node for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)]
        self._imports = dict(_import_aliases(tree))
        self._bound = self._bindings()
        self._dotted: dict[ast.AST, str | None] = {}

    def scopes(self, node: ast.AST) -> Iterator[ast.AST]:
        """The functions around a node, innermost first, then the module. A class is no scope for what it holds."""
        above = self.parents.get(node)
        while above is not None:
            if isinstance(above, _SCOPES):
                yield above
            above = self.parents.get(above)

    def _bindings(self) -> dict[ast.AST, dict[str, list[ast.AST | None]]]:
        """For each scope what its names are bound to; None for a value that is not written out."""
        found: dict[ast.AST, dict[str, list[ast.AST | None]]] = {}

        def add(scope: ast.AST, name: str, value: ast.AST | None) -> None:
            found.setdefault(scope, {}).setdefault(name, []).append(value)

        values = dict(_assigned(self.tree))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                add(next(self.scopes(node)), node.id, values.get(node))
            elif isinstance(node, ast.arg):
                add(next(self.scopes(node)), node.arg, None)
            elif isinstance(node, _DEFINITIONS) and not isinstance(self.parents[node], ast.ClassDef):
                add(next(self.scopes(node)), node.name, node)
        return found

    def bound(self, node: ast.Name) -> tuple[bool, ast.AST | None]:
        """Whether a scope around binds the name, and to what; None for several things or an unknown one."""
        scope = self.binding_scope(node)
        if scope is None:
            return False, None
        values = self._bound[scope][node.id]
        return True, values[0] if len(values) == 1 else None

    def binding_scope(self, node: ast.Name) -> ast.AST | None:
        """The innermost function around a name that binds it, or the module; None for imports and builtins."""
        return next((scope for scope in self.scopes(node) if node.id in self._bound.get(scope, {})), None)

    def dotted(self, node: ast.AST | None) -> str | None:
        """``jax.random.normal`` for however the file spells it; None for what is no imported name."""
        if node is None or not isinstance(node, ast.Name | ast.Attribute):
            return None
        if node not in self._dotted:
            self._dotted[node] = None  # a name that is assigned to itself
            self._dotted[node] = self._resolve(node)
        return self._dotted[node]

    def _resolve(self, node: ast.Name | ast.Attribute) -> str | None:
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return None if base is None else f"{base}.{node.attr}"
        found, value = self.bound(node)
        if found and isinstance(value, ast.Name | ast.Attribute):  # pmap = jax.pmap
            return self.dotted(value)
        local = found and node.id not in self._bound.get(self.tree, {})
        return None if local or isinstance(value, _DEFINITIONS) else self._imports.get(node.id)

    def function(self, node: ast.AST) -> Function | None:
        """The function of this file that an expression names, itself if it is a lambda."""
        if isinstance(node, ast.Lambda):
            return node
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            value = self.bound(node)[1]
            return value if isinstance(value, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef) else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            methods = [
                found for found in self.definitions if found.name == node.attr and self._shares_class(found, node)
            ]
            return methods[0] if methods else None
        return None

    def _shares_class(self, method: ast.AST, node: ast.AST) -> bool:
        owner, above = self.parents[method], self.parents.get(node)
        while above is not None and above is not owner:
            above = self.parents.get(above)
        return isinstance(owner, ast.ClassDef) and above is owner

    def exported(self, name: str) -> Function | None:
        """The function of that name at the top of the module."""
        values = self._bound.get(self.tree, {}).get(name, [])
        value = values[0] if len(values) == 1 else None
        return value if isinstance(value, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef) else None

    def value(self, node: ast.expr | None) -> ast.expr | None:
        """The expression itself, or what the name is bound to if that is one expression."""
        bound = self.bound(node)[1] if isinstance(node, ast.Name) else None
        return bound if isinstance(bound, ast.expr) else node

    def literal(self, node: ast.expr | None) -> object:
        """The constant that an expression is, perhaps through a name; None if it is none."""
        value = self.value(node)
        try:
            return None if value is None else ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None

    def calls(self) -> Iterator[ast.Call]:
        """Every call in the file."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def called(self, call: ast.Call) -> tuple[str | None, list[ast.expr]]:
        """What a call calls, and its positional arguments, seen through `functools.partial`."""
        name = self.dotted(call.func)
        if name == _PARTIAL and call.args:
            return self.dotted(call.args[0]), call.args[1:]
        return name, list(call.args)

    @functools.cached_property
    def guarded(self) -> frozenset[ast.AST]:
        """Nodes inside a ``try`` that expects a missing name, or an ``if`` that asks for one or for a version.

        Such code runs on several versions of JAX by design; what it spells for the others is no mistake.
        """
        blocks = [node for node in ast.walk(self.tree) if _is_guard(node)]
        return frozenset(child for block in blocks for child in ast.walk(block))

    @functools.cached_property
    def never_evaluated(self) -> frozenset[ast.AST]:
        """Nodes of annotations, in a file where Python leaves those as text."""
        late = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in self.tree.body)
        found = [getattr(node, field, None) for node in ast.walk(self.tree) for field in ("annotation", "returns")]
        notes = [note for note in found if isinstance(note, ast.AST)] if late else []
        return frozenset(child for note in notes for child in ast.walk(note))


@dataclass(frozen=True)
class Project:
    """The user's files by module name, the first one given first."""

    files: dict[str, SourceFile]
    _reached: dict[ast.AST, tuple[tuple[SourceFile, Function], ...]] = field(default_factory=dict)

    def function(self, file: SourceFile, node: ast.AST) -> tuple[SourceFile, Function] | None:
        """The function of the project that an expression names, with its file; itself if it is a lambda."""
        own = file.function(node)
        if own is not None:
            return file, own
        module, _, name = (file.dotted(node) or "").rpartition(".")
        other = self.files.get(module)
        function = None if other is None else other.exported(name)
        return None if other is None or function is None else (other, function)

    def reached(self, file: SourceFile, node: ast.AST) -> tuple[tuple[SourceFile, Function], ...]:
        """Every function of the project that code names, directly or through another, with its file."""
        if node not in self._reached:
            found: dict[ast.AST, tuple[SourceFile, Function]] = {}
            stack: list[tuple[SourceFile, ast.AST]] = [(file, node)]
            seen = {node}
            while stack:
                where, code = stack.pop()
                for child in ast.walk(code):
                    target = self.function(where, child)
                    if target is not None and target[1] not in found and target[1] is not node:
                        found[target[1]] = target
                    # A name may stand for more than a function: step = jax.jit(train_step).
                    after = target or (where, where.value(child) if isinstance(child, ast.Name) else child)
                    if after[1] is not None and after[1] is not child and after[1] not in seen:
                        seen.add(after[1])
                        stack.append((after[0], after[1]))
            self._reached[node] = tuple(found.values())
        return self._reached[node]

    def names(self, file: SourceFile, node: ast.AST) -> frozenset[str]:
        """Imported names that code spells out, in itself and in all that it reaches."""
        places: list[tuple[SourceFile, ast.AST]] = [(file, node), *self.reached(file, node)]
        return frozenset(
            name for where, code in places for child in ast.walk(code) if (name := where.dotted(child)) is not None
        )

    def communicates(self, file: SourceFile, node: ast.AST) -> bool:
        """Whether code reaches a collective that carries values between devices."""
        return not COLLECTIVES.isdisjoint(self.names(file, node))


def parameters(function: Function) -> list[str]:
    """Names of the positional parameters, in order, without a method's ``self``."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] == ["self"] else names


def bound_names(target: ast.AST) -> Iterator[str]:
    """Names that an assignment target, a loop target or a function's parameters bind."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def root_names(node: ast.AST) -> set[str]:
    """Names that an expression reads: ``state`` of ``state.params``."""
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((found.value for found in call.keywords if found.arg == name), None)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_DEFINITIONS, ast.Lambda, ast.Module)


def _import_aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """``(name in the file, dotted name)``. Of a name imported in two ways the first counts: see `guarded`."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                found.setdefault(name, alias.name if alias.asname else name)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, f"{module}.{alias.name}" if module else alias.name)
    return iter(found.items())


def _assigned(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.expr]]:
    """``(target, value)`` of every assignment of one value to one name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield node.target, node.value


def _is_guard(node: ast.AST) -> bool:
    if isinstance(node, ast.Try):
        caught = {name for handler in node.handlers for name in _caught(handler)}
        return not caught.isdisjoint({"ImportError", "ModuleNotFoundError", "AttributeError", "TypeError"})
    if isinstance(node, ast.If | ast.IfExp):
        test = ast.unparse(node.test)
        return "hasattr(" in test or "version" in test.lower()
    return False


def _caught(handler: ast.ExceptHandler) -> list[str]:
    return [] if handler.type is None else [n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)]
