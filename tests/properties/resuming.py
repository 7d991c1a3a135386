"""A job with everything that a checkpoint must hold, run unbroken and in two parts.

Owns: the task (dropout, model state, Adam on a schedule, a moving average), its data that notes which rows were read,
what is compared of two runs.
Not here: processes that are killed (`kills`).
Invariant: an unbroken run saves nothing, so that saving itself is compared too.

Shapes: rows are x [N, 8], y [N] and id [N]; w [8] and v [3, 8] can be split over 2 and 4 devices, b cannot.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from paceline.data.source import rows
from paceline.engine.parallel import Parallel, Placement, Precision, Scheme
from paceline.tasks.losses import Outcome
from paceline.tasks.task import task
from paceline.tasks.tree import named_leaves
from paceline.telemetry.reader import read_run
from paceline.train.checkpoints import Checkpoints
from paceline.train.trainer import Trainer

STEPS, BREAK, BATCH, ROWS = 12, 5, 16, 70
"""4 steps an epoch, 6 rows left over: the break is behind the first step of the second epoch."""

PLACED: tuple[tuple[Scheme, Placement], ...] = (
    ("global_view", "replicated"),
    ("global_view", "zero1"),
    ("global_view", "fsdp"),
    ("per_device", "replicated"),
    ("per_device", "zero1"),
    ("per_device", "fsdp"),
    ("pmap", "replicated"),
)
TIMES = ("input/", "memory/", "speed/")


def make_rows(count: int = ROWS) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    return {
        "x": draw.normal(size=(count, 8)).astype(np.float32),
        "y": draw.normal(size=count).astype(np.float32),
        "id": np.arange(count, dtype=np.int32),
    }


class NotedRows:
    """A source that notes the rows it was asked for, one entry a batch."""

    def __init__(self, count: int = ROWS) -> None:
        self._source = rows(make_rows(count))
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: np.ndarray) -> Any:
        self.asked.append(indices.tolist())
        return self._source.read(indices)


def dropped_error(params: Any, batch: Any, rng: Any) -> Any:
    """One squared error a row, of a linear model with dropout on its inputs."""
    keep = jax.random.bernoulli(rng, 0.75, batch["x"].shape)
    x = jax.numpy.where(keep, batch["x"], 0).astype(params["b"].dtype)
    predicted = (x * params["w"]).sum(axis=1) + (x @ params["v"].T).sum(axis=1) + params["b"]
    return ((predicted - batch["y"]) ** 2).astype("float32")


def with_state(params: Any, model_state: Any, batch: Any, rng: Any) -> Outcome:
    """The same, with a metric and a model state that counts its microbatches."""
    loss = dropped_error(params, batch, rng)
    return Outcome(loss, {"id": batch["id"].astype("float32")}, {"seen": model_state["seen"] + 1})


class Whole(NamedTuple):
    """What is compared of a run.

    Args:
      leaves: of the state as one device has it: shape, dtype and bytes by name.
      steps: metrics of each step, but for times.
      rows: ids of each batch that was read.
    """

    leaves: dict[str, tuple[Any, ...]]
    steps: dict[int, dict[str, str]]
    rows: list[list[int]]


def make_trainer(
    *, scheme: Scheme = "global_view", placement: Placement = "replicated", accumulation: int = 1,
    precision: Precision = "float32", devices: int = 4, stateful: bool = True,
) -> Trainer:  # fmt: skip
    """Adam whose rate falls at every step, so that a lost count shows, and a moving average."""
    options = Parallel(
        scheme, placement=placement, accumulation=accumulation, precision=precision, ema_decay=0.9, nonfinite="skip"
    )
    optimizer = optax.adam(optax.linear_schedule(0.1, 0.01, STEPS))
    loss = with_state if stateful else dropped_error
    return Trainer(task(loss), optimizer, devices=devices, parallel=options)


def new_state(trainer: Trainer, *, seed: int = 7) -> Any:
    params = {"w": np.full(8, 0.5, np.float32), "v": np.ones((3, 8), np.float32), "b": np.zeros((), np.float32)}
    stateful = trainer.spec.task.name == with_state.__name__
    return trainer.init(params, model_state={"seen": np.zeros((), np.int32)} if stateful else None, seed=seed)


def leaves_of(trainer: Trainer, state: Any) -> dict[str, tuple[Any, ...]]:
    """Each leaf of the state as one device has it, keys and all."""
    leaves = {name: np.asarray(_data(leaf)) for name, leaf in named_leaves(trainer.single(state))}
    return {name: (leaf.shape, str(leaf.dtype), leaf.tobytes()) for name, leaf in leaves.items()}


def _data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def step_values(run: Any) -> dict[int, dict[str, str]]:
    """Metrics by step of a run folder, of a step that was computed twice the later ones; without times.

    As hexadecimal floats: a NaN, which a float16 step that overflows leaves, is equal to itself then.
    """
    steps = [event for event in read_run(run).events if event.kind == "step"]
    return {
        event.step: {key: float(value).hex() for key, value in event.values.items() if not key.startswith(TIMES)}
        for event in steps
    }


fit_options = functools.partial(dict, batch=BATCH, seed=2)


def unbroken(trainer: Trainer, run: Any, *, steps: int = STEPS, data: Any = None, **options: Any) -> Whole:
    """In one call, without a checkpoint."""
    source = NotedRows() if data is None else data
    state, _ = trainer.fit(new_state(trainer), source, steps=steps, run=run, **(fit_options() | options))
    return Whole(leaves_of(trainer, state), step_values(run), source.asked)


def in_two_parts(
    first: Trainer, second: Trainer, run: Any, *, at: int = BREAK, steps: int = STEPS, data: Any = NotedRows,
    **options: Any,
) -> Whole:  # fmt: skip
    """Saved at a step and gone on from there by another trainer, whose own state is of another seed."""
    both = {"checkpoints": Checkpoints(), "run": run, **(fit_options() | options)}
    before, after = data(), data()
    first.fit(new_state(first), before, steps=at, **both)
    state, report = second.fit(new_state(second, seed=99), after, steps=steps, resume=True, **both)
    assert (report.resumed_at, report.steps, report.last_step) == (at, steps - at, steps)
    return Whole(leaves_of(second, state), step_values(run), before.asked + after.asked)
