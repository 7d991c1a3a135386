"""The models that the benchmarks train, as plain functions of numpy parameters.

Shapes: B = rows of a batch. A loss gives ``[B]``; Paceline takes it as it is, hand-written steps take its mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

CLASSES = 10


@dataclass(frozen=True)
class Model:
    """A loss, its first parameters and data on the host.

    Args:
      row_loss: ``(params, batch) -> [B]``.
      params: tree of float32 numpy arrays.
      batches: ready batches, ``{"x": [B, ...], "y": int32[B]}``.
    """

    row_loss: Callable[[Any, Any], jax.Array]
    params: Any
    batches: list[dict[str, np.ndarray]]

    @property
    def rows(self) -> int:
        """B."""
        return len(self.batches[0]["y"])

    @property
    def params_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.params))

    def data(self) -> dict[str, np.ndarray]:
        """All batches as one data set."""
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *self.batches)


def mlp(widths: list[int], *, rows: int, num_batches: int = 8) -> Model:
    """tanh layers of these widths, the first of which is the input, and a linear one to the classes."""
    random = np.random.default_rng(0)
    layers = [_dense(random, *pair) for pair in zip(widths, [*widths[1:], CLASSES], strict=True)]
    return Model(_mlp_loss, layers, _batches(random, (widths[0],), rows=rows, num_batches=num_batches))


def conv(channels: list[int], *, side: int, rows: int, num_batches: int = 8) -> Model:
    """3x3 convolutions with stride 2 and relu, mean over the image, linear: images of ``[side, side, channels[0]]``."""
    random = np.random.default_rng(0)
    kernels = [
        random.normal(size=(3, 3, before, after)).astype(np.float32) / np.float32(3 * before**0.5)
        for before, after in itertools.pairwise(channels)
    ]
    params = {"kernels": kernels, "head": _dense(random, channels[-1], CLASSES)}
    shape = (side, side, channels[0])
    return Model(_conv_loss, params, _batches(random, shape, rows=rows, num_batches=num_batches))


def _mlp_loss(params: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return _cross_entropy(params[-1], x, batch["y"])


def _conv_loss(params: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for kernel in params["kernels"]:
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x)
    return _cross_entropy(params["head"], x.mean((1, 2)), batch["y"])


def _cross_entropy(head: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(x @ head["w"] + head["b"], labels)


def _dense(random: np.random.Generator, before: int, after: int) -> dict[str, np.ndarray]:
    kernel = random.normal(size=(before, after)).astype(np.float32) / np.float32(before**0.5)
    return {"w": kernel, "b": np.zeros(after, np.float32)}


def _batches(
    random: np.random.Generator, shape: tuple[int, ...], *, rows: int, num_batches: int
) -> list[dict[str, np.ndarray]]:
    return [
        {
            "x": random.normal(size=(rows, *shape)).astype(np.float32),
            "y": random.integers(0, CLASSES, rows).astype(np.int32),
        }
        for _ in range(num_batches)
    ]
