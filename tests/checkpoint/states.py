"""States to save: small, with a leaf of every kind, and the comparison of their bits.

Owns: what the tests of this folder save and compare.
Invariant: equal means every bit, dtype, shape and container.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from paceline.engine.parallel import Parallel
from paceline.engine.state import new_state, place_state
from paceline.topology.mesh import data_mesh

OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


def parallel(*, placement="replicated", scheme="global_view"):
    return Parallel(scheme=scheme, placement=placement, ema_decay=0.9, precision="float16")


def single(seed=0):
    """A `TrainState` without device axis, on one device: adam, moving average, loss scale, key, an empty leaf."""
    key = jax.random.key(seed)
    params = {
        "conv": {"kernel": jax.random.normal(key, (3, 8, 4)), "bias": jnp.arange(4.0) + seed},
        "head": jax.random.normal(jax.random.fold_in(key, 1), (24, 8)),
    }
    model_state = {"mean": jnp.full(3, seed, jnp.float32), "nothing": jnp.zeros((0, 2))}
    return new_state(OPTIMIZER, parallel(), params=params, model_state=model_state, seed=seed)


def placed(state, *, devices, placement="replicated"):
    return place_state(state, parallel=parallel(placement=placement), mesh=data_mesh(jax.devices()[:devices]))


def bits(leaf):
    """Bytes, dtype and shape of an array or a key array."""
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return (str(leaf.dtype), *bits(jax.random.key_data(leaf)))
    array = np.asarray(leaf)
    return array.dtype.name, array.shape, array.tobytes()


def assert_same(one, other):
    """Every leaf has the same bits, in the same containers."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        assert bits(a) == bits(b), jax.tree_util.keystr(path)


def assert_placed_like(one, other):
    """Every leaf lies on the same devices in the same parts."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim), jax.tree_util.keystr(path)
