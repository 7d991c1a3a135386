"""A small task that a step of any scheme trains."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax

import paceline
from paceline.engine.parallel import Parallel
from paceline.measure.scale.subject import Subject

ROWS = 64


def error(params, batch):
    """One squared error a row of a two-layer network."""
    hidden = jnp.tanh(batch["x"] @ params["in"])
    return ((hidden @ params["out"])[:, 0] - batch["y"]) ** 2


def subject(**parallel) -> Subject:
    """Of 64 rows with three features."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 3)).astype("float32")
    return Subject(
        paceline.task(error, init=lambda rng: {"in": 0.3 * jnp.ones((3, 4)), "out": 0.3 * jnp.ones((4, 1))}),
        optax.sgd(0.1),
        paceline.rows({"x": x, "y": x.sum(axis=1)}),
        parallel=Parallel(**parallel),
    )
