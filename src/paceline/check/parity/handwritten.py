"""A step that the user wrote by hand for `jax.pmap` or `jax.shard_map`, run on K devices.

Owns: which argument is what, by its name; what the step returns; the layouts that pmap and shard_map want.
Not here: tracing such functions (`check.foreign`), the right answer (`check.parity.reference`).
Invariant: the step runs as it is; it gets whole copies of the state on every device, and the key of the step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.base.errors import AxisNameError, StateError, TaskError
from paceline.check.foreign import Traced, made_by_pmap, next_state, trace_foreign
from paceline.check.keys import KeyFinding, draws, key_findings
from paceline.check.parity.faults import Seen
from paceline.check.parity.narrow import narrowest_type
from paceline.check.parity.problem import Batch, Problem
from paceline.check.parity.reference import Split
from paceline.check.parity.subject import drifting_replicas
from paceline.check.parity.trace import flatten, words
from paceline.check.parity.widen import widened
from paceline.check.replication import Drift, varying_leaves
from paceline.engine.rng import base_key, step_key
from paceline.engine.state import add_device_axis
from paceline.engine.usercode import user_code
from paceline.tasks.tree import leaf_name, named_leaves
from paceline.topology.mesh import rows_by_device

STATE_ROLES = ("params", "opt_state", "model_state", "state")

_NAMES = {
    "params": ("params", "parameters"),
    "opt_state": ("opt_state", "optimizer_state"),
    "model_state": ("model_state", "batch_stats"),
    "state": ("state", "train_state"),
    "batch": ("batch", "data"),
    "rng": ("rng", "key", "rng_key", "prng_key", "dropout_rng", "dropout_key"),
    "step": ("step", "count"),
    "valid": ("valid", "mask"),
}
_ROLE = {name: role for role, names in _NAMES.items() for name in names}


@dataclass(frozen=True)
class HandwrittenStep:
    """A user's step.

    Args:
      function: what `jax.pmap` made, a function with a `jax.shard_map`, or one to be mapped.
      make_state: makes the argument `state` from `params`, `opt_state`, `model_state` (those that it names).
    """

    function: Callable[..., Any]
    make_state: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """How reports call it."""
        return getattr(self.function, "__name__", "step")

    def roles(self, batch: Any) -> list[str]:
        """What each parameter is, by its name; a name that is none of these may be a leaf of the batch.

        Raises: TaskError: a name that is neither, or no state among them.
        """
        leaves = tuple(batch) if isinstance(batch, Mapping) else ()
        roles = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
                continue
            if name not in _ROLE and name not in leaves:
                if parameter.default is not parameter.empty:
                    break  # it and those behind it keep their defaults
                raise _unknown_parameter(self.name, name, leaves)
            roles.append(name if name in leaves else _ROLE[name])
        if not any(role in STATE_ROLES for role in roles):
            raise TaskError(
                what=f"the step {self.name!r} takes no state ({', '.join(roles) or 'nothing'})",
                why="what is compared is the state after a few steps",
                fix="let it take params (and opt_state), or state, and return the next ones",
            )
        return roles

    def names(self) -> list[tuple[str, str]]:
        """Name and role of every parameter that has a role by its name."""
        return [(name, _ROLE[name]) for name in inspect.signature(self.function).parameters if name in _ROLE]

    def takes_mask(self, batch: Any) -> bool:
        """Whether it can be given rows that do not count."""
        return "valid" in self.roles(batch)


class StepRun:
    """The updates of a problem by a user's step on K devices.

    Raises: TaskError: the step has a wrong signature, does not trace, or returns no next state. AxisNameError: an axis
      that is not there.
    """

    def __init__(self, problem: Problem, step: HandwrittenStep, *, devices: int, wide: bool = False) -> None:
        self._problem = problem
        self._step = step
        self._roles = step.roles(problem.batches[0].rows)
        self._state = self._first_state()
        plain = self._trace(devices, with_axis=made_by_pmap(step.function))
        if len(plain.axes) > 1:
            raise _several_axes(step.name, plain.axes)
        axis = next(iter(plain.axes), None)
        self._bare = axis is not None
        # pmap and a function to be mapped get a leading axis; what holds a shard_map takes whole arrays.
        self._axis = plain.by_pmap or self._bare
        self.devices = devices if self._axis else plain.devices
        self.narrowest = narrowest_type(plain.jaxpr)
        function = jax.jit(widened(step.function)) if wide and self.narrowest != np.float64 else step.function
        self._function = jax.pmap(function, axis_name=axis) if self._bare else function
        self.traced = plain

    def run(self) -> Seen:
        """What the step computes."""
        self._state = self._placed(self._first_state())
        trace = []
        with user_code(f"the step {self._step.name!r}", when="to run it"):
            for update, batch in enumerate(self._problem.batches):
                devices = self.devices if self._axis else None
                outputs = self._function(*self._arguments(self._state, batch, update, devices=devices))
                self._state, rest = self._taken(outputs)
                trace.append(self._observed(rest))
        drifting = drifting_replicas(self._named_state(self._state), device_axis=self._axis)
        return Seen(trace, drifting, self.devices, Split())

    def key_findings(self) -> list[KeyFinding]:
        """What is wrong with its random keys."""
        found = draws(self.traced.jaxpr, self._labels())
        return key_findings(found, local_rows={self._problem.rows // self.devices})

    def drifting(self) -> list[Drift]:
        """Leaves of the next state that may differ between devices, told without running it."""
        outputs = next_state(self.traced, self._numbers(STATE_ROLES))
        return varying_leaves(self.traced.jaxpr, self._labels(), outputs=outputs, device_axis=self._is_stacked())

    def _labels(self) -> list[frozenset[str]]:
        """State, key and step number are given to all devices alike."""
        return self.traced.labels(self._numbers((*STATE_ROLES, "rng", "step")), device_axis=self._is_stacked())

    def _is_stacked(self) -> bool:
        """Whether the step was traced with a leading device axis."""
        return self._axis and not self._bare

    def _trace(self, devices: int, *, with_axis: bool) -> Traced:
        """The step on abstract values: with a leading device axis, whole arrays, or as one device sees them."""
        batch = self._problem.batches[0]
        if with_axis:
            state = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (devices, *np.shape(leaf))), self._state)
            return trace_foreign(self._step.function, self._arguments(state, batch, 0, devices=devices))
        whole = trace_foreign(self._step.function, self._arguments(self._state, batch, 0), devices=devices)
        if not whole.axes:
            return whole
        local = jax.tree.map(lambda leaf: leaf[: len(leaf) // devices], batch)
        return trace_foreign(self._step.function, self._arguments(self._state, local, 0), devices=devices)

    def _numbers(self, roles: Collection[str]) -> list[int]:
        return [number for number, role in enumerate(self._roles) if role in roles]

    def _first_state(self) -> dict[str, Any]:
        problem = self._problem
        params, model_state = jax.tree.map(jnp.asarray, (problem.params, problem.model_state))
        parts = {"params": params, "opt_state": problem.optimizer.init(params), "model_state": model_state}
        own = {role: _collection(model_state, name) for name, role in self._step.names() if role == "model_state"}
        if "state" in self._roles:
            parts["state"] = self._made_state(parts)
        return {role: {**parts, **own}[role] for role in self._roles if role in STATE_ROLES}

    def _made_state(self, parts: Mapping[str, Any]) -> Any:
        make = self._step.make_state
        if make is None:
            raise TaskError(
                what=f"the step {self._step.name!r} takes one argument for its whole state",
                why="verify knows params, opt_state and model_state, but not how your state holds them",
                fix="name a function that makes it, make_state(params, opt_state): --state module:make_state",
            )
        names = [name for name in inspect.signature(make).parameters if _ROLE.get(name) in parts]
        with user_code("the function that makes the state", when="to start the step"):
            made = make(**{name: _collection(parts[_ROLE[name]], name) for name in names})
        _check_shapes(self._named_state({"state": made}).get("params"), parts["params"])
        return made

    def _placed(self, state: dict[str, Any]) -> dict[str, Any]:
        if not self._axis:
            return state
        return add_device_axis(jax.tree.map(jnp.asarray, state), num_devices=self.devices)

    def _arguments(self, state: Mapping[str, Any], batch: Batch, update: int, *, devices: int | None = None) -> Any:
        """What the step is called with, in the order of its parameters.

        Args:
          devices: K, for a leading device axis on all that is not in `state`.
        """
        rows, valid = batch
        key, number = step_key(base_key(self._problem.seed), jnp.asarray(update)), jnp.asarray(update, jnp.int32)
        if devices is not None:
            rows, valid = rows_by_device((rows, valid), num_devices=devices)
            key, number = add_device_axis((key, number), num_devices=devices)
        known = {**state, "batch": rows, "valid": valid, "rng": key, "step": number}
        leaves = dict(rows) if isinstance(rows, Mapping) else {}
        return tuple(known[role] if role in known else leaves[role] for role in self._roles)

    def _taken(self, outputs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next state, and what else the step returned, by name."""
        numbers = self._numbers(STATE_ROLES)
        indices = [index for index, _ in next_state(self.traced, numbers)]
        leaves = jax.tree_util.tree_leaves_with_path(outputs)
        taken = iter(leaves[index][1] for index in indices)
        state = {
            self._roles[number]: jax.tree.map(lambda _: next(taken), self._state[self._roles[number]])
            for number in numbers
        }
        rest = [leaf for index, leaf in enumerate(leaves) if index not in set(indices)]
        return state, {_metric_name(path, alone=len(rest) == 1): leaf for path, leaf in rest}

    def _named_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Trees by what they are; those of a whole state by its attributes or keys."""
        if "state" not in state:
            names = {role: name for name, role in self._step.names()}
            return {role: self._whole(part, names[role]) for role, part in state.items()}
        whole = state["state"]
        found = {}
        for role in ("params", "opt_state", "model_state"):
            for name in _NAMES[role]:
                part = whole.get(name) if isinstance(whole, Mapping) else getattr(whole, name, None)
                if part is not None:
                    found[role] = self._whole(part, name)
        return found

    def _whole(self, part: Any, name: str) -> Any:
        """The model state of which the user's state holds one collection, as in Linen's `batch_stats`."""
        own = self._problem.model_state
        return {name: part} if isinstance(own, Mapping) and name in own else part

    def _observed(self, rest: Mapping[str, Any]) -> dict[str, np.ndarray]:
        state = self._named_state(self._state)
        if self._axis:
            state = jax.tree.map(lambda leaf: words(leaf)[0], state)
        # A value of every device is averaged, as such steps expect of the host.
        values = {name: words(leaf).mean(0) if self._axis else words(leaf) for name, leaf in rest.items()}
        loss = values.pop("loss", None)
        return flatten(loss=loss, metrics=values, **state)


def _several_axes(step: str, axes: Sequence[str]) -> AxisNameError:
    return AxisNameError(
        what=f"the step {step!r} names the device axes {' and '.join(map(repr, axes))}",
        why="verify maps a step over one axis, and a reduction over another one would not exist",
        fix="use one axis name in all its reductions, or map it yourself with jax.shard_map and name the result",
    )


def _collection(tree: Any, name: str) -> Any:
    """The collection of that name, of a model state that has it; else all of it."""
    return tree[name] if name == "batch_stats" and isinstance(tree, Mapping) and name in tree else tree


def _metric_name(path: tuple[Any, ...], *, alone: bool) -> str:
    numbered = isinstance(path[-1], jax.tree_util.SequenceKey)
    return "loss" if alone and numbered else leaf_name(path[-1:])


def _check_shapes(made: Any, given: Any) -> None:
    """Raise StateError naming the first parameter that the user's state holds in another shape than it was given."""
    if jax.tree.structure(made) != jax.tree.structure(given):
        return  # held in a way of its own
    for (name, leaf), (_, own) in zip(named_leaves(made), named_leaves(given), strict=True):
        if np.shape(leaf) != np.shape(own):
            raise StateError(
                what=f"the state holds parameter {name!r} in shape {np.shape(leaf)}; it was given in {np.shape(own)}",
                why="verify makes the copies of all devices itself, and would put a second device axis in front",
                fix="return the state of one device: leave the replication, as by flax.jax_utils.replicate, out",
            )


def _unknown_parameter(step: str, name: str, leaves: tuple[str, ...]) -> TaskError:
    known = ", ".join(names[0] for names in _NAMES.values())
    batch = f", or a leaf of the batch ({', '.join(map(str, leaves))})" if leaves else ""
    return TaskError(
        what=f"the step {step!r} has a parameter {name!r}",
        why="verify gives a step its arguments by their names, and does not know this one",
        fix=f"name it {known}{batch}",
    )
