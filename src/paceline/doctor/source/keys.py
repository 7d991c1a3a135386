"""Random keys in the user's source: used twice, split for another number of devices, the same on every device.

Owns: what can be seen of keys by name.
Not here: keys in a loss that traces (`check.keys`).
Invariant: a key counts as used twice only if both draws happen on one way through a function.

A key that two draws share makes them functions of each other: x and its noise drawn from one key fit a slope of 3.1
where 3 is true and the noise has a level of 0.1.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from paceline.doctor.finding import Finding
from paceline.doctor.source.flow import own_nodes
from paceline.doctor.source.loops import COPIES, REPLICATES
from paceline.doctor.source.mapped import Mapped, mapped_functions
from paceline.doctor.source.project import Function, Project, SourceFile, bound_names, keyword, parameters

_MAKES = frozenset({"jax.random.key", "jax.random.PRNGKey", "jax.random.split", "jax.random.fold_in"})
_NO_DRAW = frozenset(
    f"jax.random.{name}"
    for name in ("key", "PRNGKey", "fold_in", "key_data", "wrap_key_data", "key_impl", "key_dtype", "clone", "Key")
)
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)

Uses = dict[str, ast.Call]
"""Key, as the source writes it, to the draw that used it."""


def key_findings(project: Project, *, devices: int | None) -> list[Finding]:
    """Keys that are used twice in a function, closed over by a mapped function, or split for other devices.

    Args:
      devices: K of the run; None leaves the number of keys unchecked.
    """
    found = [finding for file in project.files.values() for finding in _reused(file)]
    for mapped in mapped_functions(project):
        found += _shared(project, mapped)
        found += [] if devices is None else _wrong_count(mapped, devices)
    return list(dict.fromkeys(found))


def drawn_key(file: SourceFile, call: ast.Call) -> ast.expr | None:
    """The key that a call uses up, if it is a draw or a split."""
    name = file.dotted(call.func)
    if name is None or not name.startswith("jax.random.") or name in _NO_DRAW:
        return None
    return call.args[0] if call.args else keyword(call, "key")


def _reused(file: SourceFile) -> Iterator[Finding]:
    """One finding for each key and function, at the first draw that should have had a key of its own."""
    for body in [file.tree.body, *(function.body for function in file.definitions)]:
        walk = _Walk(file)
        walk.block(body, {})
        groups: dict[str, list[tuple[ast.Call, ast.Call]]] = {}
        for pair in walk.pairs:
            groups.setdefault(ast.unparse(drawn_key(file, pair[1]) or pair[1]), []).append(pair)
        for key, pairs in groups.items():
            first, second = pairs[0]
            again = sorted({late.lineno for _, late in pairs} - {second.lineno})
            yield _reuse_finding(file, key, first, second, again)


def _reuse_finding(file: SourceFile, key: str, first: ast.Call, second: ast.Call, again: list[int]) -> Finding:
    before = f"used in line {first.lineno} already" if first is not second else "used anew in every pass of the loop"
    more = f" (and again in line {', '.join(map(str, again))})" if again else ""
    what = f"the key {key} is {before}{more}: equal keys give equal numbers, so the draws are not independent"
    fix = f"give each draw its own: {key}, subkey = jax.random.split({key})"
    if first is second:
        fix += ", or jax.random.fold_in with the number of the pass"
    return Finding("source", "warning", what, fix, file.path, second.lineno)


class _Walk:
    """Goes through the statements of a function in the order in which they run, and collects pairs of draws."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self.pairs: list[tuple[ast.Call, ast.Call]] = []

    def block(self, statements: Sequence[ast.stmt], uses: Uses) -> Uses | None:
        """The uses after the statements; None if they do not end here."""
        for statement in statements:
            after = self._statement(statement, uses)
            if after is None:
                return None
            uses = after
        return uses

    def _statement(self, node: ast.stmt, uses: Uses) -> Uses | None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return uses
        if isinstance(node, ast.If):
            return self._branches([node.body, node.orelse], self._expression(node.test, uses))
        if isinstance(node, ast.Match):
            return self._branches([*(case.body for case in node.cases), []], self._expression(node.subject, uses))
        if isinstance(node, ast.For | ast.AsyncFor):
            return self._loop(node.body, self._expression(node.iter, uses), targets=list(bound_names(node.target)))
        if isinstance(node, ast.While):
            return self._loop(node.body, self._expression(node.test, uses), targets=[])
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                uses = self._expression(item.context_expr, uses)
            return self.block(node.body, uses)
        if isinstance(node, ast.Try):
            return self._branches([[*node.body, *node.orelse, *node.finalbody], []], uses)
        uses = self._expression(node, uses)
        uses = _without(uses, list(bound_names(node)))
        return None if isinstance(node, _ENDS) else uses

    def _branches(self, bodies: list[list[ast.stmt]], uses: Uses) -> Uses | None:
        ends = [after for body in bodies if (after := self.block(body, uses)) is not None]
        return {key: call for after in ends for key, call in after.items()} if ends else None

    def _loop(self, body: list[ast.stmt], uses: Uses, *, targets: list[str]) -> Uses:
        """Twice through the body: what the second pass finds used is used anew in every pass."""
        for _ in range(2):
            uses = self.block(body, _without(uses, targets)) or uses
        return uses

    def _expression(self, node: ast.AST, uses: Uses) -> Uses:
        uses = dict(uses)
        for child in _in_order(node):
            key = drawn_key(self._file, child) if isinstance(child, ast.Call) else None
            if key is None or not isinstance(key, ast.Name | ast.Attribute | ast.Subscript):
                continue
            assert isinstance(child, ast.Call), "only a call draws"
            text = ast.unparse(key)
            pair = (uses.get(text, child), child)
            if text in uses and pair not in self.pairs:
                self.pairs.append(pair)
            uses[text] = child
        return uses


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what it holds, without the bodies of functions, comprehensions and branches of an expression."""
    yield node
    if isinstance(node, ast.Lambda | ast.IfExp | ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.SetComp):
        return
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def _without(uses: Uses, names: list[str]) -> Uses:
    """Assigning to a name makes every key anew that is written with it."""
    return {key: call for key, call in uses.items() if names == [] or not _mentions(key, names)}


def _mentions(key: str, names: list[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(ast.parse(key, mode="eval")))


def _shared(project: Project, mapped: Mapped) -> Iterator[Finding]:
    """The first draw of a mapped function whose key all devices share: closed over, or passed to all alike."""
    if "jax.lax.axis_index" in project.names(mapped.file, mapped.function):
        return
    shared = mapped.shared() | _replicated(mapped)
    inside: list[tuple[SourceFile, Function]] = [(mapped.file, mapped.function)]
    inside += project.reached(mapped.file, mapped.function)
    for file, function in inside:
        for node in own_nodes(function):
            key = drawn_key(file, node) if isinstance(node, ast.Call) else None
            if not isinstance(key, ast.Name):
                continue
            scope = file.binding_scope(key)
            if scope is mapped.function and key.id in shared:
                yield _shared_finding(mapped, file, key, how="that is passed alike to every device")
                return
            if scope not in {code for _, code in inside} and _holds_key(file, key.id, scope):
                yield _shared_finding(mapped, file, key, how="that is made outside of it")
                return


def _replicated(mapped: Mapped) -> frozenset[str]:
    """Parameters of a pmapped function that are given copies of one value: ``p_step(x, jax_utils.replicate(key))``."""
    if mapped.kind != "pmap":
        return frozenset()
    file, names = mapped.site_file, parameters(mapped.function)
    return frozenset(
        name
        for call in _calls_of(mapped)
        for name, argument in zip(names, call.args, strict=False)
        if _is_copy(file, file.value(argument))
    )


def _is_copy(file: SourceFile, value: ast.expr | None) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = file.dotted(value.func)
    stacks = name in COPIES and bool(value.args) and (
        name.rpartition(".")[2] != "stack" or isinstance(value.args[0], ast.BinOp)  # jnp.stack([key] * K)
    )  # fmt: skip
    return name in REPLICATES or stacks


def _calls_of(mapped: Mapped) -> Iterator[ast.Call]:
    """Calls of the mapped form, by its name or right where it is made."""
    for call in mapped.site_file.calls():
        named = isinstance(call.func, ast.Name) and call.func.id in mapped.names
        if named or call.func is mapped.site:
            yield call


def _shared_finding(mapped: Mapped, file: SourceFile, key: ast.Name, *, how: str) -> Finding:
    axis = '"data"' if mapped.axis is None else ast.unparse(mapped.axis)
    what = f"{mapped.name} draws from the key {key.id} {how}, so every device draws the same numbers: one mask K times"
    fix = f"fold the device in: jax.random.fold_in({key.id}, jax.lax.axis_index({axis}))"
    return Finding("source", "warning", what, fix, file.path, key.lineno)


def _holds_key(file: SourceFile, name: str, scope: ast.AST | None) -> bool:
    """Whether a scope gives the name a key that it makes."""
    nodes = [] if scope is None else [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
    return any(
        _makes_key(file, node.value) and name in bound_names(target) for node in nodes for target in node.targets
    )


def _makes_key(file: SourceFile, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and file.dotted(node.func) in _MAKES


def _wrong_count(mapped: Mapped, devices: int) -> Iterator[Finding]:
    """``p_step(state, jax.random.split(key, N))``, N written out and not K. A shard_map may take several a device."""
    file = mapped.site_file
    if mapped.kind != "pmap":
        return
    for call in _calls_of(mapped):
        called = call.func.id if isinstance(call.func, ast.Name) else mapped.name
        for argument in call.args:
            split = file.value(argument)
            count = _split_count(file, split)
            if count is not None and count != devices:
                what = f"the key is split into {count} for {called}, which is mapped over the devices, but the run has "
                what += f"{devices} devices"
                fix = f"split it into one a device: jax.random.split(key, {devices}), or jax.device_count()"
                yield Finding("source", "warning", what, fix, file.path, getattr(split, "lineno", call.lineno))


def _split_count(file: SourceFile, node: ast.expr | None) -> int | None:
    if not isinstance(node, ast.Call) or file.dotted(node.func) != "jax.random.split":
        return None
    count = file.literal(node.args[1] if len(node.args) > 1 else keyword(node, "num"))
    return count if isinstance(count, int) else None
