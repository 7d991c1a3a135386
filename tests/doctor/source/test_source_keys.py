"""Random keys in source: used twice, the same on every device, split for other devices than the run has."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.doctor.source.reading import HEADER_LINES, only

REUSED = {
    "x and noise": (
        """
        def data(key):
            x = jax.random.normal(key, (8,))
            return x + jax.random.normal(key, (8,))
        """,
        4,
    ),
    "a draw and a split": (
        """
        def data(key):
            x = jax.random.normal(key, (8,))
            key, other = jax.random.split(key)
        """,
        4,
    ),
    "two splits": (
        """
        def data(key):
            a, b = jax.random.split(key)
            c, d = jax.random.split(key)
        """,
        4,
    ),
    "in every pass of a loop": (
        """
        def data(key):
            for number in range(3):
                x = jax.random.normal(key, (8,))
        """,
        4,
    ),
    "after a branch that drew": (
        """
        def data(key, flag):
            if flag:
                x = jax.random.normal(key, (8,))
            return jax.random.uniform(key, (8,))
        """,
        5,
    ),
    "at the top of the file": (
        """
        key = jax.random.key(0)
        x = jax.random.normal(key)
        y = jax.random.normal(key)
        """,
        4,
    ),
    "under another name of the module": (
        """
        from jax import random
        def data(key):
            return random.normal(key) + random.normal(key=key)
        """,
        4,
    ),
}


@pytest.mark.parametrize(("source", "line"), REUSED.values(), ids=REUSED)
def test_a_key_that_two_draws_share_is_a_warning(check, source, line):
    """At the second draw, with the split that is missing."""
    found = only(check(source))
    assert (found.level, found.line) == ("warning", HEADER_LINES + line)
    assert "the key key is used" in found.what
    assert found.fix is not None and "key, subkey = jax.random.split(key)" in found.fix


FRESH = {
    "split between": """
        def data(key):
            x = jax.random.normal(key, (8,))
            key = jax.random.fold_in(key, 1)
            return x + jax.random.normal(key, (8,))
    """,
    "two subkeys": """
        def data(key):
            first, second = jax.random.split(key)
            return jax.random.normal(first) + jax.random.normal(second)
    """,
    "subkeys by number": """
        def data(key):
            keys = jax.random.split(key, 2)
            return jax.random.normal(keys[0]) + jax.random.normal(keys[1])
    """,
    "two branches": """
        def data(key, flag):
            if flag:
                return jax.random.normal(key)
            return jax.random.uniform(key)
    """,
    "both sides of an expression": """
        def data(key, flag):
            return jax.random.normal(key) if flag else jax.random.uniform(key)
    """,
    "a new key in every pass": """
        def data(key):
            for number in range(3):
                key, subkey = jax.random.split(key)
                x = jax.random.normal(subkey)
    """,
    "a key of the loop": """
        def data(key):
            for subkey in jax.random.split(key, 3):
                x = jax.random.normal(subkey)
    """,
    "keys by the number of the pass": """
        def data(keys):
            for number in range(3):
                x = jax.random.normal(keys[number])
    """,
    "folded with the number of the pass": """
        def data(key):
            for number in range(3):
                x = jax.random.normal(jax.random.fold_in(key, number))
    """,
    "numpy": """
        import numpy as np
        def data(key):
            return np.random.normal(key) + np.random.normal(key)
    """,
}


@pytest.mark.parametrize("source", FRESH.values(), ids=FRESH)
def test_keys_of_their_own_raise_no_alarm(check, source):
    assert not [finding.lines() for finding in check(source)]


def test_noise_from_the_key_of_x_changes_the_slope():
    """What the warning is about: slope 3, noise level 0.1; one key gives 3.1 (to 1e-4), two give 3.0 (to 0.02)."""
    key = jax.random.key(0)
    x = jax.random.normal(key, (4096,))
    for noise_key, slope, tolerance in ((key, 3.1, 1e-4), (jax.random.fold_in(key, 1), 3.0, 0.02)):
        y = 3 * x + 0.1 * jax.random.normal(noise_key, (4096,))
        np.testing.assert_allclose(jnp.vdot(x, y) / jnp.vdot(x, x), slope, atol=tolerance)


SHARED = {
    "a key of the module": """
        key = jax.random.key(0)
        p_mask = jax.pmap(lambda x: jax.random.bernoulli(key, 0.5, x.shape), axis_name="batch")
    """,
    "a key of the function around": """
        def run(x):
            key = jax.random.key(0)
            def mask(x):
                return jax.random.bernoulli(key, 0.5, x.shape)
            return jax.pmap(mask, axis_name="batch")(x)
    """,
    "a key passed alike": """
        def mask(x, key):
            return jax.random.bernoulli(key, 0.5, x.shape)
        p_mask = jax.pmap(mask, axis_name="batch", in_axes=(0, None))
    """,
    "a key passed alike to shard_map": """
        def mask(x, key):
            return jax.random.bernoulli(key, 0.5, x.shape)
        p_mask = jax.shard_map(mask, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"))
    """,
}


@pytest.mark.parametrize("source", SHARED.values(), ids=SHARED)
def test_one_key_on_every_device_is_a_warning(check, source):
    """Case scalax#6: one mask K times; the fix folds the device in."""
    found = only(check(source))
    assert found.level == "warning" and "every device draws the same numbers" in found.what
    assert found.fix is not None and "jax.lax.axis_index(" in found.fix


def test_a_closed_over_key_gives_one_mask_and_the_fix_gives_four():
    """ones(4, 2, 16), dropout 0.5, K = 4: 1 distinct mask; with the device folded in, 4."""
    key, x = jax.random.key(0), jnp.ones((4, 2, 16))

    def distinct(own):
        masks = jax.pmap(lambda x: jax.random.bernoulli(own(), 0.5, x.shape), axis_name="batch")(x)
        return len({np.asarray(mask).tobytes() for mask in masks})

    assert distinct(lambda: key) == 1
    assert distinct(lambda: jax.random.fold_in(key, jax.lax.axis_index("batch"))) == 4


OWN = {
    "the device folded in": """
        key = jax.random.key(0)
        def mask(x):
            own = jax.random.fold_in(key, lax.axis_index("batch"))
            return jax.random.bernoulli(own, 0.5, x.shape)
        p_mask = jax.pmap(mask, axis_name="batch")
    """,
    "the key of the device's number": """
        key = jax.random.key(0)
        def mask(x):
            own = jax.random.split(key, 4)[lax.axis_index("batch")]
            return jax.random.bernoulli(own, 0.5, x.shape)
        p_mask = jax.pmap(mask, axis_name="batch")
    """,
    "a key a device": """
        def mask(x, key):
            return jax.random.bernoulli(key, 0.5, x.shape)
        p_mask = jax.pmap(mask, axis_name="batch", in_axes=(0, 0))
    """,
    "a key that is made inside": """
        def mask(x, seed):
            key = jax.random.key(seed)
            return jax.random.bernoulli(key, 0.5, x.shape)
        p_mask = jax.pmap(mask, axis_name="batch")
    """,
    "under jit alone": """
        key = jax.random.key(0)
        mask = jax.jit(lambda x: jax.random.bernoulli(key, 0.5, x.shape))
    """,
}


@pytest.mark.parametrize("source", OWN.values(), ids=OWN)
def test_a_key_of_its_own_on_every_device_raises_no_alarm(check, source):
    assert not [finding.lines() for finding in check(source)]


COUNTED = """
    NUMBER = 4
    p_mask = jax.pmap(lambda x, key: jax.random.bernoulli(key, 0.5, x.shape))
    def run(x, key):
        keys = jax.random.split(key, {count})
        return p_mask(x, keys)
"""


@pytest.mark.parametrize("count", ["4", "NUMBER", "num=4"])
def test_a_key_split_for_other_devices_is_a_warning(check, count):
    """4 keys for a run on 8 devices; on 4 devices, or with their number asked for, there is nothing to say."""
    found = only(check(COUNTED.format(count=count), devices=8))
    assert "split into 4" in found.what and "8 devices" in found.what
    assert found.fix is not None and "jax.random.split(key, 8)" in found.fix
    assert not check(COUNTED.format(count=count), devices=4)
    assert not check(COUNTED.format(count="jax.device_count()"), devices=8)


def test_a_key_split_for_other_devices_is_seen_where_the_function_is_mapped(check):
    """No name for the mapped function: jax.pmap(lambda ...)(keys)."""
    source = """
        def run(key):
            keys = jax.random.split(key, 7)
            return jax.pmap(lambda k: jax.random.normal(k))(keys)
    """
    assert "split into 7" in only(check(source, devices=8)).what
    assert not check(source, devices=7)


COPIED = """
    from flax import jax_utils
    p_noise = jax.pmap(lambda x, key: x + jax.random.normal(key, x.shape), axis_name="batch")
    def run(x, key):
        for at in range(10):
            x = p_noise(x, {keys})
"""


@pytest.mark.parametrize(
    "keys", ["jax_utils.replicate(key)", "jnp.stack([key] * 4)", "jnp.broadcast_to(key, (4, *key.shape))"]
)
def test_a_key_that_is_copied_to_every_device_is_a_warning(check, keys):
    """Every device draws the same numbers; keys of a split are told apart."""
    found = only(check(COPIED.format(keys=keys)))
    assert found.level == "warning" and "passed alike to every device" in found.what
    assert not check(COPIED.format(keys="jax.random.split(jax.random.fold_in(key, at), 4)"))
    assert not check(COPIED.format(keys="jnp.stack([jax.random.fold_in(key, n + 4 * at) for n in range(4)])"))
