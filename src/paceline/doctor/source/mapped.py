"""Functions that the user's source runs once a device: through pmap or shard_map, called, partial or as a decorator.

Owns: what is mapped, under which axis name, and which of its arguments every device shares.
Not here: what is wrong with it (`gradients`, `keys`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paceline.doctor.source.project import Function, Project, SourceFile, parameters

PMAPS = frozenset({"jax.pmap", "flax.nnx.pmap", "equinox.filter_pmap", "haiku.pmap"})
SHARD_MAPS = frozenset({"jax.shard_map", "jax.experimental.shard_map.shard_map"})
_SPECS = frozenset({"jax.P", "jax.sharding.PartitionSpec"})
_WRAPPERS = frozenset({"jax.jit", "jax.checkpoint", "jax.remat", "functools.partial", "jax.named_call", "flax.nnx.jit"})


@dataclass(frozen=True)
class Mapped:
    """A function that runs once a device.

    Args:
      kind: by which transform.
      file, function: where it is defined.
      site_file, site: the call or decorator that maps it.
      options: keyword arguments of the transform.
      axis: expression of the axis name of a pmap; None if it has none.
      names: names that the mapped form has in the file.
    """

    kind: Literal["pmap", "shard_map"]
    file: SourceFile
    function: Function
    site_file: SourceFile
    site: ast.expr
    options: dict[str, ast.expr]
    axis: ast.expr | None
    names: frozenset[str]

    @property
    def name(self) -> str:
        """How findings call it."""
        return getattr(self.function, "name", "the mapped lambda")

    @property
    def checked(self) -> bool:
        """Whether shard_map's replication types are on, so that gradients of replicated arguments are summed."""
        if self.kind == "pmap":
            return False
        option = self.options.get("check_vma", self.options.get("check_rep"))
        return not (isinstance(option, ast.Constant) and option.value is False)

    def shared(self) -> frozenset[str]:
        """Parameters of which every device sees the same value; only those of which that is written out."""
        names = parameters(self.function)
        specs = self.site_file.value(self.options.get("in_axes" if self.kind == "pmap" else "in_specs"))
        if not isinstance(specs, ast.Tuple | ast.List):
            return frozenset()
        return frozenset(name for name, spec in zip(names, specs.elts, strict=False) if self._is_shared(spec))

    def _is_shared(self, spec: ast.expr) -> bool:
        value = self.site_file.value(spec)
        if self.kind == "pmap":
            return isinstance(value, ast.Constant) and value.value is None
        return isinstance(value, ast.Call) and self.site_file.dotted(value.func) in _SPECS and not value.args


def mapped_functions(project: Project) -> Iterator[Mapped]:
    """Every function of the project that is found to run once a device."""
    for file in project.files.values():
        for call in file.calls():
            name, positional = file.called(call)
            if name in PMAPS | SHARD_MAPS and positional:
                target = _function(project, file, positional[0])
                if target is not None:
                    rest = positional[1:]
                    yield _mapped(name, target, site=(file, call), call=call, rest=rest, names=_names_of(file, call))
        for function in file.definitions:
            yield from _decorated(file, function)


def _decorated(file: SourceFile, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Mapped]:
    names = frozenset({function.name})
    for decorator in function.decorator_list:
        if file.dotted(decorator) in PMAPS | SHARD_MAPS:
            name = file.dotted(decorator) or ""
            yield _mapped(name, (file, function), site=(file, decorator), call=None, rest=[], names=names)
        elif isinstance(decorator, ast.Call):
            name, positional = file.called(decorator)
            if name in PMAPS | SHARD_MAPS:
                yield _mapped(
                    name, (file, function), site=(file, decorator), call=decorator, rest=positional, names=names
                )


def _mapped(
    name: str,
    target: tuple[SourceFile, Function],
    *,
    site: tuple[SourceFile, ast.expr],
    call: ast.Call | None,
    rest: list[ast.expr],
    names: frozenset[str],
) -> Mapped:
    options = {found.arg: found.value for found in (call.keywords if call else []) if found.arg is not None}
    if name in PMAPS:
        axis = options.get("axis_name", rest[0] if rest else None)
        return Mapped("pmap", *target, *site, options, axis, names)
    options = dict(zip(("mesh", "in_specs", "out_specs", "check_rep"), rest, strict=False)) | options
    return Mapped("shard_map", *target, *site, options, None, names)


def _function(project: Project, file: SourceFile, node: ast.expr) -> tuple[SourceFile, Function] | None:
    """The function that is mapped, seen through jit, checkpoint and partial."""
    value = node if project.function(file, node) else file.value(node)
    if isinstance(value, ast.Call) and file.dotted(value.func) in _WRAPPERS and value.args:
        return _function(project, file, value.args[0])
    return None if value is None else project.function(file, value)


def _names_of(file: SourceFile, call: ast.Call) -> frozenset[str]:
    """``p_step`` of ``p_step = jax.pmap(step)``, also through a jit around it."""
    parent = file.parents.get(call)
    while isinstance(parent, ast.Call):
        parent = file.parents.get(parent)
    if isinstance(parent, ast.Assign):
        return frozenset(target.id for target in parent.targets if isinstance(target, ast.Name))
    return frozenset()
