"""What the draws of a program say about its keys: each fault planted, and the sound uses that look like one."""

from __future__ import annotations

import functools
from pathlib import Path

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from paceline.check.keys import draws, key_findings, loss_key_findings, step_key_findings
from tests.tasks.adapters.models import LIBRARIES, Net

X = jnp.ones((4, 6))
RATE = 0.5


def findings(loss, *, batch=X):
    """Faults of ``loss(rng, x)``."""

    def full(params, model_state, batch, rng):
        return loss(rng, batch)

    return loss_key_findings(full, params={}, model_state={}, batch=batch)


def kinds(loss, **options):
    return [finding.kind for finding in findings(loss, **options)]


def drop(key, x):
    return jnp.where(jax.random.bernoulli(key, RATE, x.shape), x / RATE, 0)


def two_halves(rng, x):
    first, second = jax.random.split(rng)
    return drop(second, drop(first, x))


def layers(rng, x):
    def layer(carry, key):
        return drop(key, carry), None

    return lax.scan(layer, x, jax.random.split(rng, 3))[0]


def chain(rng, x):
    def layer(carry, _):
        key, x = carry
        key, own = jax.random.split(key)
        return (key, drop(own, x)), None

    (key, x), _ = lax.scan(layer, (rng, x), None, length=3)
    return drop(key, x)


def advanced(rng, x):
    """Each iteration draws with number 1 folded into its own key, and so does what follows the loop."""

    def layer(_, carry):
        key, x = carry
        return jax.random.fold_in(key, 2), drop(jax.random.fold_in(key, 1), x)

    key, x = lax.fori_loop(0, 3, layer, (rng, x))
    return drop(jax.random.fold_in(key, 1), x)


def handed_on(rng, x):
    """A loop that carries a key, draws from it and never changes it."""

    def body(carry):
        count, key, x = carry
        return count + 1, key, drop(key, x)

    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, rng, x))[2] + drop(rng, x)


def either(rng, x):
    return lax.cond(x[0, 0] > 0, lambda: drop(rng, x), lambda: x + jax.random.normal(rng, x.shape))


def old_keys(rng, x):
    words = jax.random.key_data(rng)
    first, second = jax.random.split(words)
    return drop(first, drop(second, x))


def recomputed(rng, x):
    layer = jax.checkpoint(drop)
    return jax.grad(lambda x: (layer(rng, x) ** 2).sum())(x)


@jax.custom_vjp
def cheap_dropout(key, x):
    return drop(key, x)


def _cheap_backward(key, g):
    return None, drop(key, g)  # the mask is drawn again rather than kept


cheap_dropout.defvjp(lambda key, x: (drop(key, x), key), _cheap_backward)


SOUND = {
    "one draw": drop,
    "the halves of a split": two_halves,
    "a key for each layer": layers,
    "a key carried through a loop": chain,
    "a key advanced by a loop": advanced,
    "keys for rows": lambda rng, x: jax.vmap(drop)(jax.random.split(rng, len(x)), x),
    "keys by number": lambda rng, x: drop(jax.random.fold_in(rng, 1), drop(jax.random.fold_in(rng, 2), x)),
    "one of two branches": either,
    "keys as words": old_keys,
    "a mask recomputed by checkpoint": recomputed,
    "a mask drawn again backwards": lambda rng, x: jax.grad(lambda x: cheap_dropout(rng, x).sum())(x),
    "a key of the rows' own numbers": lambda rng, x: jax.vmap(drop)(
        jax.vmap(lambda row: jax.random.fold_in(jax.random.key(7), row.astype(int)))(x[:, 0]), x
    ),
}


@pytest.mark.parametrize("loss", SOUND.values(), ids=SOUND)
def test_sound_uses_of_keys_are_no_finding(loss):
    """No finding, though keys are derived in many ways."""
    assert kinds(loss) == []


def in_two_ways(rng, x):
    first, _ = jax.random.split(rng)
    return drop(first, x) * drop(jax.random.split(rng)[0], x)


SHARED = {
    "the key itself": lambda rng, x: drop(rng, x) + jax.random.normal(rng, x.shape),
    "one half twice": lambda rng, x: drop(jax.random.split(rng)[0], x) * drop(jax.random.split(rng)[0], x),
    "one half, taken in two ways": in_two_ways,
    "the same number folded in": lambda rng, x: drop(jax.random.fold_in(rng, 1), drop(jax.random.fold_in(rng, 1), x)),
    "in a function of its own": lambda rng, x: jax.jit(drop)(rng, x) + drop(rng, x),
    "inside of a loop that hands it on, and behind": handed_on,
    "as words": lambda rng, x: drop(jax.random.key_data(rng), x) + drop(rng, x),
    "all keys at once, twice": lambda rng, x: jax.vmap(drop)(jax.random.split(rng, 4), x)
    + jax.vmap(drop)(jax.random.split(rng, 4), 2 * x),
    "inside and outside of a branch": lambda rng, x: drop(rng, x)
    + lax.cond(x[0, 0] > 0, lambda: drop(rng, x), lambda: x),
    "within one branch": lambda rng, x: lax.cond(x[0, 0] > 0, lambda: drop(rng, x) + drop(rng, x), lambda: x),
}  # fmt: skip


@pytest.mark.parametrize("loss", SHARED.values(), ids=SHARED)
def test_one_key_for_two_draws_is_found(loss):
    """Exactly one finding, of kind `shared`, with both draws."""
    (finding,) = findings(loss)
    assert finding.kind == "shared" and len(finding.shapes) == 2
    assert "jax.random.split" in finding.fix


def test_data_and_noise_from_one_key_are_named_with_both_lines():
    """The planted error of a simulated regression: x and its noise come from one key."""

    def loss(rng, x):
        data = jax.random.normal(rng, (4,))
        noise = jax.random.normal(rng, (4,))
        return x[:, 0] * data + noise

    first = loss.__code__.co_firstlineno
    (finding,) = findings(loss)
    assert [place.rpartition(":")[2] for place in finding.where] == [str(first + 1), str(first + 2)]
    assert {Path(place.rpartition(":")[0]).name for place in finding.where} == {Path(__file__).name}
    assert finding.shapes == ((4,), (4,)) and "2 draws use one key" in finding.what


CONSTANT = {
    "made in the loss": lambda rng, x: drop(jax.random.key(0), x),
    "closed over": functools.partial(lambda key, rng, x: drop(key, x), jax.random.key(1)),
    "split from a constant": lambda rng, x: drop(jax.random.split(jax.random.key(0))[1], x),
}


@pytest.mark.parametrize("loss", CONSTANT.values(), ids=CONSTANT)
def test_a_key_that_no_step_changes_is_found(loss):
    """The mask is that of the first step in all of them."""
    (finding,) = findings(loss)
    assert finding.kind == "reused" and finding.shapes == ((4, 6),)


@pytest.mark.parametrize("state", ["step", "count"])
def test_a_key_that_follows_the_step_is_not_constant(state):
    """A constant seed with the step folded in is another key in each step."""

    def program(count):
        return jax.random.normal(jax.random.fold_in(jax.random.key(0), count), (4,))

    assert key_findings(draws(jax.make_jaxpr(program)(0), [frozenset({state})])) == []


SAMPLERS = {
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.5, (4,)),
    "beta": lambda key: jax.random.beta(key, 2.0, 3.0, (4,)),
    "binomial": lambda key: jax.random.binomial(key, 10, 0.3, (4,)),
    "categorical": lambda key: jax.random.categorical(key, jnp.ones((4, 3))),
    "categorical without replacement": lambda key: jax.random.categorical(key, jnp.ones(4), shape=(2,), replace=False),
    "choice": lambda key: jax.random.choice(key, 9, (3,)),
    "choice without replacement": lambda key: jax.random.choice(key, 9, (3,), replace=False),
    "choice with weights": lambda key: jax.random.choice(key, 9, (3,), p=jnp.ones(9) / 9),
    "complex normal": lambda key: jax.random.normal(key, (4,), jnp.complex64),
    "dirichlet": lambda key: jax.random.dirichlet(key, jnp.ones(3)),
    "gamma": lambda key: jax.random.gamma(key, 2.0, (4,)),
    "generalized_normal": lambda key: jax.random.generalized_normal(key, 2.0, (4,)),
    "multivariate_normal": lambda key: jax.random.multivariate_normal(key, jnp.zeros(2), jnp.eye(2)),
    "orthogonal": lambda key: jax.random.orthogonal(key, 3),
    "permutation": lambda key: jax.random.permutation(key, jnp.ones((70_000,))),
    "poisson": lambda key: jax.random.poisson(key, 3.0, (4,)),
    "randint": lambda key: jax.random.randint(key, (4,), 0, 9),
    "t": lambda key: jax.random.t(key, 3.0, (4,)),
    "truncated_normal": lambda key: jax.random.truncated_normal(key, -1, 1, (4,)),
}


@pytest.mark.parametrize("sample", SAMPLERS.values(), ids=SAMPLERS)
def test_a_sampler_that_draws_several_times_is_no_finding(sample):
    """JAX's own samplers split the key that they are given; each makes at least one draw."""
    jaxpr = jax.make_jaxpr(sample)(jax.random.key(0))
    found = draws(jaxpr, [frozenset({"rng"})])
    assert found and key_findings(found, local_rows={4}) == []


NET = Net(6, (("first", 4), ("d1", "dropout"), ("second", 4), ("bn", "norm"), ("d2", "dropout"), ("last", 1)))


@pytest.mark.parametrize("library", ["linen", "nnx"])
def test_two_dropout_layers_of_a_model_are_no_finding(library):
    """Through the adapters: each layer has a key of its own, and it changes with the step."""
    example = {"x": jax.ShapeDtypeStruct((2, 6), jnp.float32)}
    task = LIBRARIES[library].task(NET, lambda model, batch: model(batch["x"])[:, 0] ** 2, example)
    params, model_state = jax.eval_shape(task.init, jax.random.key(0))
    found = loss_key_findings(task.loss, params=params, model_state=model_state, batch={"x": X})
    assert found == []


def test_one_key_for_two_dropout_layers_is_found():
    """An Equinox model that gives the same key to both of its dropout layers."""
    example = {"x": jax.ShapeDtypeStruct((2, 6), jnp.float32)}
    task = LIBRARIES["equinox"].task(NET, lambda model, batch: model(batch["x"])[:, 0] ** 2, example)
    params, model_state = jax.eval_shape(task.init, jax.random.key(0))
    found = loss_key_findings(task.loss, params=params, model_state=model_state, batch={"x": X})
    assert [(finding.kind, len(finding.shapes)) for finding in found] == [("shared", 2)]


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.MultiHeadDotProductAttention(num_heads=2, dropout_rate=RATE, deterministic=False)(x, x)
        x = nn.remat(nn.Dropout)(RATE, deterministic=False)(x)
        return nn.scan(
            lambda layer, x, _: (layer(x), None), variable_broadcast="params", split_rngs={"dropout": True}, length=2
        )(nn.Dropout(RATE, deterministic=False), x, None)[0]


def linen_by_hand(rng, x):
    model = Attention()
    params = model.init({"params": jax.random.fold_in(rng, 1), "dropout": rng}, x)
    return jax.grad(lambda params: model.apply(params, x, rngs={"dropout": jax.random.fold_in(rng, 2)}).sum())(params)


def nnx_by_hand(rng, x):
    rngs = nnx.Rngs(rng)
    attention = nnx.MultiHeadAttention(2, 6, dropout_rate=RATE, decode=False, deterministic=False, rngs=rngs)
    return nnx.Dropout(RATE, rngs=rngs)(nnx.Dropout(RATE, rngs=rngs)(attention(x)))


def equinox_by_hand(rng, x):
    keys = jax.random.split(rng, 3)
    attention = eqx.nn.MultiheadAttention(2, 6, dropout_p=RATE, key=keys[0])
    return eqx.nn.Dropout(RATE)(attention(x, x, x, key=keys[1]), key=keys[2])


@pytest.mark.parametrize("loss", [linen_by_hand, nnx_by_hand, equinox_by_hand])
def test_models_that_fold_keys_their_own_way_are_no_finding(loss):
    """Attention with dropout, remat, a scan over layers, parameters drawn by the same program."""
    assert kinds(loss) == []


K = 4
MESH = Mesh(np.asarray(jax.devices()[:K]), ("data",))


def dropped(weights, x, key):
    return weights + lax.pmean(drop(key, x).sum(), "data")


def own_key(weights, x, key):
    return dropped(weights, x, jax.random.fold_in(key, lax.axis_index("data")))


def closed_over(weights, x, key):
    return dropped(weights, x, jax.random.key(0))


def closed_over_and_own(weights, x, key):
    return own_key(weights, x, jax.random.key(0))


def noisy_update(weights, x, key):
    return weights + jax.random.normal(key, (3,)) + lax.pmean(x.sum(), "data")


MAPPED = {
    "one key on all devices": (dropped, ["same_on_devices"]),
    "a key for each device": (own_key, ["depends_on_devices"]),
    "a closed-over key": (closed_over, ["reused", "same_on_devices"]),
    "a closed-over key, folded with the device": (closed_over_and_own, ["reused", "depends_on_devices"]),
    "the same noise on parameters": (noisy_update, []),
}
W, KEY = jnp.zeros(()), jax.random.key(0)


@pytest.mark.parametrize(("step", "expected"), MAPPED.values(), ids=MAPPED)
def test_masks_of_a_mapped_step_are_judged_alike_however_it_is_mapped(step, expected):
    """Case 6: rows from one key are the same on all devices; from a device's own key, they change with K."""
    by_pmap = jax.pmap(step, axis_name="data", in_axes=(None, 0, None), out_axes=None)
    specs = (PartitionSpec(), PartitionSpec("data"), PartitionSpec())
    by_shard_map = jax.shard_map(step, mesh=MESH, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    found = [
        step_key_findings(by_pmap, W, jnp.ones((K, 2, 3)), KEY),
        step_key_findings(jax.jit(by_shard_map), W, jnp.ones((K * 2, 3)), KEY),
        step_key_findings(step, W, jnp.ones((2, 3)), KEY, state_argnums=(0, 2)),
    ]
    assert [sorted(finding.kind for finding in each) for each in found] == [sorted(expected)] * 3


def test_a_key_that_each_device_is_given_depends_on_their_number():
    """pmap with a key for each device, the classic way."""
    keys = jax.random.split(KEY, K)
    step = jax.pmap(dropped, axis_name="data", in_axes=(None, 0, 0), out_axes=None)
    (finding,) = step_key_findings(step, W, jnp.ones((K, 2, 3)), keys)
    assert finding.kind == "depends_on_devices" and "number of devices" in finding.what


def test_draws_outside_of_the_mapped_part_are_not_local_rows():
    """A draw for the whole batch, under jit around a shard_map, is the one-device draw."""
    mapped = jax.shard_map(
        lambda w, x: w + lax.pmean(x.sum(), "data"),
        mesh=MESH, in_specs=(PartitionSpec(), PartitionSpec("data")), out_specs=PartitionSpec(),
    )  # fmt: skip
    step = jax.jit(lambda w, x, key: mapped(w, drop(key, x)))
    assert step_key_findings(step, W, jnp.ones((K * K, 3)), KEY) == []
