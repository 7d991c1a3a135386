"""The linear recipe: y = 3x + 1 with noise of its own key."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.engine.parallel import Parallel
from paceline.recipes.find import find_recipe
from paceline.recipes.linear import LinearOptions, make_points
from paceline.recipes.recipe import RunShape
from paceline.train.trainer import Trainer


@pytest.mark.parametrize(("scheme", "devices"), [("global_view", 8), ("per_device", 4), ("pmap", 2)])
def test_it_finds_slope_and_intercept(scheme, devices):
    """With its own defaults: w within 0.02 of 3 and b within 0.02 of 1, by the outcome that the report shows."""
    recipe = find_recipe("linear")
    job = recipe.make_job(recipe.options(), RunShape(recipe.batch, None, recipe.epochs, seed=0))
    trainer = Trainer(job.task, job.optimizer, devices=devices, parallel=Parallel(scheme), schedule=job.schedule)
    state, _ = trainer.fit(trainer.init(), job.data, batch=recipe.batch, epochs=recipe.epochs)
    outcome = job.outcome(trainer.single(state))
    assert abs(outcome["w"] - 3) < 0.02
    assert abs(outcome["b"] - 1) < 0.02


def test_the_noise_is_independent_of_x():
    """Correlation below 4 standard errors (4 / sqrt(4096) = 0.0625); drawn from the key of x it would be 1."""
    points = make_points(LinearOptions(), seed=0)
    noise = points["y"] - 3 * points["x"] - 1
    assert abs(np.corrcoef(noise, points["x"])[0, 1]) < 0.0625
    assert np.std(noise) == pytest.approx(0.1, rel=0.05)
    assert abs(np.mean(points["x"])) < 0.0625 and np.std(points["x"]) == pytest.approx(1, rel=0.05)


def test_points_follow_the_seed_and_the_options():
    """Same seed, same bits; another seed, others; without noise the points lie on the line (rtol 1e-6)."""
    a, b, c = (make_points(LinearOptions(points=100), seed=seed) for seed in (1, 1, 2))
    assert a["x"].tobytes() == b["x"].tobytes() and a["y"].tobytes() == b["y"].tobytes()
    assert not np.array_equal(a["x"], c["x"])
    exact = make_points(LinearOptions(points=50, noise=0.0), seed=0)
    np.testing.assert_allclose(exact["y"], 3 * exact["x"] + 1, rtol=1e-6, atol=1e-6)
    assert exact["x"].shape == (50,)
