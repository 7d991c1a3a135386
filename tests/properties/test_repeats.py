"""Same seed, same bits; a step compiles once; interrupted and resumed is uninterrupted."""

from __future__ import annotations

import hypothesis.strategies as st
import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings

from tests.train.compilations import counted
from tests.train.linear import SCHEMES, line, params_of, trainer_of, zeros


def noisy_error(params, batch, rng):
    noise = jax.random.normal(rng, batch["y"].shape)
    return (batch["x"] * params["w"] + params["b"] - batch["y"] - noise) ** 2


def bits(trainer, state):
    return {name: leaf.tobytes() for name, leaf in params_of(trainer, state).items()}


@pytest.fixture(scope="module", params=SCHEMES)
def trainer(request):
    """One trainer a scheme: momentum, a decaying rate, noise in the loss, padding."""
    optimizer = optax.sgd(optax.linear_schedule(0.1, 0.0, 40), momentum=0.9)
    return trainer_of(noisy_error, optimizer=optimizer, scheme=request.param)


def run(trainer, *parts, seed=0):
    state = trainer.init(zeros(), seed=seed)
    for steps in parts:
        state, _ = trainer.fit(state, line(50), batch=16, steps=steps, seed=seed, remainder="pad")
    return bits(trainer, state)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_same_seed_gives_the_same_bits(scheme):
    """Two trainers made alike, 6 steps over 1.5 epochs: equal bytes; another seed: others."""
    first, second = (trainer_of(noisy_error, scheme=scheme) for _ in range(2))
    assert run(first, 6) == run(second, 6)
    assert run(first, 6) != run(first, 6, seed=1)


@settings(max_examples=5)
@given(parts=st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_a_run_in_parts_is_the_whole_run(trainer, parts):
    """However 2 to 16 steps are cut into calls of fit: equal bytes."""
    assert run(trainer, *parts) == run(trainer, sum(parts))


def test_a_step_compiles_once(trainer):
    """By JAX's own count too: full and padded batches, epochs, seeds, calls, and a state made anew."""
    run(trainer, 2)
    known = trainer.compilations
    state = trainer.init(zeros())
    with counted() as compiled:
        for seed in range(3):
            state, _ = trainer.fit(state, line(50), batch=16, epochs=2, seed=seed, remainder="pad")
    assert compiled == []
    assert trainer.compilations == known == 1


def test_the_loss_of_every_step_repeats(trainer):
    """Values, not only the last parameters: the losses of 5 steps are equal bit for bit."""

    def losses():
        found = []
        trainer.fit(
            trainer.init(zeros()), line(50), batch=16, steps=5, remainder="pad",
            callbacks=[lambda step, values: found.append(values["train/loss"]) and None],
        )  # fmt: skip
        return found

    first = losses()
    assert losses() == first
    assert len(set(first)) == 5 and np.isfinite(first).all()
