"""Two models that the literature gives floating-point operations for, written plainly.

Owns: ResNet-50 (He et al. 2016, version 1.5: the stride in the 3x3 convolution) without normalisation, which has no
dots or convolutions; a decoder-only transformer (Radford et al. 2019) without norms and biases, its layers in a scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


def resnet_kernels() -> list[jax.ShapeDtypeStruct]:
    """Shapes of the kernels in the order in which `resnet` takes them: 25.5 M parameters."""
    shapes: list[tuple[int, ...]] = [(7, 7, 3, 64)]
    channels = 64
    for blocks, width in STAGES:
        for block in range(blocks):
            shapes += [(1, 1, channels, width), (3, 3, width, width), (1, 1, width, 4 * width)]
            shapes += [(1, 1, channels, 4 * width)] if block == 0 else []
            channels = 4 * width
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [*shapes, (2048, 1000)]]


def resnet(kernels: list[Array], image: Array) -> Array:
    """``[b, 224, 224, 3] -> [b, 1000]``."""
    given = iter(kernels)
    x = jax.nn.relu(_conv(image, next(given), 2))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for stage, (blocks, _) in enumerate(STAGES):
        for block in range(blocks):
            x = _bottleneck(x, given, stride=2 if stage and not block else 1, widens=not block)
    return x.mean((1, 2)) @ next(given)


def _bottleneck(x: Array, kernels: Iterator[Array], *, stride: int, widens: bool) -> Array:
    y = jax.nn.relu(_conv(x, next(kernels), 1))
    y = jax.nn.relu(_conv(y, next(kernels), stride))
    y = _conv(y, next(kernels), 1)
    return jax.nn.relu(y + (_conv(x, next(kernels), stride) if widens else x))


def _conv(x: Array, kernel: Array, stride: int) -> Array:
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )  # fmt: skip


def gpt_parameters(*, layers: int, width: int, vocabulary: int) -> dict[str, Any]:
    """Shapes: N = vocabulary * d + 12 L d^2."""
    sizes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    stacked = {name: jax.ShapeDtypeStruct((layers, *size), jnp.float32) for name, size in sizes.items()}
    return {"tokens": jax.ShapeDtypeStruct((vocabulary, width), jnp.float32), "layers": stacked}


def gpt_loss(params: dict[str, Any], tokens: Array) -> Array:
    """Cross-entropy of the next token, for tokens ``[b, s + 1]``; heads of 64."""
    x = params["tokens"][tokens[:, :-1]]

    def layer(x: Array, kernels: dict[str, Array]) -> tuple[Array, None]:
        rows, context, width = x.shape
        qkv = (part.reshape(rows, context, width // 64, 64) for part in jnp.split(x @ kernels["qkv"], 3, axis=-1))
        x = x + jax.nn.dot_product_attention(*qkv, is_causal=True).reshape(x.shape) @ kernels["out"]
        return x + jax.nn.gelu(x @ kernels["up"]) @ kernels["down"], None

    x, _ = lax.scan(layer, x, params["layers"])
    logits = jax.nn.log_softmax(x @ params["tokens"].T)
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()
