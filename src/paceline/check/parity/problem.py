"""What is verified: a task, its optimizer, a start, and a few batches of its own rows.

Owns: reading the batches, the uneven one among them, the types they are compared in.
Not here: what an update computes (`check.parity.reference`), how the engine computes it (`check.parity.subject`).
Invariant: every run of one problem sees the same rows, the same start and the same seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from paceline.base.errors import BatchSizeError, DataError
from paceline.data.batch import pad_rows
from paceline.data.source import BatchStream, Source, as_source
from paceline.data.tree import count_rows, to_host
from paceline.engine.evaluation import EvaluationFunction
from paceline.engine.parallel import Parallel
from paceline.engine.precision import is_float, is_key
from paceline.engine.state import initial
from paceline.engine.usercode import user_code, with_data_axis
from paceline.tasks.task import Task


class Batch(NamedTuple):
    """One global batch on the host.

    Args:
      rows: leaves ``[B, ...]``.
      valid: bool ``[B]``, False marks padding.
    """

    rows: Any
    valid: np.ndarray


@dataclass(frozen=True, eq=False)
class Problem:
    """A task with everything that determines the result of its first updates.

    Args:
      task: the user's loss.
      optimizer: any optax optimizer.
      parallel: clipping, moving average, precision and the rest; scheme, placement and accumulation are varied.
      params, model_state: the start, numpy leaves.
      batches: one an update; one of them uneven if the loss can be masked.
      seed: of everything random in the updates.
      maskable: whether padding can be left out of the loss and of every metric.
      synced: whether BatchNorm's statistics are those of all devices' rows under every scheme: as `parallel` asks, or
        because the loss reduces over the device axis itself, as a model with axis_name="data" does.
    """

    task: Task
    optimizer: optax.GradientTransformation
    parallel: Parallel
    params: Any
    model_state: Any
    batches: tuple[Batch, ...]
    seed: int
    maskable: bool
    synced: bool = False

    @property
    def rows(self) -> int:
        """B."""
        return len(self.batches[0].valid)

    @property
    def has_model_state(self) -> bool:
        """Whether the loss may see rows together, as BatchNorm does."""
        return bool(jax.tree.leaves(self.model_state))

    def widened(self) -> Problem:
        """The same problem in float64. For use under `jax.enable_x64`."""
        parallel = dataclasses.replace(self.parallel, precision="float32", reduce_dtype=None)
        batches = tuple(Batch(to_float64(batch.rows), batch.valid) for batch in self.batches)
        start = to_float64((self.params, self.model_state))
        return dataclasses.replace(self, parallel=parallel, params=start[0], model_state=start[1], batches=batches)

    def nudged(self, eps: float, *, seed: int = 0) -> Problem:
        """The same problem with every floating-point number of start and rows moved by the rounding of a type.

        Up or down at random: what that changes is what rounding can change.

        Args:
          eps: distance from 1 to the next number of that type.
          seed: of the directions.
        """
        generator = np.random.default_rng(seed)

        def nudge(leaf: Any) -> Any:
            if not is_float(leaf):
                return leaf
            return (leaf * (1 + eps / 2 * generator.choice([-1.0, 1.0], np.shape(leaf)))).astype(leaf.dtype)

        params, model_state, batches = jax.tree.map(nudge, (self.params, self.model_state, self.batches))
        return dataclasses.replace(self, params=params, model_state=model_state, batches=batches)


def make_problem(
    task: Task, optimizer: optax.GradientTransformation, *, data: Any, parallel: Parallel, params: Any,
    model_state: Any, batch: int, updates: int, seed: int,
) -> Problem:  # fmt: skip
    """Read the batches, make the start, and leave the last rows out of the second batch if the loss can be masked.

    Raises: DataError, BatchSizeError: no rows, or fewer than a batch. TaskError, LossError: the task cannot be traced.
    """
    rows = _read(as_source(data), batch=batch, updates=updates)
    start = _start(task, params=params, model_state=model_state, seed=seed)
    function = EvaluationFunction(dataclasses.replace(task, evaluate=None), parallel)
    first, state, batch_shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, (*start, rows[0])))
    key = jax.eval_shape(lambda: jax.random.key(0))
    maskable = function.is_maskable(first, state, batch_shapes, key)
    reduces = with_data_axis(task, first, state, batch_shapes, key, fields=("loss",)) is not task
    batches = [Batch(tree, np.ones(batch, bool)) for tree in rows]
    if maskable and not jax.tree.leaves(start[1]):
        uneven = min(1, updates - 1)
        batches[uneven] = _uneven(rows[uneven], batch)
    return Problem(
        task, optimizer, parallel, params=start[0], model_state=start[1], batches=tuple(batches), seed=seed,
        maskable=maskable, synced=parallel.batch_norm == "synced" or reduces,
    )  # fmt: skip


def to_float64(tree: Any) -> Any:
    """Floating-point leaves as float64 numpy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) if is_float(leaf) else leaf, tree)


def _uneven(rows: Any, batch: int) -> Batch:
    """The last share of 8 devices and one row more are padding: a device without rows, and one with fewer."""
    count = max(1, batch - batch // 8 - 1)
    kept = jax.tree.map(lambda leaf: leaf[:count], rows)
    return Batch(pad_rows(kept, batch), np.arange(batch) < count)


def _read(source: Source | BatchStream, *, batch: int, updates: int) -> list[Any]:
    if isinstance(source, BatchStream):
        return list(_read_stream(source, batch, updates))
    if not len(source):
        raise DataError(
            what="the data has no rows", why="there is nothing to compare on", fix="pass the data of a training run"
        )
    positions = _positions(len(source), updates * batch)
    return [to_host(source.read(positions[i * batch : (i + 1) * batch]), noun="batch") for i in range(updates)]


def _positions(available: int, needed: int) -> np.ndarray:
    """Rows at random, each again only after all others: devices with the same rows cannot differ.

    In order, a small set of data would repeat.
    """
    generator = np.random.default_rng(0)
    sizes = [min(available, needed - start) for start in range(0, needed, available)]
    return np.concatenate([generator.choice(available, size, replace=False) for size in sizes])


def _read_stream(source: BatchStream, batch: int, updates: int) -> Iterator[Any]:
    iterator = iter(source)
    last: Any = None
    for _ in range(updates):
        last = next(iterator, last)
        if last is None:
            raise DataError(
                what="the data gave no batch", why="there is nothing to compare on", fix="pass the data of a run"
            )
        found = count_rows(last, noun="batch")
        if found < batch:
            raise BatchSizeError(
                what=f"the data gives batches of {found} rows, and {batch} are needed",
                why="every device and every microbatch takes part of a batch",
                fix=f"give larger batches, or use --batch {found} with fewer --devices or a smaller --accumulation",
            )
        yield jax.tree.map(lambda leaf: np.asarray(leaf)[:batch], last)


def _start(task: Task, *, params: Any, model_state: Any, seed: int) -> tuple[Any, Any]:
    if params is None:
        with user_code(f"the init of task {task.name!r}", when="to trace it"):
            params, model_state = jax.jit(lambda: initial(task, seed))()
    return jax.tree.map(_host, (params, {} if model_state is None else model_state))


def _host(leaf: Any) -> Any:
    """In numpy, but for typed keys, which numpy cannot hold."""
    return leaf if is_key(leaf) else np.asarray(leaf)
