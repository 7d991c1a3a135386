"""Where the gradients go that a function of the user's source takes: by name, through the functions of the project.

Owns: which expressions hold a gradient, and which calls use one.
Not here: what is right or wrong about it (`gradients`).
Invariant: more is taken for a gradient than is one, never less, so that a reduction is not overlooked. The exception is
the value of `value_and_grad`, which is none: that the loss is averaged says nothing of the gradients.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from paceline.doctor.source.project import COLLECTIVES, Function, Project, SourceFile, bound_names, keyword

_VALUE_AND_GRADS = frozenset({"jax.value_and_grad", "flax.nnx.value_and_grad", "equinox.filter_value_and_grad"})
_GRADS = frozenset({"jax.grad", "jax.jacrev", "flax.nnx.grad", "equinox.filter_grad"}) | _VALUE_AND_GRADS
_LIBRARIES = ("jax.", "optax.", "flax.", "numpy.", "equinox.", "functools.", "chex.")
_BUILTINS = frozenset({"print", "dict", "tuple", "list", "float", "len", "isinstance", "zip", "sum", "type", "str"})
_UPDATES = frozenset({"update", "apply_gradients", "apply_updates"})

_WHOLE = frozenset({-1})
"""In place of the indices of a tuple: all of a value may hold a gradient."""


class GradientFlow:
    """What happens to the gradients in a function and in all that it reaches.

    Attributes:
      lines: where it differentiates; empty if it does not.
      reducers: collectives that a gradient goes into.
      loss_communicates: whether a differentiated function holds a collective.
      updates: whether something is updated with a gradient.
      leaves_the_project: whether a gradient goes into a function that cannot be read.
    """

    def __init__(self, project: Project, file: SourceFile, function: Function) -> None:
        self._project = project
        self._known: dict[Function, frozenset[ast.AST]] = {}
        self.lines: list[int] = []
        self.reducers: frozenset[str] = frozenset()
        self.loss_communicates = self.updates = self.leaves_the_project = False
        for where, reached in [(file, function), *project.reached(file, function)]:
            self._read(where, reached)

    def _read(self, file: SourceFile, function: Function) -> None:
        holders = self._holders(file, function)
        for call in _calls(function):
            differentiated = self._differentiated(file, call)
            if differentiated is not None:
                self.lines.append(call.lineno)
                self.loss_communicates |= self._project.communicates(file, differentiated[1])
            arguments = [*call.args, *(found.value for found in call.keywords)]
            if any(self._is_transform(file, argument) for argument in arguments):  # accumulate(jax.grad(loss), ...)
                self.lines.append(call.lineno)
                self.leaves_the_project |= self._is_unreadable(file, call.func)
            if any(child in holders for argument in arguments for child in ast.walk(argument)):
                self._use(file, call, arguments)

    def _use(self, file: SourceFile, call: ast.Call, arguments: list[ast.expr]) -> None:
        name = file.dotted(call.func)
        readable = name is not None or self._project.function(file, call.func) is not None
        if readable:
            self.reducers |= COLLECTIVES.intersection(*[self._functions_named(file, [call.func, *arguments])])
        self.updates |= getattr(call.func, "attr", "") in _UPDATES or (name or "").startswith("optax.")
        self.leaves_the_project |= self._is_unreadable(file, call.func)

    def _functions_named(self, file: SourceFile, parts: list[ast.expr]) -> frozenset[str]:
        """Imported names in the parts, and in functions that the parts name or hold."""
        names: set[str] = set()
        for child in (child for part in parts for child in ast.walk(part)):
            target = self._project.function(file, child)
            names |= self._project.names(*target) if target is not None else {file.dotted(child) or ""}
        return frozenset(names)

    def _is_unreadable(self, file: SourceFile, called: ast.expr) -> bool:
        """A function of a package that is none of the usual ones, or a name whose value is not in the source.

        Methods (`optimizer.update`, `state.apply_gradients`) count as readable: they do not communicate as a rule.
        """
        if self._project.function(file, called) is not None:
            return False
        name = file.dotted(called)
        if name is not None:
            return not name.startswith(_LIBRARIES)
        return isinstance(called, ast.Name) and called.id not in _BUILTINS

    def _holders(self, file: SourceFile, function: Function) -> frozenset[ast.AST]:
        """Expressions of a function that hold a gradient: calls that make one, and names assigned from one."""
        if function in self._known:
            return self._known[function]
        self._known[function] = frozenset()  # a function that calls itself adds nothing to what it does
        makers = {call: made for call in _calls(function) if (made := self._made(file, call))}
        nodes = own_nodes(function)
        assignments = [node for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)]
        names: set[str] = set()
        before = -1
        while before < len(names):
            before = len(names)
            for node in assignments:
                names |= _names_given(node, makers, names)
        uses = {node for node in nodes if isinstance(node, ast.Name) and node.id in names}
        self._known[function] = frozenset(uses | makers.keys())
        return self._known[function]

    def _made(self, file: SourceFile, call: ast.Call) -> frozenset[int]:
        """Which elements of a call's result hold a gradient that was taken in it; empty for none."""
        differentiated = self._differentiated(file, call)
        if differentiated is not None:
            name, _, has_aux = differentiated
            return frozenset({1}) if name in _VALUE_AND_GRADS else frozenset({0}) if has_aux else _WHOLE
        target = self._project.function(file, call.func)
        if target is not None:
            return self._returned(*target)
        arguments = [self._project.function(file, argument) for argument in call.args]
        inside = any(self._takes_gradient(*found) for found in arguments if found is not None)  # lax.scan(body, ...)
        inside = inside or any(self._is_transform(file, argument) for argument in call.args)
        return _WHOLE if inside else frozenset()

    def _is_transform(self, file: SourceFile, node: ast.expr) -> bool:
        """Whether an expression is a function that takes a gradient, not yet called."""
        value = file.value(node)
        return isinstance(value, ast.Call) and file.called(value)[0] in _GRADS

    def _takes_gradient(self, file: SourceFile, function: Function) -> bool:
        places = [(file, function), *self._project.reached(file, function)]
        return any(self._differentiated(where, call) is not None for where, code in places for call in _calls(code))

    def _returned(self, file: SourceFile, function: Function) -> frozenset[int]:
        holders = self._holders(file, function)
        found: set[int] = set()
        for value in _returned_values(function):
            if isinstance(value, ast.Call) and value in holders:
                found |= self._made(file, value)
            elif isinstance(value, ast.Tuple):
                found |= {number for number, element in enumerate(value.elts) if _holds(element, holders)}
            elif _holds(value, holders):
                found |= _WHOLE
        return frozenset(found)

    def _differentiated(self, file: SourceFile, call: ast.Call) -> tuple[str, ast.expr, bool] | None:
        """By which transform a call differentiates which function, and whether with has_aux; None if it does not."""
        transform = file.value(call.func)
        if isinstance(transform, ast.Call):
            name, positional = file.called(transform)
            if name in _GRADS and positional:
                return name, positional[0], keyword(transform, "has_aux") is not None
            return None
        target = self._project.function(file, call.func)
        for decorator in getattr(target[1], "decorator_list", []) if target else []:
            of_call = isinstance(decorator, ast.Call)
            name = file.called(decorator)[0] if of_call else file.dotted(decorator)
            if name in _GRADS:
                return name, call.func, of_call and keyword(decorator, "has_aux") is not None
        return None


def _names_given(
    node: ast.Assign | ast.AnnAssign | ast.AugAssign, makers: dict[ast.Call, frozenset[int]], names: set[str]
) -> set[str]:
    """Names that an assignment gives a gradient to; ``loss, gradients = value_and_grad(...)`` only the second."""
    value = node.value
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    given: set[str] = set()
    for target in targets:
        elements = target.elts if isinstance(target, ast.Tuple) else []
        if isinstance(value, ast.Call) and value in makers and elements and makers[value] != _WHOLE:
            given |= {name for at in makers[value] if at < len(elements) for name in bound_names(elements[at])}
        elif isinstance(value, ast.Tuple) and len(value.elts) == len(elements):
            for part, element in zip(value.elts, elements, strict=True):
                given |= set(bound_names(element)) if _mentions(part, makers, names) else set()
        elif value is not None and _mentions(value, makers, names):
            given |= set(bound_names(target))
    return given


def _mentions(node: ast.AST, makers: dict[ast.Call, frozenset[int]], names: set[str]) -> bool:
    return any(
        child in makers or (isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load) and child.id in names)
        for child in ast.walk(node)
    )


def _holds(node: ast.AST, holders: frozenset[ast.AST]) -> bool:
    return any(child in holders for child in ast.walk(node))


def _returned_values(function: Function) -> Iterator[ast.expr]:
    if isinstance(function, ast.Lambda):
        yield function.body
        return
    yield from (n.value for n in own_nodes(function) if isinstance(n, ast.Return) and n.value is not None)


def _calls(function: Function) -> list[ast.Call]:
    return [node for node in own_nodes(function) if isinstance(node, ast.Call)]


@functools.lru_cache(maxsize=4096)
def own_nodes(function: Function) -> list[ast.AST]:
    """Nodes of a function without those of functions defined in it; lambdas belong to it."""
    stack: list[ast.AST] = list(function.body) if isinstance(function.body, list) else [function.body]
    found: list[ast.AST] = []
    while stack:
        node = stack.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stack.extend(ast.iter_child_nodes(node))
    return sorted(found, key=lambda node: getattr(node, "lineno", 0))
