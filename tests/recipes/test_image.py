"""The image recipe: augmentation by row, a small network in every scheme, and its accuracy on digits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.engine.parallel import Parallel
from paceline.recipes.find import find_recipe
from paceline.recipes.image import ImageOptions, shift_rows
from paceline.recipes.recipe import RunShape
from paceline.tasks.task import task
from paceline.topology.mesh import data_mesh, split_rows
from paceline.train.trainer import Trainer

SCHEMES = ("global_view", "per_device", "pmap")
IMAGES = np.random.default_rng(0).integers(1, 255, (16, 5, 6, 1), np.uint8)


def numpy_shift(image, *, down, right):
    """The image moved by so many pixels (negative: up, left), black where nothing comes in."""
    moved = np.zeros_like(image)
    height, width = image.shape[:2]
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                moved[y, x] = image[y - down, x - right]
    return moved


def shifts_of(image, moved, max_shift):
    """All (down, right) that turn `image` into `moved`."""
    offsets = range(-max_shift, max_shift + 1)
    return [(a, b) for a in offsets for b in offsets if np.array_equal(numpy_shift(image, down=a, right=b), moved)]


def test_each_row_is_shifted_by_an_offset_of_its_own():
    """16 random images, up to 2 pixels: each is its own numpy shift by one offset, and more than 8 offsets occur."""
    moved = np.asarray(shift_rows(jax.random.key(1), jnp.asarray(IMAGES), max_shift=2))
    assert moved.shape == IMAGES.shape and moved.dtype == np.uint8
    found = [shifts_of(image, shifted, 2) for image, shifted in zip(IMAGES, moved, strict=True)]
    assert all(len(shifts) == 1 for shifts in found)
    assert len({shifts[0] for shifts in found}) > 8


def test_every_offset_occurs_about_equally_often():
    """4,500 draws of 9 offsets: each 500 times, give or take 5 standard deviations (21)."""
    single = np.zeros((4500, 3, 3, 1), np.uint8)
    single[:, 1, 1] = 1  # the one bright pixel lands on the cell of its offset
    moved = np.asarray(shift_rows(jax.random.key(0), jnp.asarray(single), max_shift=1))
    counts = moved.sum(axis=0, dtype=int).ravel()
    assert counts.sum() == 4500
    assert np.abs(counts - 500).max() < 5 * 21


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_row_is_shifted_alike_on_any_number_of_devices(devices):
    """Images split over K devices, under jit: the bytes of one device."""
    split = jax.device_put(IMAGES, split_rows(data_mesh(jax.devices()[:devices])))
    shift = jax.jit(lambda key, images: shift_rows(key, images, max_shift=2))
    np.testing.assert_array_equal(shift(jax.random.key(3), split), shift(jax.random.key(3), jnp.asarray(IMAGES)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_shifts_alike_in_every_scheme(scheme):
    """Two steps whose loss tells the pixels apart, K = 1 and 8: equal losses (rtol 1e-6), unlike in the two steps."""
    code = np.random.default_rng(1).normal(size=IMAGES.shape[1:]).astype(np.float32)

    def loss(params, batch, rng):
        moved = shift_rows(rng, batch, max_shift=2)
        return jnp.sum(moved * code, axis=(1, 2, 3)) + params

    def losses(devices, scheme):
        trainer = Trainer(task(loss), optax.sgd(0.0), devices=devices, parallel=Parallel(scheme))
        state, found = trainer.init(np.float32(0)), []
        for _ in range(2):
            state, metrics = trainer.step(state, IMAGES)
            found.append(metrics.fetch()["loss"])
        return found

    one = losses(1, "global_view")
    assert losses(8, scheme) == pytest.approx(one, rel=1e-6)
    assert one[0] != pytest.approx(one[1], rel=1e-3)


def fit(*, scheme="global_view", devices=4, batch=128, steps=None, epochs=1, **options):
    recipe = find_recipe("image")
    shape = RunShape(batch, steps, epochs, seed=0)
    job = recipe.make_job(ImageOptions(**options), shape)
    trainer = Trainer(job.task, job.optimizer, devices=devices, parallel=Parallel(scheme), schedule=job.schedule)
    length = {"steps": steps} if steps else {"epochs": epochs}
    losses = {}

    def keep(step, values):
        losses.setdefault(step, values.get("train/loss"))

    state, report = trainer.fit(
        trainer.init(), job.data, batch=batch, evaluation=job.evaluation, callbacks=[keep], **length
    )
    return trainer.single(state), report, list(losses.values())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_tiny_network_trains_in_every_scheme(scheme):
    """12 steps of 128 digits, one stage of 4 channels, 4 devices: the loss falls by 0.05, and all 359 are evaluated."""
    state, report, losses = fit(scheme=scheme, steps=12, widths=(4,), warmup_epochs=0.0, learning_rate=1.0)
    assert losses[-1] < losses[0] - 0.05
    assert report.evaluation["evaluate/rows"] == 359
    assert 0 <= report.evaluation["evaluate/accuracy"] <= 1
    assert report.final["train/learning_rate"] < 0.01  # cosine to 0 over the 12 steps
    moved = np.asarray(state.model_state["bn"]["mean"])
    assert np.isfinite(moved).all() and np.abs(moved).max() > 1e-3  # running statistics were kept


@pytest.mark.once(
    reason="what a hyperparameter reaches is no matter of versions; both ends train in every scheme above"
)
@pytest.mark.slow(reason="20 s of training on two cores; the one proof that the defaults reach their accuracy")
def test_the_defaults_reach_their_accuracy_on_digits():
    """15 epochs on 4 devices: 0.97 or better on the 359 test images."""
    _, report, _ = fit(epochs=15)
    assert report.evaluation["evaluate/accuracy"] >= 0.97
