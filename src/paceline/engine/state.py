"""`TrainState`: everything that a run needs to go on from a step.

Owns: the fields of the state, and its first value, made where it will live.
Not here: how a step changes it (`engine.update`).
Invariant: under `global_view` and `per_device` a leaf is replicated over the mesh, or split where the placement says so
(`engine.placement`); under `pmap` it has a leading device axis of size K, split over the mesh.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import AxisType, Mesh

from paceline.base.errors import SchemeError, StateError, TaskError
from paceline.engine.parallel import Parallel
from paceline.engine.placement import is_placed, sharded_dim, state_shardings
from paceline.engine.precision import LossScale, initial_loss_scale, master_params
from paceline.engine.rng import base_key
from paceline.engine.usercode import optimizer_code
from paceline.tasks.task import Initial, Task
from paceline.tasks.tree import named_leaves
from paceline.topology.mesh import put, replicated, split_rows

_COPY = "copy it over: trainer.place(other_trainer.single(state))"
_INIT_STREAM = 0x1A17  # keeps the parameters' key apart from the keys of steps 0, 1, 2, ...
_FIELDS = ("step", "skipped", "empty", "params", "model_state", "opt_state", "rng", "ema", "loss_scale")


@functools.partial(jax.tree_util.register_dataclass, data_fields=_FIELDS, meta_fields=())
@dataclass(frozen=True)
class TrainState:
    """The state of a run, one pytree.

    Args:
      step: int32, steps taken, left-out updates included: with the seed it determines data and keys of the next step.
      skipped: int32, updates left out because a loss or a gradient was not finite.
      empty: int32, updates left out because no row of the batch had any weight. Schedules count
        ``step - skipped - empty``.
      params: float32 master parameters.
      model_state: what the model carries beside them, for example running statistics.
      opt_state: the optax state.
      rng: the key of the run; never changes.
      ema: moving average of the parameters, or None.
      loss_scale: the dynamic loss scale of float16, or None.
    """

    step: Array
    skipped: Array
    empty: Array
    params: Any
    model_state: Any
    opt_state: Any
    rng: Array
    ema: Any = None
    loss_scale: LossScale | None = None


def new_state(
    optimizer: optax.GradientTransformation, parallel: Parallel, *, params: Any, model_state: Any, seed: int | Array
) -> TrainState:
    """The state before the first step, without a device axis. Traceable."""
    params = master_params(params)
    with optimizer_code(optimizer):
        opt_state = optimizer.init(params)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
        empty=jnp.zeros((), jnp.int32),
        params=params,
        model_state=model_state,
        opt_state=opt_state,
        rng=base_key(seed),
        ema=None if parallel.ema_decay is None else jax.tree.map(jnp.copy, params),
        loss_scale=initial_loss_scale() if parallel.precision == "float16" else None,
    )


def initial(task: Task, seed: int) -> Initial:
    """Parameters and model state that the task makes from the seed. Traceable.

    Raises: TaskError: the task has no init.
    """
    if task.init is None:
        raise TaskError(
            what=f"task {task.name!r} has no init, and no parameters were given",
            why="there is nothing to start from",
            fix="pass params=..., or make the task with paceline.task(loss, init=...)",
        )
    made = task.init(jax.random.fold_in(base_key(seed), _INIT_STREAM))
    return made if isinstance(made, Initial) else Initial(made, {})


def check_context() -> None:
    """Raise SchemeError where `jax.set_mesh` has set a mesh of explicit axes, which ordinary code does not take."""
    context = jax.sharding.get_abstract_mesh()
    if AxisType.Explicit in context.axis_types:
        raise SchemeError(
            what=f"a trainer was called where jax.set_mesh has set a mesh with explicit axes {context.axis_names}",
            why="a step compiles for the trainer's own mesh, and JAX refuses the mix of both",
            fix="call it outside of jax.set_mesh, or set a mesh with axis_types=(jax.sharding.AxisType.Auto,)",
        )


def place_state(state: TrainState, *, parallel: Parallel, mesh: Mesh) -> TrainState:
    """Copy a state without device axis to where the scheme keeps it. The given arrays stay the caller's.

    Raises: StateError: a state that a step used up, or one with a device axis.
    """
    _check_unused(state)
    _check_no_axis(state, parallel)
    if parallel.scheme != "pmap":
        # Copied first: device_put aliases arrays of one of the devices and aligned numpy memory, whatever may_alias is.
        copied = jax.tree.map(lambda leaf: jnp.copy(leaf) if isinstance(leaf, Array) else np.array(leaf), state)
        return put(copied, state_shardings(state, parallel=parallel, mesh=mesh))
    program = jax.jit(add_device_axis, static_argnames="num_devices", out_shardings=split_rows(mesh))
    whole = put(state, jax.tree.map(lambda _: replicated(mesh), state))
    return program(whole, num_devices=mesh.size)


def add_device_axis(state: Any, *, num_devices: int) -> Any:
    """``[K, ...]`` copies of every leaf. Traceable."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_devices, *leaf.shape)), state)


def drop_device_axis(state: TrainState, *, parallel: Parallel, mesh: Mesh) -> TrainState:
    """The state as one device has it, replicated over the mesh; under `pmap` the copy of the first device.

    Split leaves are gathered; those that are replicated already are the state's own arrays.

    Raises: StateError: a state that a step used up.
    """
    _check_unused(state)
    if parallel.scheme != "pmap":
        return gathered(state, mesh) if is_placed(parallel, mesh) else state
    return jax.jit(_first_copy, out_shardings=replicated(mesh))(state)


def gathered(tree: Any, mesh: Mesh) -> Any:
    """The tree with every leaf whole on every device; leaves that are so already stay themselves."""
    if replicated(mesh).is_fully_addressable:
        return jax.device_put(tree, replicated(mesh))
    split = {name: leaf for name, leaf in named_leaves(tree) if not leaf.is_fully_replicated}
    whole = _gather(split, mesh) if split else {}
    return jax.tree.unflatten(jax.tree.structure(tree), [whole.get(name, leaf) for name, leaf in named_leaves(tree)])


def _gather(split: dict[str, Array], mesh: Mesh) -> dict[str, Array]:
    """Between processes `device_put` moves nothing; a program does."""
    return jax.jit(_same, out_shardings=replicated(mesh))(split)


def _same(tree: Any) -> Any:
    return tree


def _first_copy(state: TrainState) -> TrainState:
    # A function of the module: JAX finds the program of an earlier call by the function, and a new one would compile.
    return jax.tree.map(lambda leaf: leaf[0], state)


def check_state(state: TrainState, *, parallel: Parallel, mesh: Mesh) -> None:
    """Raise StateError for a state that another trainer made, or that a step used up, before XLA complains.

    Raises: SchemeError: `jax.set_mesh` is in force with explicit axes.
    """
    check_context()
    if not isinstance(state, TrainState) or not isinstance(state.step, Array):
        raise StateError(
            what=f"the state is a {type(state).__name__}"
            + (" with arrays of the host" if isinstance(state, TrainState) else ""),
            why="a step takes a TrainState that lives on the trainer's devices",
            fix="put it there with trainer.place(state), or begin with trainer.init",
        )
    if state.step.is_deleted():
        raise _used_up()
    check_device_axis(state, parallel=parallel, num_devices=mesh.size)
    for field, wanted in (("ema", parallel.ema_decay is not None), ("loss_scale", parallel.precision == "float16")):
        if (getattr(state, field) is not None) != wanted:
            raise StateError(
                what=f"the state has {'no' if wanted else 'a'} {field}, for {parallel}",
                why="the state was made for other options of Parallel",
                fix="use the same options, or make the state with this trainer's init",
            )
    if state.step.sharding.device_set != set(mesh.devices.flat):
        raise StateError(
            what=f"the state lives on {len(state.step.sharding.device_set)} devices, not on the trainer's {mesh.size}",
            why="another trainer made it",
            fix=_COPY,
        )


def check_optimizer_state(state: TrainState, optimizer: optax.GradientTransformation, *, parallel: Parallel) -> None:
    """Raise StateError if another optimizer made the state: its tree is not the one that this one begins with."""
    axes = 1 if parallel.scheme == "pmap" else 0  # some optimizers keep another state for matrices than for vectors
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[axes:], leaf.dtype), state.params)
    with optimizer_code(optimizer):
        wanted = jax.eval_shape(optimizer.init, params)
    if jax.tree.structure(state.opt_state) == jax.tree.structure(wanted):
        return
    held, own = ([name for name, _ in named_leaves(tree)] for tree in (state.opt_state, wanted))
    odd = [f"{name!r}, which this optimizer has not" for name in held if name not in own]
    odd += [f"no {name!r}, which this optimizer has" for name in own if name not in held]
    raise StateError(
        what="the optimizer state is that of another optimizer: it has "
        + (odd[0] if odd else "the same leaves in other containers"),
        why="an update reads its own moments and counts from it",
        fix="use the optimizer that the state was made with, or begin with trainer.init(params)",
    )


def _check_unused(state: TrainState) -> None:
    """Raise StateError if a leaf was donated: jax (0.10) may crash the process that reads it."""
    if any(isinstance(leaf, Array) and leaf.is_deleted() for leaf in jax.tree.leaves(state)):
        raise _used_up()


def _used_up() -> StateError:
    return StateError(
        what="the state was given to a step before, which reused its memory",
        why="its numbers are gone",
        fix="go on with the state that step or fit returned, or use Parallel(donate=False)",
    )


def check_placement(state: TrainState, *, parallel: Parallel, mesh: Mesh) -> None:
    """Raise StateError naming the first leaf on the mesh that is whole where the step splits it, or the reverse.

    Too slow for every step (microseconds a leaf). Shapes without a sharding, and arrays that are not on the mesh, pass.
    """
    wanted = jax.tree.leaves(state_shardings(state, parallel=parallel, mesh=mesh))
    for (name, leaf), sharding in zip(named_leaves(state), wanted, strict=True):
        held = getattr(leaf, "sharding", None)
        if held is None or held.device_set != sharding.device_set or held.is_equivalent_to(sharding, leaf.ndim):
            continue
        dim = sharded_dim(sharding)
        kept = "keeps it whole" if dim is None else f"splits it along dim {dim}"
        raise StateError(
            what=f"state leaf {name!r} of shape {leaf.shape} is held as {held.shard_shape(leaf.shape)} a device, but "
            f"placement={parallel.placement!r} on {mesh.size} devices {kept}",
            why="the state was made for another placement",
            fix=_COPY,
        )


def check_device_axis(state: TrainState, *, parallel: Parallel, num_devices: int) -> None:
    """Raise StateError naming the first leaf that lacks the leading device axis of the `pmap` scheme."""
    if parallel.scheme != "pmap":
        _check_no_axis(state, parallel)
        return
    if all(np.shape(leaf)[:1] == (num_devices,) for leaf in jax.tree.leaves(state)):
        return  # asked before each step, and names are dear
    for name, leaf in named_leaves(state):
        shape = np.shape(leaf)
        if not shape or shape[0] != num_devices:
            raise StateError(
                what=f"state leaf {name!r} has shape {shape}, without a leading device axis of size {num_devices}",
                why="under scheme='pmap' every leaf holds one copy a device along its first dim",
                fix="make the state with Trainer.init, copy one of another trainer with "
                "trainer.place(other_trainer.single(state)), or stack "
                f"{num_devices} copies of each leaf along a new first dim",
            )


def _check_no_axis(state: TrainState, parallel: Parallel) -> None:
    if np.ndim(state.step):
        raise StateError(
            what=f"the state has a leading device axis of size {np.shape(state.step)[0]}",
            why="that is the form in which scheme='pmap' steps, "
            + ("not the one to place" if parallel.scheme == "pmap" else f"not that of scheme={parallel.scheme!r}"),
            fix="drop it with the trainer that made it: trainer.place(other_trainer.single(state))",
        )
