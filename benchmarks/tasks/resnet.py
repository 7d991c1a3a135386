"""ResNet-50 on synthetic images (He et al. 2016, version 1.5: the stride is in the 3x3 convolution).

    paceline plan benchmarks/tasks/resnet.py --on 8xH100 --batch 1024 --scheme per_device --precision bfloat16

Hardware: planned for GPUs. Result: 25.6 M parameters, 4.1 G multiply-adds an image of 224 x 224 forward.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax import Array

import paceline
from paceline.data.synthetic import Synthetic


@dataclass(frozen=True)
class Options:
    """Options of the task.

    Args:
      side: of an image in pixels.
      blocks: in each of the four stages; 3 4 6 3 is ResNet-50, 3 4 23 3 is ResNet-101.
      rows: of the data set.
    """

    side: int = 224
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    rows: int = 1_281_167


class Bottleneck(nnx.Module):
    """1x1, 3x3 with the stride, 1x1 to four times the width: ``[b, h, w, c] -> [b, h/s, w/s, 4 * width]``."""

    def __init__(self, channels: int, width: int, *, stride: int, rngs: nnx.Rngs) -> None:
        conv = functools.partial(nnx.Conv, use_bias=False, rngs=rngs)
        self.convs = nnx.List(
            [
                conv(channels, width, (1, 1)),
                conv(width, width, (3, 3), strides=stride),
                conv(width, 4 * width, (1, 1)),
            ]
        )
        self.norms = nnx.List([nnx.BatchNorm(size, momentum=0.9, rngs=rngs) for size in (width, width, 4 * width)])
        changed = stride != 1 or channels != 4 * width
        self.shortcut = conv(channels, 4 * width, (1, 1), strides=stride) if changed else None
        self.shortcut_norm = nnx.BatchNorm(4 * width, momentum=0.9, rngs=rngs) if changed else None

    def __call__(self, x: Array) -> Array:
        y = x
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            y = nnx.relu(y) if number < 2 else y
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return nnx.relu(x + y)


class ResNet(nnx.Module):
    """``[b, side, side, 3] -> [b, 1000]``."""

    def __init__(self, blocks: Sequence[int], *, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(3, 64, (7, 7), strides=2, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(64, momentum=0.9, rngs=rngs)
        channels, stages = 64, []
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                stages.append(Bottleneck(channels, 64 * 2**stage, stride=stride, rngs=rngs))
                channels = 4 * 64 * 2**stage
        self.blocks = nnx.List(stages)
        self.head = nnx.Linear(channels, 1000, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = nnx.relu(self.norm(self.stem(x)))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(axis=(1, 2)))


def loss(model: Any, batch: dict[str, Array]) -> Array:
    """Cross-entropy of each row, ``[b]``."""
    logits = model(batch["image"].astype(model.head.kernel.dtype) / 127.5 - 1).astype("float32")
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])


def build(options: Options, shape: paceline.RunShape) -> paceline.Job:
    """The job: SGD with Nesterov momentum on synthetic images."""

    def row(random: np.random.Generator) -> dict[str, np.ndarray]:
        image = random.integers(0, 256, (options.side, options.side, 3), dtype=np.uint8)
        return {"image": image, "label": np.int32(random.integers(1000))}

    return paceline.Job(
        task=paceline.from_nnx(lambda rngs: ResNet(options.blocks, rngs=rngs), loss, name="resnet"),
        optimizer=optax.chain(
            optax.add_decayed_weights(1e-4, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)),
            optax.sgd(0.1 * shape.batch / 256, momentum=0.9, nesterov=True),
        ),
        data=Synthetic(row, options.rows),
    )


recipe = paceline.Recipe(build=build, options=Options, batch=256, summary="ResNet-50 on synthetic images")
