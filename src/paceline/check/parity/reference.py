"""What an update must be, computed on one device straight from its definition.

    g = (sum over valid rows of w * grad loss) / (sum of w);   params <- optimizer(clip(g))

Owns: the definition, for a batch taken whole, in microbatches, or in the groups that devices with BatchNorm of their
own see; the same with one known fault planted (`check.parity.faults`).
Not here: anything of the engine's reductions, microbatches, update or schemes, which it is there to prove.
Invariant: no collective, no mesh, no sharding; a group is a slice of rows.

Shapes: K = groups, n = microbatches, b = B / K / n rows of one of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from paceline.base.errors import LossError
from paceline.check.parity.problem import Batch, Problem
from paceline.check.parity.trace import Trace, flatten, kind_of, words
from paceline.engine.precision import cast_floats, is_float, is_key
from paceline.engine.rng import base_key, positional_key, step_key
from paceline.engine.usercode import user_code, with_data_axis
from paceline.tasks.losses import Outcome, Totals, totals
from paceline.tasks.tree import map_named, named_leaves

_NUDGES = 3
"""The rounding of a leaf of one number is 0 by chance now and then."""


class Local(NamedTuple):
    """What each of the K groups makes of its rows; every leaf has a leading dim K.

    Args:
      gradients: of the summed loss, not divided by anything.
      totals: total and weight of the loss (key ``loss``) and of every metric.
      states: model state after the group's microbatches.
      union: running statistics of the rows of all groups, by name (no leading dim).
    """

    gradients: Any
    totals: dict[str, Totals]
    states: Any
    union: dict[str, Array]


class Update(NamedTuple):
    """What the optimizer is given, and what is reported."""

    gradients: Any
    loss: Array
    metrics: dict[str, Array]
    model_state: Any


Clip = Callable[[Any], Any]
Combine = Callable[[Local, Clip], Update]
"""How the K groups become one update; the right way is `combine`, a fault is another."""


class Carry(NamedTuple):
    """The state of a reference run."""

    params: Any
    opt_state: Any
    model_state: Any
    ema: Any


@dataclass(frozen=True)
class Split:
    """How rows are taken: in `groups` groups (1: all together), each in so many microbatches."""

    groups: int = 1
    microbatches: int = 1


def combine(local: Local, clip: Clip) -> Update:
    """The definition: sums over sums, then the clip."""
    weight = local.totals["loss"].weight.sum()
    safe = jnp.where(weight == 0, jnp.ones_like(weight), weight)
    gradients = clip(jax.tree.map(lambda leaf: leaf.sum(0) / safe.astype(leaf.dtype), local.gradients))
    means = {name: total_mean(total) for name, total in local.totals.items()}
    loss = means.pop("loss")
    return Update(gradients, loss, means, merged_state(local))


def averaged(local: Local, clip: Clip) -> Update:
    """As `combine`, but with the mean of the groups' variances in place of the variance of the union: a fault."""
    return combine(local._replace(union={}), clip)


def total_mean(total: Totals) -> Array:
    """Sum of totals over sum of weights."""
    return Totals(total.total.sum(0), total.weight.sum(0)).mean()


def merged_state(local: Local) -> Any:
    """Declared statistics as those of the union; other floats averaged, anything else its largest value."""

    def merge(name: str, leaf: Array) -> Array:
        if name in local.union:
            return local.union[name].astype(leaf.dtype)
        if is_float(leaf):
            return leaf.mean(0)
        return leaf[0] if is_key(leaf) else leaf.max(0)

    return map_named(merge, local.states)


@dataclass(frozen=True, eq=False)
class Reference:
    """One way to compute the updates of a problem on one device.

    Args:
      split: how the rows are taken.
      combine: `combine`, or a fault.
      own_keys: every group draws from the step's key as if its rows were the whole batch: the fault of a shared mask.
      prepare: changes optimizer state and gradients before the optimizer: the fault of a wrong count.
    """

    problem: Problem
    split: Split = Split()
    combine: Combine = combine
    own_keys: bool = False
    prepare: Callable[[Any, Array], Any] = lambda opt_state, update: opt_state

    def run(self, problem: Problem | None = None) -> Trace:
        """The updates, one after the other.

        Args:
          problem: the same with other numbers (`Problem.nudged`), for the same program.
        Raises: LossError: a loss that is not finite, which nothing can be compared with. TaskError: it does not trace.
        """
        problem = problem or self.problem
        step = self.program
        carry = self.start(problem)
        trace = []
        with user_code(f"the loss of task {problem.task.name!r}"):
            for update, batch in enumerate(problem.batches):
                carry, done = step(carry, batch, jnp.asarray(update, jnp.int32))
                trace.append(_observed(carry, done))
                _check_finite(trace[-1], problem.task.name, update=update + 1)
        return trace

    @functools.cached_property
    def trace(self) -> Trace:
        """The updates of the problem itself, run once. Under the x64 setting of the problem, as `run`."""
        return self.run()

    def nudged(self, eps: float) -> list[Trace]:
        """The updates from starts that are moved by the rounding of a type, a few times."""
        return [self.run(self.problem.nudged(eps, seed=seed)) for seed in range(_NUDGES)]

    @functools.cached_property
    def program(self) -> Any:
        """The jitted update ``(carry, batch, number) -> (carry, what was done)``."""
        return jax.jit(self._step)

    def text(self) -> str:
        """The program as it is traced now, with its constants: the same each time, unless it depends on the host."""
        arguments = (self.start(self.problem), self.problem.batches[0], jnp.zeros((), jnp.int32))
        with user_code(f"the loss of task {self.problem.task.name!r}"):
            jaxpr = jax.make_jaxpr(lambda *given: self._step(*given))(*arguments)
        return f"{jaxpr.jaxpr} {[words(constant).tobytes() for constant in jaxpr.consts]}"

    @staticmethod
    def start(problem: Problem) -> Carry:
        """The state before the first update."""
        params, model_state = jax.tree.map(jnp.asarray, (problem.params, problem.model_state))
        ema = None if problem.parallel.ema_decay is None else params
        return Carry(params, problem.optimizer.init(params), model_state, ema)

    def _step(self, carry: Carry, batch: Batch, update: Array) -> tuple[Carry, Update]:
        problem = self.problem
        local = self._local(carry, batch, update)
        done = self.combine(local, self._clip)
        optimizer = optax.with_extra_args_support(problem.optimizer)
        opt_state = self.prepare(carry.opt_state, update)
        changes, opt_state = optimizer.update(
            done.gradients, opt_state, carry.params, value=done.loss, grad=done.gradients
        )
        params = optax.apply_updates(carry.params, changes)
        decay = problem.parallel.ema_decay
        ema = None if decay is None else jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, carry.ema, params)
        after = Carry(params, opt_state, done.model_state, ema)
        # A batch of which no row has any weight says nothing: no momentum, no weight decay, no count.
        applied = local.totals["loss"].weight.sum() > 0
        return jax.tree.map(functools.partial(jnp.where, applied), after, carry), done

    def _clip(self, gradients: Any) -> Any:
        limit = self.problem.parallel.clip_norm
        if limit is None:
            return gradients
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradients)))
        factor = jnp.minimum(1.0, limit / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), gradients)

    def _local(self, carry: Carry, batch: Batch, update: Array) -> Local:
        """Every group's part: microbatches one after the other, groups beside each other."""
        count, groups = self.split.microbatches, self.split.groups
        key = step_key(base_key(self.problem.seed), update)
        parts = jax.tree.map(functools.partial(_parts, groups=groups, count=count), batch)
        states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (groups, *leaf.shape)), carry.model_state)
        union = dict(named_leaves(carry.model_state)) if self.problem.task.statistics else {}
        sums: Any = None
        for index in range(count):
            rows = jax.tree.map(lambda leaf, index=index: leaf[index], parts)
            before, (part, states) = states, self._microbatch(carry.params, states, rows, key, index)
            union = self._union(union, before, states)
            sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
        declared = {name for entry in self.problem.task.statistics for name in (entry.mean, entry.variance)}
        return Local(sums[0], sums[1], states, {name: union[name] for name in declared})

    def _microbatch(self, params: Any, states: Any, batch: Batch, key: Array, index: int) -> tuple[Any, Any]:
        """Microbatch `index` of every group, by `lax.map`: one copy of the model in the program."""
        problem, groups, count = self.problem, self.split.groups, self.split.microbatches
        rows = batch.valid.shape[1]

        def group(item: tuple[Array, Any, Any, Array]) -> tuple[Any, Any]:
            number, state, own, mask = item
            own_key = key
            if groups * count > 1 and not self.own_keys:
                start = (number * rows * count + index).astype(jnp.uint32)
                own_key = positional_key(key, rows=rows, start=start, stride=count)
            return _differentiate(problem, params, state, own, mask, own_key)

        items = (jnp.arange(groups), states, batch.rows, batch.valid)
        if groups == 1:
            return jax.tree.map(lambda leaf: leaf[None], group(jax.tree.map(lambda leaf: leaf[0], items)))
        return lax.map(group, items)

    def _union(self, union: dict[str, Array], before: Any, after: Any) -> dict[str, Array]:
        """Running statistics after one more microbatch, of the rows of all groups (law of total variance)."""
        old, new = dict(named_leaves(before)), dict(named_leaves(after))
        merged = dict(union)
        for entry in self.problem.task.statistics:
            keep = entry.momentum
            means, variances = ((new[name] - keep * old[name]) / (1 - keep) for name in (entry.mean, entry.variance))
            merged[entry.mean] = keep * union[entry.mean] + (1 - keep) * means.mean(0)
            variance = variances.mean(0) + means.var(0)
            merged[entry.variance] = keep * union[entry.variance] + (1 - keep) * variance
        return merged


def _check_finite(values: Mapping[str, np.ndarray], task: str, *, update: int) -> None:
    """Raise LossError for a loss or gradient that is not finite on one device."""
    for name, value in values.items():
        if kind_of(name) in ("loss", "gradient") and not np.isfinite(value).all():
            raise LossError(
                what=f"{name} of task {task!r} is not finite at update {update} on one device",
                why="nothing can be compared with a number that is not finite",
                fix="lower the learning rate; if the data holds it, paceline train names its leaf and row",
            )


def _parts(leaf: Array, *, groups: int, count: int) -> Array:
    """``[B, ...]`` to ``[n, K, b, ...]``: group k holds rows kB/K to (k+1)B/K, microbatch j of it each n-th from j."""
    leaf = jnp.asarray(leaf)
    rows = leaf.shape[0] // (groups * count)
    return jnp.moveaxis(leaf.reshape(groups, rows, count, *leaf.shape[1:]), 2, 0)


def _differentiate(problem: Problem, params: Any, model_state: Any, rows: Any, mask: Array, key: Array) -> Any:
    """``((gradients of the summed loss, totals), model state)`` of one group."""
    precision = problem.parallel.precision
    bound = with_data_axis(problem.task, params, model_state, rows, key, fields=("loss",))
    size = mask.shape[0]

    def total(params: Any) -> tuple[Array, tuple[dict[str, Totals], Any]]:
        outcome = bound.loss(cast_floats(params, precision), model_state, cast_floats(rows, precision), key)
        sums = outcome_sums(outcome, mask)
        state = jax.tree.map(lambda new, old: jnp.asarray(new).astype(old.dtype), outcome.model_state, model_state)
        return sums["loss"].total / size, (sums, state)  # near 1, so that float16 holds its gradient

    gradients, (sums, state) = jax.grad(total, has_aux=True)(params)
    return (jax.tree.map(lambda leaf: leaf * size, gradients), sums), state


def outcome_sums(outcome: Outcome, mask: Array) -> dict[str, Totals]:
    """Total and weight of the loss and of every metric."""
    values = {"loss": outcome.loss, **outcome.metrics}
    return {name: totals(value, mask, name=name) for name, value in values.items()}


def _observed(carry: Carry, done: Update) -> dict[str, np.ndarray]:
    return flatten(loss=done.loss, gradient=done.gradients, metrics=done.metrics, **carry._asdict())
