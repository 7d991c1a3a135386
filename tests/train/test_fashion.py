"""The right value on real data: softmax regression on Fashion-MNIST, for every scheme and number of devices.

Truth, from a loop of plain JAX on one device: zero parameters, inputs / 255, SGD 0.1 with momentum 0.9, batch 480, one
epoch in the order of `numpy.random.default_rng(0).permutation(60000)`: test accuracy 0.8183.
"""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.data.images import find_idx_pair, read_idx
from tests.train.linear import SCHEMES, trainer_of

FOLDER = Path("/usr/share/datasets/fashion-mnist")

pytestmark = [
    pytest.mark.skipif(
        not FOLDER.is_dir(), reason=f"{FOLDER} is not there: apt-get install dataset-fashion-mnist (Debian)"
    ),
    pytest.mark.once(reason="what an epoch reaches follows from its updates, which tests/engine proves at both ends"),
]


@pytest.fixture(scope="session")
def fashion():
    """(training rows in the order of the truth, test rows); uint8 images of 784 pixels."""
    splits = []
    for split in ("train", "test"):
        images, labels = (read_idx(path) for path in find_idx_pair(FOLDER, split))
        splits.append({"image": images.reshape(len(images), 784), "label": labels.astype(np.int32)})
    order = np.random.default_rng(0).permutation(60_000)
    return {name: leaf[order] for name, leaf in splits[0].items()}, splits[1]


def softmax_regression(params, batch):
    logits = (batch["image"] / 255) @ params["w"] + params["b"]
    rows = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return rows, {"accuracy": jnp.argmax(logits, axis=-1) == batch["label"]}


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_epoch_reaches_the_accuracy_of_plain_jax(fashion, scheme, devices):
    """125 steps: 8183 of 10,000 test images, give or take the one that rounding of sums may move."""
    train, test = fashion
    trainer = trainer_of(softmax_regression, devices=devices, optimizer=optax.sgd(0.1, momentum=0.9), scheme=scheme)
    state = trainer.init({"w": np.zeros((784, 10), np.float32), "b": np.zeros(10, np.float32)})
    state, report = trainer.fit(state, train, batch=480, epochs=1, shuffle=False)
    result = trainer.evaluate(state, test, batch=2000)
    assert (report.steps, report.rows_seen, report.rows_dropped, result["rows"]) == (125, 60_000, 0, 10_000)
    assert result["accuracy"] == pytest.approx(0.8183, abs=1e-4)
