"""The layers of the models whose scaling was published: parameters and forward operations of each, in closed form.

Owns: `Layer`, the tables of ResNet, Inception 3, VGG 16, AlexNet and GPT.
Not here: when a layer runs (`published.schedules`), how long it takes.
Invariant: in forward order; totals are those of the papers (a test compares).

A multiply-add is two operations. Backward costs twice the forward of a layer: once for its input, once for its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """Parameters, and forward operations for one row (an image, a sequence)."""

    name: str
    parameters: float
    forward_flops: float


def _convolution(name: str, *, kernel: int | tuple[int, int], channels: tuple[int, int], size: int) -> Layer:
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    weights = height * width * channels[0] * channels[1]
    return Layer(name, weights + channels[1], 2.0 * weights * size * size)


def _dense(name: str, inputs: int, outputs: int) -> Layer:
    return Layer(name, inputs * outputs + outputs, 2.0 * inputs * outputs)


def resnet(blocks: tuple[int, int, int, int]) -> tuple[Layer, ...]:
    """Bottleneck residual network, 224 pixels, stride in the first 1x1 convolution.

    Source: arXiv 1512.03385, table 1.
    """
    layers = [_convolution("conv1", kernel=7, channels=(3, 64), size=112)]
    inputs = 64
    for stage, (count, width, size) in enumerate(
        zip(blocks, (64, 128, 256, 512), (56, 28, 14, 7), strict=True), start=2
    ):
        for block in range(count):
            name = f"conv{stage}_{block + 1}"
            layers.append(_convolution(f"{name}a", kernel=1, channels=(inputs, width), size=size))
            layers.append(_convolution(f"{name}b", kernel=3, channels=(width, width), size=size))
            layers.append(_convolution(f"{name}c", kernel=1, channels=(width, 4 * width), size=size))
            if block == 0:
                layers.append(_convolution(f"{name}s", kernel=1, channels=(inputs, 4 * width), size=size))
            inputs = 4 * width
    return (*layers, _dense("fc", 2048, 1000))


def vgg16() -> tuple[Layer, ...]:
    """Source: arXiv 1409.1556, configuration D; 224 pixels."""
    layers: list[Layer] = []
    inputs, size = 3, 224
    for stage, (count, width) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), start=1):
        for index in range(count):
            name = f"conv{stage}_{index + 1}"
            layers.append(_convolution(name, kernel=3, channels=(inputs, width), size=size))
            inputs = width
        size //= 2
    dense = (_dense("fc6", 512 * 49, 4096), _dense("fc7", 4096, 4096), _dense("fc8", 4096, 1000))
    return (*layers, *dense)


def alexnet() -> tuple[Layer, ...]:
    """One-column form, 224 pixels, as TensorFlow's benchmark has it. Source: arXiv 1404.5997, section 4."""
    sizes = (("conv1", 11, (3, 64), 55), ("conv2", 5, (64, 192), 27), ("conv3", 3, (192, 384), 13))
    sizes += (("conv4", 3, (384, 256), 13), ("conv5", 3, (256, 256), 13))
    layers = [_convolution(name, kernel=kernel, channels=ch, size=size) for name, kernel, ch, size in sizes]
    dense = (_dense("fc6", 256 * 36, 4096), _dense("fc7", 4096, 4096), _dense("fc8", 4096, 1000))
    return (*layers, *dense)


def inception3() -> tuple[Layer, ...]:
    """Eleven modules after the stem, 299 pixels, without the auxiliary head. Source: arXiv 1512.00567, table 1.

    Modules are lumped: parameters and operations of each are the sums over its branches.
    """
    stem = (
        _convolution("stem1", kernel=3, channels=(3, 32), size=149),
        _convolution("stem2", kernel=3, channels=(32, 32), size=147),
        _convolution("stem3", kernel=3, channels=(32, 64), size=147),
        _convolution("stem4", kernel=1, channels=(64, 80), size=73),
        _convolution("stem5", kernel=3, channels=(80, 192), size=71),
    )
    a = [
        _module(f"mixed5{name}", _branches_a(inputs, pool), size=35)
        for name, inputs, pool in zip("bcd", (192, 256, 288), (32, 64, 64), strict=True)
    ]
    narrow = [
        _module("mixed6a", ((9, 288, 384), (1, 288, 64), (9, 64, 96)), size=35),
    ]
    narrow[0] = _reduced_a()
    b = [
        _module(f"mixed6{name}", _branches_b(width), size=17)
        for name, width in zip("bcde", (128, 160, 160, 192), strict=True)
    ]
    c = [_module(f"mixed7{name}", _branches_c(inputs), size=8) for name, inputs in zip("bc", (1280, 2048), strict=True)]
    return (*stem, *a, *narrow, *b, _reduced_b(), *c, _dense("fc", 2048, 1000))


def _module(name: str, branches: tuple[tuple[int, int, int], ...], *, size: int) -> Layer:
    """Of convolutions (taps of the kernel, channels in, channels out) at one size."""
    weights = sum(taps * inputs * outputs for taps, inputs, outputs in branches)
    biases = sum(outputs for _, _, outputs in branches)
    return Layer(name, weights + biases, 2.0 * weights * size * size)


def _branches_a(inputs: int, pool: int) -> tuple[tuple[int, int, int], ...]:
    five = ((1, inputs, 48), (25, 48, 64))
    three = ((1, inputs, 64), (9, 64, 96), (9, 96, 96))
    return ((1, inputs, 64), *five, *three, (1, inputs, pool))


def _branches_b(width: int) -> tuple[tuple[int, int, int], ...]:
    seven = ((1, 768, width), (7, width, width), (7, width, 192))
    twice = ((1, 768, width), (7, width, width), (7, width, width), (7, width, width), (7, width, 192))
    return ((1, 768, 192), *seven, *twice, (1, 768, 192))


def _branches_c(inputs: int) -> tuple[tuple[int, int, int], ...]:
    three = ((1, inputs, 384), (3, 384, 384), (3, 384, 384))
    double = ((1, inputs, 448), (9, 448, 384), (3, 384, 384), (3, 384, 384))
    return ((1, inputs, 320), *three, *double, (1, inputs, 192))


def _reduced_a() -> Layer:
    """From 35 to 17 pixels: the last convolution of each branch has stride 2."""
    small = _module("", ((9, 288, 384), (9, 96, 96)), size=17)
    large = _module("", ((1, 288, 64), (9, 64, 96)), size=35)
    return Layer("mixed6a", small.parameters + large.parameters, small.forward_flops + large.forward_flops)


def _reduced_b() -> Layer:
    """From 17 to 8 pixels."""
    small = _module("", ((9, 192, 320), (9, 192, 192)), size=8)
    large = _module("", ((1, 768, 192), (1, 768, 192), (7, 192, 192), (7, 192, 192)), size=17)
    return Layer("mixed7a", small.parameters + large.parameters, small.forward_flops + large.forward_flops)


@dataclass(frozen=True)
class GPT:
    """Width, blocks, and tokens of a sequence."""

    blocks: int
    width: int
    vocabulary: int = 50_368
    tokens: int = 2048

    def layers(self) -> tuple[Layer, ...]:
        """Embedding, blocks, and the output that shares the embedding's weights (so that it has none of its own).

        A block has 12 d^2 parameters; a token costs 2 operations a parameter, and 4 s d for scores and values.
        Source: arXiv 2001.08361, table 1; llm-foundry's benchmarking page counts the same.
        """
        weights = 12.0 * self.width**2
        attention = 4.0 * self.tokens * self.width
        block = Layer("block", weights, self.tokens * (2 * weights + attention))
        table = float(self.vocabulary * self.width)
        embedding = Layer("embedding", table + self.tokens * self.width, 0.0)
        return (embedding, *(block,) * self.blocks, Layer("output", 0.0, self.tokens * 2 * table))


_GPT = {
    "mpt-125m": GPT(12, 768),
    "mpt-350m": GPT(24, 1024),
    "mpt-760m": GPT(24, 1536),
    "mpt-1.3b": GPT(24, 2048),
    "mpt-2.7b": GPT(32, 2560),
    "mpt-6.7b": GPT(32, 4096),
    "mpt-13b": GPT(40, 5120),
}

MODELS: Mapping[str, Callable[[], tuple[Layer, ...]]] = {
    "resnet50": lambda: resnet((3, 4, 6, 3)),
    "resnet101": lambda: resnet((3, 4, 23, 3)),
    "resnet152": lambda: resnet((3, 8, 36, 3)),
    "inception3": inception3,
    "vgg16": vgg16,
    "alexnet": alexnet,
    **{name: model.layers for name, model in _GPT.items()},
}
