"""Steps for the engine's tests: task, optimizer and `Parallel` in, numpy out.

Owns: placing state and rows as each scheme wants them; one step function for each combination, so that tests which
share a program compile it once a session.
Not here: expected values; each test takes them from numpy, from pencil, or from plain JAX on one device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from paceline.engine.metrics import StepMetrics
from paceline.engine.parallel import Parallel
from paceline.engine.state import TrainState, new_state, place_state
from paceline.engine.step import StepFunction
from paceline.engine.update import StepSpec
from paceline.tasks.task import task as make_task
from paceline.tasks.tree import named_leaves
from paceline.topology.mesh import data_mesh, split_rows

SCHEMES = ("global_view", "per_device", "pmap")
LOCAL_SCHEMES = ("per_device", "pmap")


class Ran(NamedTuple):
    """What some steps came to.

    Args:
      state: the last state without device axis, leaves in numpy, `rng` left out.
      metrics: the values of each step.
      placed: the last state as the scheme keeps it.
      last: the last step's metrics, still on the devices.
    """

    state: dict[str, Any]
    metrics: list[dict[str, float]]
    placed: TrainState
    last: StepMetrics


# Keyed by identity of the functions: tests share a program by using the same module-level loss and optimizer.
@functools.cache
def step_of(loss, optimizer, parallel=None, *, devices=1, schedule=None, statistics=()) -> StepFunction:
    """The step function of a plain loss on the first so many devices."""
    parallel = parallel or Parallel()
    mesh = data_mesh(jax.devices()[:devices])
    task = make_task(loss, statistics=statistics)
    return StepFunction(StepSpec(task, optimizer, parallel, mesh, schedule))


def start(step: StepFunction, params: Any, *, model_state: Any = None, seed: int = 0) -> TrainState:
    """The state before the first step, where the scheme keeps it."""
    spec = step.spec
    params, model_state = jax.tree.map(jnp.asarray, (params, model_state or {}))
    state = new_state(spec.optimizer, spec.parallel, params=params, model_state=model_state, seed=seed)
    return place_state(state, parallel=spec.parallel, mesh=spec.mesh)


def place(step: StepFunction, batch: Any, valid: Any = None) -> tuple[Any, jax.Array]:
    """Rows and their mask, split over the devices; with a leading device axis under `pmap`."""
    mesh = step.spec.mesh
    rows = len(jax.tree.leaves(batch)[0])
    tree = (batch, np.ones(rows, bool) if valid is None else np.asarray(valid))
    if step.spec.parallel.scheme == "pmap":
        tree = jax.tree.map(lambda leaf: leaf.reshape(mesh.size, rows // mesh.size, *leaf.shape[1:]), tree)
    return jax.device_put(tree, split_rows(mesh))


def run(
    step: StepFunction,
    batches: Iterable[Any],
    *,
    params: Any,
    model_state: Any = None,
    seed: int = 0,
    valid: Any = None,
) -> Ran:
    """One update for each batch, from a fresh state."""
    state = start(step, params, model_state=model_state, seed=seed)
    metrics = []
    for batch in batches:
        state, last = step(state, *place(step, batch, valid))
        metrics.append(last.fetch())
    return Ran(to_numpy(step, state), metrics, state, last)


def to_numpy(step: StepFunction, state: TrainState) -> dict[str, Any]:
    """The state's fields without device axis and key, leaves in numpy."""
    copy = 0 if step.spec.parallel.scheme == "pmap" else ...
    fields = {name: getattr(state, name) for name in TrainState.__dataclass_fields__ if name != "rng"}
    return jax.tree.map(lambda leaf: words(leaf)[copy], fields)


def words(leaf: jax.Array) -> np.ndarray:
    """The leaf in numpy; of keys their words, which are the only leaves that numpy cannot take."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def lowered_text(step: StepFunction, batch: Any, *, params: Any, model_state: Any = None) -> str:
    """The StableHLO of a step, before the compiler: whether a step is accepted shows here, at a tenth of the price."""
    return step.lowered(start(step, params, model_state=model_state), *place(step, batch)).as_text()


def assert_close(got: Any, wanted: Any, *, tolerance: float) -> None:
    """Leaf by leaf, relative or absolute; the message names the leaf."""
    for (name, a), (_, b) in zip(named_leaves(got), named_leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)


def shard_bytes(array: jax.Array) -> list[bytes]:
    """The bytes that each device holds of an array: a sharding label says what should be, not what is."""
    return [words(shard.data).tobytes() for shard in array.addressable_shards]


def distinct(array: Any) -> int:
    """Number of distinct rows of ``[rows, ...]``."""
    return len({np.asarray(row).tobytes() for row in array})
