"""The three dropout streams, read off whole: the gradient of each row's own parameters is its mask."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.engine.parallel import Parallel
from tests.engine.helpers import LOCAL_SCHEMES, SCHEMES, distinct, place, start, step_of, to_numpy

ROWS, FEATURES, DEVICES, SEED = 8, 16, 4, 11
OPTIMIZER = optax.sgd(-float(ROWS))

local_scheme = pytest.mark.parametrize("scheme", LOCAL_SCHEMES)


def loss(params, batch, rng):
    """Row i weighs its own parameters by a mask of rate 0.5: the mean's gradient there is mask / rows."""
    own = params["own"][batch["row"]]
    return jnp.sum(own * jax.random.bernoulli(rng, 0.5, own.shape), axis=1)


@functools.cache
def masks(scheme: str, stream: str, *, parts: int = 1, devices: int = DEVICES, steps: int = 1) -> np.ndarray:
    """``[rows, features]`` masks of the last of so many steps."""
    step = step_of(loss, OPTIMIZER, Parallel(scheme, accumulation=parts, dropout=stream), devices=devices)
    batch = place(step, {"row": np.arange(ROWS)})
    state = start(step, {"own": np.zeros((ROWS, FEATURES), np.float32)}, seed=SEED)
    before = 0
    for _ in range(steps):
        before = to_numpy(step, state)["params"]["own"]
        state, _ = step(state, *batch)
    return to_numpy(step, state)["params"]["own"] - before


def one_device_mask(step: int = 0) -> np.ndarray:
    key = jax.random.fold_in(jax.random.key(SEED, impl="threefry2x32"), step)
    return np.asarray(jax.random.bernoulli(key, 0.5, (ROWS, FEATURES)), np.float32)


def by_device(mask: np.ndarray) -> np.ndarray:
    return mask.reshape(DEVICES, -1)


def by_microbatch(mask: np.ndarray, parts: int) -> np.ndarray:
    """``[devices, parts, rest]``: row i of a device belongs to its microbatch i % parts."""
    return mask.reshape(DEVICES, -1, parts, FEATURES).swapaxes(1, 2).reshape(DEVICES, parts, -1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_global_stream_draws_the_mask_of_one_device(scheme):
    """Four devices, two microbatches: bit for bit `jax.random.bernoulli` of the step's key over the whole batch."""
    np.testing.assert_array_equal(masks(scheme, "global", parts=2), one_device_mask())
    assert distinct(by_device(one_device_mask())) == DEVICES


@local_scheme
def test_every_device_draws_its_own_mask_under_per_device(scheme):
    """Case 6, two rows of 16 on each of four devices: four distinct masks, none of them another stream's."""
    mask = masks(scheme, "per_device")
    assert distinct(by_device(mask)) == 4
    assert set(np.unique(mask)) == {0, 1}
    assert (by_device(mask) != by_device(one_device_mask())).any(axis=1).all()


@local_scheme
def test_all_devices_draw_one_mask_under_shared(scheme):
    """Case 6: one distinct mask over four devices, yet one row's differs from the next's."""
    mask = masks(scheme, "shared")
    assert distinct(by_device(mask)) == 1
    assert distinct(by_device(mask)[0].reshape(2, FEATURES)) == 2


@local_scheme
def test_microbatches_draw_masks_of_their_own(scheme):
    """Two microbatches on four devices: eight distinct masks under `per_device`, two under `shared`."""
    assert distinct(by_microbatch(masks(scheme, "per_device", parts=2), 2).reshape(8, -1)) == 8
    shared = by_microbatch(masks(scheme, "shared", parts=2), 2)
    assert distinct(shared) == 1 and distinct(shared[0]) == 2


@local_scheme
@pytest.mark.parametrize("stream", ["global", "per_device", "shared"])
def test_every_step_draws_another_mask(scheme, stream):
    """The masks of the first two steps differ on each device; those of `global` stay the one-device ones."""
    first, second = masks(scheme, stream, parts=2), masks(scheme, stream, parts=2, steps=2)
    assert (by_device(first) != by_device(second)).any(axis=1).all()
    if stream == "global":
        np.testing.assert_array_equal(second, one_device_mask(step=1))


def test_schemes_that_run_once_a_device_draw_alike():
    """`per_device` and `pmap`: the same masks, bit for bit, under each stream."""
    for stream in ("per_device", "shared"):
        for parts in (1, 2):
            np.testing.assert_array_equal(masks("pmap", stream, parts=parts), masks("per_device", stream, parts=parts))
