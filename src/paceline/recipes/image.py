"""Image classification with a small residual network (He et al. 2016) with BatchNorm.

    paceline train image --simulate 4                                    # digits, carried by scikit-learn
    paceline train image --data FASHION_MNIST_FOLDER --epochs 3          # IDX files
    paceline train image --data FOLDER_OF_CLASS_FOLDERS --image-size 64  # png, jpeg, ...

Hardware: any; 4 simulated devices on two cores. Time: see docs/log.md. Result: digits 0.97 or better, Fashion-MNIST
0.88 or better after 3 epochs.

Images are augmented inside the loss by a random shift of each row. The draw has one entry a row, so under the `global`
stream a row is shifted alike for any number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array
from jaxtyping import Float, UInt8

from paceline.engine.schedule import scaled_learning_rate
from paceline.recipes.images import ImageData, load_images
from paceline.recipes.recipe import Job, Recipe, RunShape
from paceline.tasks.adapters.nnx import from_nnx

BASE_BATCH = 256
"""Batch that the default learning rate was tuned with; other batches scale it."""


@dataclass(frozen=True)
class ImageOptions:
    """Options of the image recipe.

    Args:
      data: ``digits``, a folder with Fashion-MNIST's or MNIST's IDX files, or a folder of class-named image folders.
      image_size: side to which the images of an image folder are resized.
      widths: channels of the residual stages; each stage after the first halves the image.
      learning_rate: for a global batch of 256; scaled linearly with the batch.
      warmup_epochs: epochs of linear warm-up.
      weight_decay: on kernels, not on norms and biases.
      max_shift: largest random shift in pixels, in each direction; 0 turns augmentation off. Default: by image size.
    """

    data: str = "digits"
    image_size: int = 32
    widths: tuple[int, ...] = (16, 32, 64)
    learning_rate: float = 0.2
    warmup_epochs: float = 1.0
    weight_decay: float = 1e-4
    max_shift: int | None = None


class Block(nnx.Module):
    """Two 3x3 convolutions with BatchNorm, added to a shortcut: ``[b, h, w, c] -> [b, h/stride, w/stride, width]``."""

    def __init__(self, channels: int, width: int, *, stride: int, rngs: nnx.Rngs) -> None:
        self.conv1 = _conv(channels, width, stride=stride, rngs=rngs)
        self.bn1 = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.conv2 = _conv(width, width, stride=1, rngs=rngs)
        # The last scale starts at zero: a block begins as the identity (Goyal et al. 2017, section 5.1).
        self.bn2 = nnx.BatchNorm(width, momentum=0.9, scale_init=nnx.initializers.zeros_init(), rngs=rngs)
        same = stride == 1 and channels == width
        self.shortcut = None if same else _conv(channels, width, stride=stride, kernel=1, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        """Output of the block."""
        y = nnx.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResidualNet(nnx.Module):
    """Stem, one block a stage, global mean, linear: ``[b, h, w, c] -> [b, classes]``."""

    def __init__(self, channels: int, *, widths: Sequence[int], classes: int, stem_stride: int, rngs: nnx.Rngs) -> None:
        self.stem = _conv(channels, widths[0], stride=stem_stride, rngs=rngs)
        self.bn = nnx.BatchNorm(widths[0], momentum=0.9, rngs=rngs)
        pairs = zip((widths[0], *widths[:-1]), widths, strict=True)
        self.blocks = nnx.List(
            [
                Block(before, after, stride=1 if number == 0 else 2, rngs=rngs)
                for number, (before, after) in enumerate(pairs)
            ]
        )
        self.head = nnx.Linear(widths[-1], classes, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b classes"]:
        """Logits."""
        x = nnx.relu(self.bn(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(axis=(1, 2)))


def shift_rows(rng: Array, images: UInt8[Array, "b h w c"], *, max_shift: int) -> UInt8[Array, "b h w c"]:
    """Each image shifted by its own random offset of up to `max_shift` pixels, black behind it."""
    rows, height, width, channels = images.shape
    edge = ((0, 0), (max_shift, max_shift), (max_shift, max_shift), (0, 0))
    padded = jnp.pad(images, edge)
    offsets = jax.random.randint(rng, (rows, 2), 0, 2 * max_shift + 1)

    def crop(image: Array, offset: Array) -> Array:
        return jax.lax.dynamic_slice(image, (offset[0], offset[1], 0), (height, width, channels))

    return jax.vmap(crop)(padded, offsets)


def classification_loss(max_shift: int) -> Any:
    """``loss(model, batch, rng) -> ([b] cross-entropy, {"accuracy": [b]})``, with random shifts while training."""

    def loss(model: Any, batch: dict[str, Array], rng: Array) -> tuple[Array, dict[str, Array]]:
        images = batch["image"]
        if max_shift and not model.bn.use_running_average:
            images = shift_rows(rng, images, max_shift=max_shift)
        logits = model(images.astype(model.head.kernel.dtype) / 127.5 - 1)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        rows = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return rows, {"accuracy": logits.argmax(-1) == batch["label"]}

    return loss


def build(options: ImageOptions, shape: RunShape) -> Job:
    """The job of the image recipe."""
    images = load_images(options.data, size=options.image_size, seed=0)
    schedule = _schedule(options, shape, images)
    height = images.shape[0]
    max_shift = max(1, height // 14) if options.max_shift is None else options.max_shift

    def model(rngs: nnx.Rngs) -> ResidualNet:
        stem_stride = 2 if height >= 24 else 1
        return ResidualNet(
            images.shape[-1], widths=options.widths, classes=images.classes, stem_stride=stem_stride, rngs=rngs
        )

    return Job(
        task=from_nnx(model, classification_loss(max_shift), name="image"),
        optimizer=optax.chain(
            optax.add_decayed_weights(options.weight_decay, mask=_is_kernel),
            optax.sgd(schedule, momentum=0.9, nesterov=True),
        ),
        data=images.train,
        evaluation=images.test,
        schedule=schedule,
    )


def _schedule(options: ImageOptions, shape: RunShape, images: ImageData) -> Any:
    rows = len(images.train)
    total_steps = shape.num_steps(rows)
    warmup_steps = min(round(options.warmup_epochs * (rows // shape.batch)), total_steps // 2)
    return scaled_learning_rate(
        base_rate=options.learning_rate,
        base_batch=BASE_BATCH,
        batch=shape.batch,
        warmup_steps=warmup_steps,
        total_steps=total_steps,
        decay="cosine",
    )


def _is_kernel(params: Any) -> Any:
    return jax.tree.map(lambda leaf: np.ndim(leaf) > 1, params)


def _conv(channels: int, width: int, *, stride: int, rngs: nnx.Rngs, kernel: int = 3) -> nnx.Conv:
    return nnx.Conv(channels, width, (kernel, kernel), strides=stride, use_bias=False, rngs=rngs)


recipe = Recipe(
    build=build,
    options=ImageOptions,
    batch=128,
    epochs=15,
    name="image",
    summary="images with a small residual network",
)
