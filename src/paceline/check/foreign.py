"""Steps that Paceline did not write: how they are traced, and where in their result the next state is.

Owns: jaxprs of functions for `jax.pmap`, with a `jax.shard_map`, or to be mapped; labels of their arguments.
Invariant: nothing is run, and a function that is never mapped is refused rather than found to be right.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from paceline.base.errors import AxisNameError, PacelineError, StateError, TaskError
from paceline.check.values import SPLIT, Labels, varies
from paceline.engine.precision import is_key
from paceline.engine.usercode import unbound_axis, user_code
from paceline.tasks.tree import leaf_name, named_leaves


@dataclass(frozen=True)
class Traced:
    """A step that was traced.

    Args:
      jaxpr: its inputs are the arrays among the arguments.
      arguments: what it was traced with.
      names: of its parameters.
      outputs: its result, as a tree of shapes.
      axes: mesh axes bound around the whole jaxpr, for a function to be mapped.
      devices: how many devices it is mapped over.
      by_pmap: whether `jax.pmap` made it.
    """

    jaxpr: Any
    arguments: tuple[Any, ...]
    names: tuple[str, ...]
    outputs: Any
    axes: tuple[str, ...]
    devices: int
    by_pmap: bool

    def is_stacked(self, state_argnums: Sequence[int]) -> bool:
        """Whether the state has a leading device axis: as `jax.pmap` wants it, or by the size of every leaf."""
        leaves = [leaf for number in state_argnums for leaf in jax.tree.leaves(self.arguments[number])]
        all_lead = all(np.shape(leaf)[:1] == (self.devices,) for leaf in leaves)
        return self.by_pmap or (not self.axes and all_lead)

    def labels(self, state_argnums: Sequence[int], *, device_axis: bool) -> list[Labels]:
        """Labels of the inputs of the jaxpr: the name of the argument, and whether devices may see another part of it.

        A state with a device axis is the same on all devices. Otherwise a `shard_map` says what it splits.
        """
        split = frozenset({SPLIT, *map(varies, self.axes)})
        labels: list[Labels] = []
        for number, (name, argument) in enumerate(zip(self.names, self.arguments, strict=True)):
            same = number in state_argnums and (device_axis or bool(self.axes))
            own = frozenset({name}) if same else split | {name}
            labels += [own for leaf in jax.tree.leaves(argument) if _is_array(leaf)]
        return labels

    def local_rows(self, state_argnums: Sequence[int], *, device_axis: bool) -> set[int]:
        """Leading sizes of the arrays beside the state, as one device sees them."""
        rows: set[int] = set()
        for number, argument in enumerate(self.arguments):
            for leaf in jax.tree.leaves(argument) if number not in state_argnums else ():
                if _is_array(leaf) and not _is_key(leaf):
                    rows.update(self._local(tuple(leaf.shape), device_axis=device_axis)[:1])
        return rows

    def _local(self, shape: tuple[int, ...], *, device_axis: bool) -> tuple[int, ...]:
        if self.axes:
            return shape
        return shape[1:] if device_axis else tuple(size // self.devices for size in shape[:1])


def made_by_pmap(step: Callable[..., Any]) -> bool:
    """Whether `jax.pmap` made a function: it can be lowered but not traced; what `jax.jit` makes can be both."""
    return hasattr(step, "lower") and not hasattr(step, "trace")


def trace_foreign(
    step: Callable[..., Any], arguments: Sequence[Any], *, axis_name: str | None = None, devices: int | None = None
) -> Traced:
    """Trace a step; one that is to be mapped, in a `shard_map` around it. Arguments as in `check.replication.drifting`.

    Raises: TaskError: it cannot be traced. StateError: it is of `jax.pmap`, and a leaf lacks the leading device axis of
      the others. AxisNameError: it is not mapped and names no axis, or is mapped over another axis than it names.
    """
    by_pmap = made_by_pmap(step)
    names = _parameter_names(step, len(arguments))
    call, arrays = _of_arrays(step, arguments)
    axes = () if axis_name is None else (axis_name,)
    size = devices or max(2, jax.device_count())
    try:
        while isinstance(traced := _trace(call, arrays, axes=dict.fromkeys(axes, size)), str):
            axes = (*axes, traced)
    except TaskError as error:
        raise (_leading_error(step, arguments, names) if by_pmap else None) or error from error.__cause__
    jaxpr, outputs = traced
    mapped = _mapped_over(jaxpr)
    if mapped is None:
        raise AxisNameError(
            what="the step is not mapped over devices and names no device axis",
            why="as a program over whole arrays nothing in it can differ; if it is to be mapped, over which axis?",
            fix="pass axis_name='data', or the function that jax.pmap or jax.shard_map made of it",
        )
    return Traced(
        jaxpr=jaxpr,
        arguments=tuple(arguments),
        names=names,
        outputs=outputs,
        axes=axes,
        devices=mapped,
        by_pmap=by_pmap,
    )


def _of_arrays(step: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
    """The step as a function of the arrays among its arguments, and these arrays; what is none is static."""
    leaves, structure = jax.tree.flatten(tuple(arguments))

    def call(*given: Any) -> Any:
        rest = iter(given)
        return step(*structure.unflatten([next(rest) if _is_array(leaf) else leaf for leaf in leaves]))

    return call, [leaf for leaf in leaves if _is_array(leaf)]


def _trace(call: Callable[..., Any], arrays: Sequence[Any], *, axes: Mapping[str, int]) -> tuple[Any, Any] | str:
    """Jaxpr and result of a function with these axes bound, or the name of one more axis that it needs."""
    try:
        with user_code("the step", when="to trace it on arrays of these shapes"):
            if not axes:
                return jax.make_jaxpr(call, return_shape=True)(*arrays)
            shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in arrays]
            return jax.make_jaxpr(_bound(call, axes), return_shape=True)(*shapes)
    except AxisNameError as error:
        missing = unbound_axis(error.__cause__)
        assert missing is not None, "the error was made from it"
        if missing in axes or _maps_itself(call, arrays, axes={**axes, missing: 2}):
            raise AxisNameError(
                what=f"the step names a device axis {missing!r}, over which it is not mapped",
                why="a reduction over an axis that does not exist cannot be compiled",
                fix=f"map it with axis_name={missing!r}, or reduce over the axis that it is mapped over",
            ) from error
        return missing
    except PacelineError:
        raise
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        raise TaskError(
            what=f"the step raised {type(error).__name__}: {message}",
            why="it was traced on arrays of the shapes given, but not run",
            fix="call it with what it is called with in training, or with jax.ShapeDtypeStruct of the same shapes",
        ) from error


def _leading_error(
    step: Callable[..., Any], arguments: Sequence[Any], names: Sequence[str]
) -> StateError | None:  # fmt: skip
    """The error for arguments of `jax.pmap` whose leaves do not all lead with one number of devices, if they do not.

    Which number that is, is tried: with it in front of the leaves that lack it, the step must trace. What could not be
    traced for another reason has no such number.
    """
    shapes = {
        _joined(name, leaf, several=True): tuple(value.shape)
        for name, argument in zip(names, arguments, strict=True)
        for leaf, value in named_leaves(argument)
        if _is_array(value)
    }
    for size in _leading_sizes(arguments):
        odd = [name for name, shape in shapes.items() if shape[:1] != (size,)]
        if odd and _traces_with(step, arguments, size):
            in_state = odd[0].partition(".")[0] == names[0]
            return StateError(
                what=f"leaf {odd[0]!r} has shape {shapes[odd[0]]}, without a leading device axis of size {size}",
                why="jax.pmap takes one entry of every argument for each device, along its first dim",
                fix=f"stack {size} copies of each leaf of the state along a new first dim"
                if in_state
                else f"reshape its rows [B, ...] to [{size}, B/{size}, ...]",
            )
    return None


def _leading_sizes(arguments: Sequence[Any]) -> list[int]:
    """What may be the number of devices, the likeliest first: what all leaves of the state lead with, if it has several
    leaves, then the leading sizes from the last argument, which holds the rows, to the first."""
    leads = [[tuple(leaf.shape[:1]) for leaf in jax.tree.leaves(argument) if _is_array(leaf)] for argument in arguments]
    state = leads[0] if leads and len(leads[0]) > 1 and len(set(leads[0])) == 1 else []
    ordered = [*state, *(lead for argument in reversed(leads) for lead in argument)]
    return list(dict.fromkeys(lead[0] for lead in ordered if lead))


def _traces_with(step: Callable[..., Any], arguments: Sequence[Any], size: int) -> bool:
    """Whether a step traces once every leaf has a leading device axis of this size."""

    def led(leaf: Any) -> Any:
        if not _is_array(leaf) or tuple(leaf.shape[:1]) == (size,):
            return leaf
        return jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype)

    call, arrays = _of_arrays(step, [jax.tree.map(led, argument) for argument in arguments])
    try:
        jax.make_jaxpr(call)(*arrays)
    except Exception:  # the number is not the one, and the step's own error is reported
        return False
    return True


def _bound(call: Callable[..., Any], axes: Mapping[str, int]) -> Callable[..., Any]:
    """The function as one device of a mesh of these axes runs it. Needs no devices."""
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    return jax.shard_map(call, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)


def _maps_itself(call: Callable[..., Any], arrays: Sequence[Any], *, axes: Mapping[str, int]) -> bool:
    """Whether a function holds a `shard_map` of its own; False also where this cannot be told."""
    try:
        return _mapped_over(jax.make_jaxpr(call, axis_env=list(axes.items()))(*arrays)) is not None
    except Exception:  # it will be traced once more, where whatever it is is reported
        return False


def _mapped_over(jaxpr: Any) -> int | None:
    """Devices of the first `shard_map` in a jaxpr, which is also what `jax.pmap` becomes; None if there is none."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "shard_map":
            mesh = equation.params["mesh"]
            return math.prod(mesh.shape[axis] for axis in equation.params["newly_manual_axes"])
        for parameter in equation.params.values():
            found = _mapped_over(parameter) if hasattr(parameter, "eqns") else None
            if found is not None:
                return found
    return None


def next_state(traced: Traced, state_argnums: Sequence[int]) -> list[tuple[int, str]]:
    """Flat index and name of each leaf of the next state in the result of a step.

    The next state is the first part of the result that has the structure and shapes of the state.

    Raises: TaskError: there is none.
    """
    parts = list(_parts(traced.outputs, 0))
    found: list[tuple[int, str]] = []
    for number in state_argnums:
        argument, name = traced.arguments[number], traced.names[number]
        start = next((start for start, part in parts if _shapes(part) == _shapes(argument)), None)
        if start is None:
            raise _no_next_state(name)
        names = [_joined(name, leaf, several=len(state_argnums) > 1) for leaf, _ in named_leaves(argument)]
        taken = range(start, start + len(names))
        parts = [(first, part) for first, part in parts if first not in taken]
        found += zip(taken, names, strict=True)
    return found


def _parts(tree: Any, start: int) -> Iterator[tuple[int, Any]]:
    """Every subtree with the flat index of its first leaf, outside in."""
    yield start, tree
    if jax.tree_util.all_leaves([tree]):
        return
    for child in jax.tree.leaves(tree, is_leaf=lambda node: node is not tree):
        yield from _parts(child, start)
        start += len(jax.tree.leaves(child))


def _shapes(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(leaf) for leaf in leaves]


def _joined(parameter: str, leaf: str, *, several: bool) -> str:
    if leaf == leaf_name(()):
        return parameter
    return f"{parameter}.{leaf}" if several else leaf


def _no_next_state(name: str) -> TaskError:
    return TaskError(
        what=f"nothing that the step returns has the structure and shapes of {name!r}",
        why="without the next state there is nothing to compare between devices",
        fix="return the next state whole, as in `return state, loss`, and say with state_argnums which arguments it is",
    )


def _parameter_names(step: Callable[..., Any], count: int) -> tuple[str, ...]:
    try:
        names = list(inspect.signature(step).parameters)
    except (TypeError, ValueError):
        names = []
    return tuple(names[number] if number < len(names) else f"argument{number}" for number in range(count))


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _is_key(leaf: Any) -> bool:
    """Typed, or the two words of an old one."""
    return is_key(leaf) or (leaf.dtype == np.uint32 and tuple(leaf.shape[-1:]) == (2,))
