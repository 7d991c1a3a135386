"""A decoder-only transformer on synthetic tokens (Radford et al. 2019: pre-norm, GELU, learned positions, tied output).

    paceline plan benchmarks/tasks/gpt.py --on 8xH100 --batch 64 --scheme per_device --precision bfloat16 --size 124M

Hardware: planned for GPUs. Result: 124 M or 1.3 B parameters; 6 N + 12 L d s floating-point operations a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import paceline
from paceline.data.synthetic import Synthetic

VOCABULARY = 50304
"""GPT-2's 50257, padded to a multiple of 64."""


class Shape(NamedTuple):
    """Layers L, width d, heads."""

    layers: int
    width: int
    heads: int


SIZES = {"124M": Shape(12, 768, 12), "1.3B": Shape(24, 2048, 16)}


@dataclass(frozen=True)
class Options:
    """Options of the task.

    Args:
      size: of the model.
      context: tokens s of a row.
      remat: compute the activations of a layer anew in the backward pass.
      rows: of the data set.
    """

    size: Literal["124M", "1.3B"] = "124M"
    context: int = 1024
    remat: bool = False
    rows: int = 1_000_000


def init(rng: Array, *, shape: Shape, context: int) -> dict[str, Any]:
    """Parameters; those of the layers are stacked along a leading dim L, so that one scan runs them."""
    layers, width, _ = shape
    keys = iter(jax.random.split(rng, 6))

    def matrix(*size: int) -> Array:
        return 0.02 * jax.random.normal(next(keys), size)

    return {
        "tokens": matrix(VOCABULARY, width),
        "positions": matrix(context, width),
        "norm": jnp.ones(width),
        "layers": {
            "qkv": matrix(layers, width, 3 * width),
            "out": matrix(layers, width, width),
            "up": matrix(layers, width, 4 * width),
            "down": matrix(layers, 4 * width, width),
            "norm1": jnp.ones((layers, width)),
            "norm2": jnp.ones((layers, width)),
        },
    }


def _norm(x: Array, scale: Array) -> Array:
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    return (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def _layer(x: Array, layer: dict[str, Array], *, heads: int) -> Array:
    """``[b, s, d] -> [b, s, d]``."""
    rows, context, width = x.shape
    qkv = _norm(x, layer["norm1"]) @ layer["qkv"]
    q, k, v = (part.reshape(rows, context, heads, width // heads) for part in jnp.split(qkv, 3, axis=-1))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(rows, context, width)
    x = x + mixed @ layer["out"]
    return x + jax.nn.gelu(_norm(x, layer["norm2"]) @ layer["up"]) @ layer["down"]


def make_loss(shape: Shape, *, remat: bool) -> Any:
    """``loss(params, batch) -> [b]``: the mean cross-entropy over the tokens of each row."""

    def loss(params: dict[str, Any], batch: dict[str, Array]) -> Array:
        tokens = batch["tokens"]
        x = params["tokens"][tokens[:, :-1]] + params["positions"]

        def body(x: Array, layer: dict[str, Array]) -> tuple[Array, None]:
            return _layer(x, layer, heads=shape.heads), None

        x, _ = jax.lax.scan(jax.checkpoint(body) if remat else body, x, params["layers"])
        logits = (_norm(x, params["norm"]) @ params["tokens"].T).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean(axis=-1)

    return loss


def build(options: Options, shape: paceline.RunShape) -> paceline.Job:
    """The job: AdamW on synthetic tokens."""
    size = SIZES[options.size]

    def row(random: np.random.Generator) -> dict[str, np.ndarray]:
        return {"tokens": random.integers(0, 50257, options.context + 1, dtype=np.int32)}

    return paceline.Job(
        task=paceline.task(
            make_loss(size, remat=options.remat),
            init=lambda rng: init(rng, shape=size, context=options.context),
            name="gpt",
        ),
        optimizer=optax.adamw(6e-4, b2=0.95, weight_decay=0.1),
        data=Synthetic(row, options.rows),
    )


recipe = paceline.Recipe(build=build, options=Options, batch=64, summary="GPT on synthetic tokens")
