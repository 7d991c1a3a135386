"""A function that casts to narrow types computes, widened, what the same function without casts computes in float64."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from paceline.check.parity.widen import widened, widened_loss
from paceline.tasks.losses import Outcome
from paceline.topology.mesh import data_mesh

pytestmark = pytest.mark.usefixtures("x64")

X = np.array([0.3, 0.21, -0.4])
BF16, F32 = jnp.bfloat16, jnp.float32


def matmul(x, cast):
    h = cast(x)
    return lax.dot_general(h, h, (((0,), (0,)), ((), ())), preferred_element_type=h.dtype, precision="highest")


def scanned(x, cast):
    h = cast(x)
    last, seen = lax.scan(lambda carry, row: (carry * row, carry + row), h[0], h, reverse=True)
    return last + seen.sum()


def looped(x, cast):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 1.5), (0, cast(x).sum()))[1]


def branched(x, cast):
    h = cast(x)
    return lax.cond(h[0] > 0, lambda value: value[0] * value[2], lambda value: -value[1], h)


def called(x, cast):
    h = jax.checkpoint(jnp.sin)(cast(x))
    return (jax.nn.relu(h) + jax.nn.silu(h) + jax.nn.logsumexp(h)).sum()


def scattered(x, cast):
    """The gradient of an embedding adds in the type of the table; so does ``.at[].add``."""
    h = cast(x)
    return (jnp.zeros(4, h.dtype).at[jnp.array([1, 1, 3])].add(h) ** 2).sum() + (h[jnp.array([0, 0, 2])] ** 3).sum()


def filled(x, cast):
    h = cast(x)
    return (h + jnp.arange(3, dtype=h.dtype) + jnp.full(3, 0.25, h.dtype)).prod()


def rounded(x, cast):
    h = cast(x)
    return (h if h.dtype == jnp.float64 else lax.reduce_precision(h, 5, 3)).sum()


FUNCTIONS = [matmul, scanned, looped, branched, called, scattered, filled, rounded]


def nothing(x):
    return x


def to_bfloat16(x):
    return x.astype(BF16)


def to_float32(x):
    return x.astype(F32)


@pytest.mark.parametrize("cast", [to_bfloat16, to_float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_casts_have_no_effect(function, cast):
    """The value to 1e-15 of float64's, which the function itself misses by more than 1e-9."""
    exact = function(X, nothing)
    assert abs(function(jnp.asarray(X), cast) - exact) > 1e-9
    found = jax.jit(widened(functools.partial(function, cast=cast)))(X)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, exact, rtol=1e-15)


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f not in (looped, rounded)], ids=lambda f: f.__name__)
def test_gradients_are_those_of_float64(function):
    """rtol 1e-14 through bfloat16; a while loop has none."""
    loss = widened_loss(lambda params, state, batch, rng: function(params, to_bfloat16))
    found = jax.jit(jax.grad(loss))(X, {}, {}, jax.random.key(0))
    np.testing.assert_allclose(found, jax.grad(function)(X, nothing), rtol=1e-14)


@jax.custom_vjp
def straight_through(x):
    return jnp.round(x)


straight_through.defvjp(lambda x: (jnp.round(x), None), lambda _, given: (3 * given,))


def test_a_gradient_of_the_users_own_is_kept():
    """round has derivative 0, the user says 3: 3 * 2x at float64, x rounded nowhere. Exact."""
    loss = widened_loss(lambda params, state, batch, rng: Outcome(straight_through((params**2).astype(F32))))
    np.testing.assert_array_equal(jax.grad(lambda p: loss(p, {}, {}, jax.random.key(0)).loss.sum())(X), 3 * 2 * X)


def test_integers_booleans_and_keys_are_left_alone():
    """An outcome with counts has its types and values, and a gradient by the loss alone: 2w, exact."""

    def loss(params, state, batch, rng):
        value = (params.astype(F32) ** 2).sum()
        counts = {"n": batch["n"] + 1, "positive": params > 0, "draw": jax.random.randint(rng, (), 0, 10)}
        return Outcome(value, counts, {"rng": rng, "mean": state["mean"].astype(BF16)})

    arguments = (X, {"mean": X / 3}, {"n": jnp.arange(2)}, jax.random.key(1))

    def total(params, *others):
        outcome = widened_loss(loss)(params, *others)
        return outcome.loss, outcome

    (_, outcome), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(*arguments)
    np.testing.assert_array_equal(gradient, 2 * X)
    assert outcome.metrics["n"].tolist() == [1, 2] and outcome.metrics["positive"].tolist() == [True, True, False]
    assert outcome.metrics["draw"] == jax.random.randint(jax.random.key(1), (), 0, 10)
    assert outcome.model_state["rng"] == jax.random.key(1)
    np.testing.assert_array_equal(outcome.model_state["mean"], X / 3)


def test_random_numbers_are_those_of_the_type_that_was_asked_for():
    """A float32 draw has the bits of float32, which float64 would not have; exact."""
    draw = widened(lambda key: jax.random.uniform(key, (4,), F32))(jax.random.key(0))
    np.testing.assert_array_equal(draw, np.asarray(jax.random.uniform(jax.random.key(0), (4,), F32), np.float64))


def test_a_callback_gets_the_type_that_it_was_written_for():
    """float32 in and out; the arithmetic around it is float64."""
    given = []

    def host(x):
        given.append(np.asarray(x).dtype)
        return np.float32(0.1)

    def function(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), F32), x.astype(F32).sum()) * 3

    assert widened(function)(X) == 3 * np.float64(np.float32(0.1))
    assert given == [np.float32]


def step(params, batch):
    """A device's part of a mean in bfloat16, and the mean over the devices."""
    return params + lax.pmean((batch.astype(BF16) * params.astype(BF16)).mean(), "data")


def test_a_step_for_pmap_is_widened_inside():
    """4 devices, a mean of 8 rows times 1/3, rtol 1e-15; plain it is off by more than 1e-4."""
    rows, params = np.linspace(0, 1, 8), np.full(4, 1 / 3)
    mapped, exact = jax.pmap(step, axis_name="data"), 1 / 3 + rows.mean() / 3
    stacked = rows.reshape(4, 2)
    assert abs(mapped(params, stacked)[0] - exact) > 1e-4
    np.testing.assert_allclose(jax.jit(widened(mapped))(params, stacked), [exact] * 4, rtol=1e-15)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_shard_map_is_widened_inside(check_vma):
    """As with pmap, over a mesh of the user's."""
    specs = (PartitionSpec(), PartitionSpec("data"))
    mesh = data_mesh(jax.devices()[:4])
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=check_vma)
    rows = np.linspace(0, 1, 8)
    np.testing.assert_allclose(jax.jit(widened(mapped))(1 / 3, rows), 1 / 3 + rows.mean() / 3, rtol=1e-15)


def test_the_function_is_traced_anew_each_time():
    """One that takes numbers from the host shows it: two calls, two values."""
    count: list[int] = []

    def function(x: Any) -> Any:
        count.append(1)
        return x.astype(F32) * len(count)

    wide = widened(function)
    assert wide(X[0]) == X[0]
    assert wide(X[0]) == 2 * X[0]
