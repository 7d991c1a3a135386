"""Where the gradients go that a function of the user's source takes: by name, through the functions of the project.

Owns: which expressions hold a gradient, and which calls use one.
Not here: what is right or wrong about it (`gradients`).
Invariant: more is taken for a gradient than is one, never less, so that a reduction is not overlooked. The exception is
the value of `value_and_grad`, which is none: that the loss is averaged says nothing of the gradients.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator

from paceline.doctor.source.project import (
    COLLECTIVES,
    Function,
    Project,
    SourceFile,
    bound_names,
    keyword,
    parameters,
    root_names,
)

_VALUE_AND_GRADS = frozenset({"jax.value_and_grad", "flax.nnx.value_and_grad", "equinox.filter_value_and_grad"})
_GRADS = frozenset({"jax.grad", "jax.jacrev", "flax.nnx.grad", "equinox.filter_grad"}) | _VALUE_AND_GRADS
_LIBRARIES = ("jax.", "optax.", "flax.", "numpy.", "equinox.", "functools.", "chex.")
_BUILTINS = frozenset({"print", "dict", "tuple", "list", "float", "len", "isinstance", "zip", "sum", "type", "str"})
_UPDATES = frozenset({"update", "apply_gradients", "apply_updates"})
_NORMS = frozenset({"optax.global_norm", "optax.tree.norm", "optax.tree_utils.tree_l2_norm"})
_TREE_MAPS = frozenset({"jax.tree.map", "jax.tree_map", "jax.tree_util.tree_map"})
_JOINS = _TREE_MAPS | {"jax.numpy.add", "jax.numpy.subtract"}

_Since = dict[str, int]
"""Name to the first line from which on it holds a gradient."""

_WHOLE = frozenset({-1})
"""In place of the indices of a tuple: all of a value may hold a gradient."""


class GradientFlow:
    """What happens to the gradients in a function and in all that it reaches.

    Attributes:
      lines: where it differentiates; empty if it does not.
      losses: the differentiated functions; None for one that cannot be read.
      arguments: names that hold what it differentiates with respect to.
      reducers: collectives that a gradient goes into.
      loss_communicates: whether a differentiated function holds a collective.
      updates: whether an optimizer is given a gradient.
      joins: whether a sum or difference joins a gradient with what it was taken with respect to: SGD by hand.
      leaves_the_project: whether a gradient goes into a function that cannot be read.
    """

    def __init__(self, project: Project, file: SourceFile, function: Function) -> None:
        self._project = project
        self._known: dict[Function, frozenset[ast.AST]] = {}
        self._given: defaultdict[Function, set[str]] = defaultdict(set)  # parameters that are passed a gradient
        self._partners: defaultdict[Function, set[str]] = defaultdict(set)  # and those that are passed the weights
        self.lines: list[int] = []
        self.losses: list[tuple[SourceFile, Function] | None] = []
        self.arguments: set[str] = set()
        self.reducers: frozenset[str] = frozenset()
        self.loss_communicates = self.updates = self.joins = self.leaves_the_project = False
        places = [(file, function), *project.reached(file, function)]
        for where, reached in places:
            self._find(where, reached)
        before = -1
        while before < (before := sum(map(len, [*self._given.values(), *self._partners.values()]))):
            self._known.clear()
            for where, reached in places:
                self._read(where, reached)

    def _find(self, file: SourceFile, function: Function) -> None:
        """Where gradients are taken."""
        for call in _calls(function):
            differentiated = self._differentiated(file, call)
            if differentiated is not None:
                self.lines.append(call.lineno)
                self.losses.append(self._project.function(file, differentiated[1]))
                self.loss_communicates |= self._project.communicates(file, differentiated[1])
                self.arguments |= _with_respect_to(file, call)
            arguments = _arguments(call)
            if any(self._is_transform(file, argument) for argument in arguments):  # accumulate(jax.grad(loss), ...)
                self.lines.append(call.lineno)
                self.losses.append(None)
                self.leaves_the_project |= self._is_unreadable(file, call.func)

    def _read(self, file: SourceFile, function: Function) -> None:
        """Where they go."""
        holders = self._holders(file, function)
        makers = {node for node in holders if isinstance(node, ast.Call)}
        partners = self.arguments | self._partners[function]
        for made in makers:
            target = self._project.function(file, made.func)
            if target is not None and self._takes_gradient(*target):
                partners = partners | {name for argument in made.args for name in root_names(argument)}
        for node in own_nodes(function):
            if isinstance(node, ast.Call):
                arguments = _arguments(node)
                if any(_holds(argument, holders) for argument in arguments):
                    self._use(file, node, arguments)
                self._pass_on(file, node, holders, partners, makers)
            self.joins |= self._joins(file, node, holders, partners, makers)

    def _pass_on(
        self, file: SourceFile, call: ast.Call, holders: frozenset[ast.AST], partners: set[str], makers: set[ast.Call]
    ) -> None:
        """Notes which parameters of a function of the project hold a gradient, or the weights, through this call."""
        is_map = file.dotted(call.func) in _TREE_MAPS and bool(call.args)
        target = self._project.function(file, call.args[0] if is_map else call.func)
        if target is None:
            return
        names = parameters(target[1])
        passed = list(zip(names, call.args[1:] if is_map else call.args, strict=False))
        passed += [(found.arg, found.value) for found in call.keywords if found.arg in names]
        for name, argument in passed:
            if _holds(argument, holders):
                self._given[target[1]].add(name)
            elif _names_outside(argument, makers) & partners:
                self._partners[target[1]].add(name)

    def _joins(
        self, file: SourceFile, node: ast.AST, holders: frozenset[ast.AST], partners: set[str], makers: set[ast.Call]
    ) -> bool:
        """Whether a node adds a gradient to weights: ``p - lr * g``, ``p -= g``, ``tree.map(jnp.subtract, p, g)``."""
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.target, node.value]
        elif isinstance(node, ast.Call) and file.dotted(node.func) in _JOINS:
            is_map = file.dotted(node.func) in _TREE_MAPS
            parts = list(node.args[1:] if is_map else node.args)
            if is_map and node.args and self._project.function(file, node.args[0]) is not None:
                return False  # its body is read with what it is given
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
            parts = list(node.args)
        else:
            return False
        return any(
            _holds(part, holders)
            and any(_names_outside(other, makers) & partners for other in parts if other is not part)
            for part in parts
        )

    def _use(self, file: SourceFile, call: ast.Call, arguments: list[ast.expr]) -> None:
        name = file.dotted(call.func)
        readable = name is not None or self._project.function(file, call.func) is not None
        if readable:
            self.reducers |= COLLECTIVES.intersection(*[self._functions_named(file, [call.func, *arguments])])
        self.updates |= getattr(call.func, "attr", "") in _UPDATES or (
            (name or "").startswith("optax.") and name not in _NORMS
        )
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
        """Expressions of a function that hold a gradient: calls that make one, and names assigned from one.

        A name holds one from the line on where it is given one, or everywhere if the function has a loop:
        ``loss_fn(params)`` before ``params = params - rate * gradients`` holds none.
        """
        if function in self._known:
            return self._known[function]
        self._known[function] = frozenset()  # a function that calls itself adds nothing to what it does
        makers = {call: made for call in _calls(function) if (made := self._made(file, call))}
        nodes = own_nodes(function)
        assignments = [node for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)]
        loops = any(isinstance(node, ast.For | ast.AsyncFor | ast.While) for node in nodes)
        names: _Since = dict.fromkeys(self._given[function], 0)
        before = -1
        while before < len(names):
            before = len(names)
            for node in assignments:
                for name in _names_given(node, makers, names):
                    names[name] = min(names.get(name, node.lineno), 0 if loops else node.lineno)
        uses = {node for node in nodes if isinstance(node, ast.Name) and _is_given(node, names)}
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
        for value in returned_values(function):
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


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(found.value for found in call.keywords)]


def _with_respect_to(file: SourceFile, call: ast.Call) -> set[str]:
    """Names in the arguments that a call differentiates with respect to: the first, or those of argnums."""
    transform = file.value(call.func)
    chosen = file.literal(keyword(transform, "argnums")) if isinstance(transform, ast.Call) else None
    numbers = chosen if isinstance(chosen, tuple | list) else [chosen if isinstance(chosen, int) else 0]
    places = [call.args[at] for at in numbers if isinstance(at, int) and at < len(call.args)]
    return {name for place in places for name in root_names(place)}


def _names_outside(node: ast.AST, makers: set[ast.Call]) -> set[str]:
    """Names in an expression, without those inside of the calls that make a gradient."""
    if node in makers:
        return set()
    if isinstance(node, ast.Name):
        return {node.id}
    return {name for child in ast.iter_child_nodes(node) for name in _names_outside(child, makers)}


def _names_given(
    node: ast.Assign | ast.AnnAssign | ast.AugAssign, makers: dict[ast.Call, frozenset[int]], names: _Since
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


def _is_given(node: ast.Name, names: _Since) -> bool:
    return node.id in names and names[node.id] <= node.lineno


def _mentions(node: ast.AST, makers: dict[ast.Call, frozenset[int]], names: _Since) -> bool:
    return any(
        child in makers or (isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load) and _is_given(child, names))
        for child in ast.walk(node)
    )


def _holds(node: ast.AST, holders: frozenset[ast.AST]) -> bool:
    return any(child in holders for child in ast.walk(node))


def returned_values(function: Function) -> Iterator[ast.expr]:
    """What a function returns, one expression for each return."""
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
