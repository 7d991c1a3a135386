"""One update of a linear model in numpy, and the same model as tasks in every form of a loss.

Owns: the model, its gradient by hand, clipping, momentum, Adam and the moving average, all in float64; what the sums
would be without cancellation, of which rounding is a share.
Not here: anything of the engine; expected values are made of these lines and the state before the update alone.

Shapes: B = rows of the batch. Parameters are w [8] and v [3, 8], which 2, 4 and 8 devices can split, and a scalar b;
rows are x [B, 8], z [B, 3], y [B] and weight [B].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import optax

from paceline.tasks.losses import Outcome, Weighted

RATE, MOMENTUM, CLIP, DECAY = 0.05, 0.9, 0.3, 0.9
SGD = optax.sgd(RATE, momentum=MOMENTUM)
ADAM = optax.adam(RATE)

Leaves = dict[str, np.ndarray]


def square_error(params: Any, batch: Any) -> Any:
    predicted = ((batch["z"] @ params["v"] + params["w"]) * batch["x"]).sum(axis=1) + params["b"]
    return (predicted - batch["y"]) ** 2


def as_rows(params: Any, batch: Any) -> Any:
    return square_error(params, batch)


def as_weighted_rows(params: Any, batch: Any) -> Weighted:
    return Weighted(batch["weight"] * square_error(params, batch), batch["weight"])


def as_weighted_sum(params: Any, batch: Any) -> Weighted:
    """Scalars, with a nominal weight that is not the true one."""
    rows = as_weighted_rows(params, batch)
    return Weighted(rows.total.sum(), rows.weight.sum(), nominal=3.0 * batch["weight"].size)


def as_mean(params: Any, batch: Any) -> Any:
    return square_error(params, batch).mean()


def counting(form: Any) -> Any:
    """The full signature, with a model state that counts its microbatches."""

    def loss(params: Any, model_state: Any, batch: Any, rng: Any) -> Outcome:
        return Outcome(form(params, batch), {}, {"microbatches": model_state["microbatches"] + 1})

    return loss


LOSSES = {form.__name__: counting(form) for form in (as_rows, as_weighted_rows, as_weighted_sum, as_mean)}
MASKABLE = ("as_rows", "as_weighted_rows")
WEIGHTED = ("as_weighted_rows", "as_weighted_sum")


def start_params(dtype: str) -> Leaves:
    draw = np.random.default_rng(5)
    shapes = {"w": (8,), "v": (3, 8), "b": ()}
    return {name: draw.uniform(-0.25, 0.25, shape).astype(dtype) for name, shape in shapes.items()}


class Mean(NamedTuple):
    """The mean loss over what counts, and its gradient; both 0 where nothing does."""

    loss: float
    gradient: Leaves


def mean_square(params: Leaves, batch: Leaves, counted: np.ndarray) -> Mean:
    """Mean of the squared errors with weights `counted` [B]."""
    x, z = batch["x"], batch["z"]
    error = x @ params["w"] + np.einsum("bi,ij,bj->b", z, params["v"], x) + params["b"] - batch["y"]
    share = counted / (counted.sum() or 1.0)
    slope = 2 * share * error
    gradient = {"w": x.T @ slope, "v": np.einsum("b,bi,bj->ij", slope, z, x), "b": slope.sum()}
    return Mean((share * error**2).sum(), gradient)


def largest_terms(params: Leaves, batch: Leaves, counted: np.ndarray) -> Mean:
    """The same sums without any cancellation: rounding is a small share of these, even where the result is 0."""
    positive = {name: np.abs(leaf) for name, leaf in batch.items()} | {"y": -np.abs(batch["y"])}
    return mean_square({name: np.abs(leaf) for name, leaf in params.items()}, positive, counted)


def global_norm(gradient: Leaves) -> float:
    return float(np.sqrt(sum((leaf**2).sum() for leaf in gradient.values())))


def clipped(gradient: Leaves) -> Leaves:
    factor = min(1.0, CLIP / (global_norm(gradient) or 1.0))
    return {name: factor * leaf for name, leaf in gradient.items()}


def descend(params: Leaves, moments: Any, gradient: Leaves) -> tuple[Leaves, dict[str, Leaves]]:
    """Parameters and trace after one update with momentum."""
    trace = {name: leaf + MOMENTUM * moments.trace[name] for name, leaf in gradient.items()}
    return {name: params[name] - RATE * leaf for name, leaf in trace.items()}, {"trace": trace}


def adapt(params: Leaves, moments: Any, gradient: Leaves) -> tuple[Leaves, dict[str, Leaves]]:
    """Parameters and moments after one update of Adam."""
    count = int(moments.count) + 1
    first = {name: 0.9 * moments.mu[name] + 0.1 * leaf for name, leaf in gradient.items()}
    second = {name: 0.999 * moments.nu[name] + 0.001 * leaf**2 for name, leaf in gradient.items()}

    def move(name: str) -> np.ndarray:
        return RATE * first[name] / (1 - 0.9**count) / (np.sqrt(second[name] / (1 - 0.999**count)) + 1e-8)

    return {name: params[name] - move(name) for name in params}, {"mu": first, "nu": second}


def averaged(ema: Leaves, params: Leaves) -> Leaves:
    return {name: DECAY * ema[name] + (1 - DECAY) * leaf for name, leaf in params.items()}
