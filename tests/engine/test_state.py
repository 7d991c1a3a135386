"""Where a state lives, whose memory it is, and what it must look like."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.base.errors import StateError
from paceline.engine.parallel import Parallel
from paceline.engine.state import drop_device_axis, new_state, place_state
from paceline.tasks.tree import named_leaves
from tests.engine.helpers import LOCAL_SCHEMES, SCHEMES, place, shard_bytes, start, step_of

OPTIMIZER = optax.sgd(0.1, momentum=0.9)
SM3 = optax.sm3(0.1)

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def loss(params, model_state, batch, rng):
    return (batch["x"] @ params["w"] + params["b"]) ** 2


def full_parallel(scheme, **options) -> Parallel:
    """With every optional field of the state in use."""
    return Parallel(scheme, precision="float16", ema_decay=0.9, **options)


def params() -> dict[str, np.ndarray]:
    return {"w": np.arange(6, dtype=np.float32), "b": np.float32(0.5)}


def batch() -> dict[str, np.ndarray]:
    return {"x": np.ones((8, 6), np.float32) / 16}


def step_and_state(scheme, **options):
    step = step_of(loss, OPTIMIZER, full_parallel(scheme, **options), devices=4)
    return step, start(step, params(), model_state={"seen": np.zeros(3, np.float32)})


@every_scheme
def test_every_device_holds_the_whole_state_once(scheme):
    """Four devices: each leaf has four shards of equal bytes, each as large as the leaf, and no more on device 0."""
    _, state = step_and_state(scheme)
    assert state.ema is not None and state.loss_scale is not None
    for name, leaf in named_leaves(state):
        shards = leaf.addressable_shards
        assert [shard.device for shard in shards] == jax.devices()[:4], name
        whole = leaf.shape[1:] if scheme == "pmap" else leaf.shape
        assert {shard.data.shape for shard in shards} == {(1, *whole) if scheme == "pmap" else whole}, name
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            assert len(set(shard_bytes(leaf))) == 1, name


@every_scheme
def test_a_state_stays_where_it_is_over_a_step(scheme):
    """Shardings and shapes after a step equal those before, so that the next step takes them as they are."""
    step, state = step_and_state(scheme, donate=False)
    after, _ = step(state, *place(step, batch()))
    for (name, old), (_, new) in zip(named_leaves(state), named_leaves(after), strict=True):
        assert old.shape == new.shape and old.dtype == new.dtype, name
        assert old.sharding.is_equivalent_to(new.sharding, old.ndim), name
        if not jnp.issubdtype(new.dtype, jax.dtypes.prng_key):
            assert len(set(shard_bytes(new))) == 1, name


@every_scheme
def test_a_donated_state_is_gone_and_a_kept_one_is_not(scheme):
    """Donation on: the old parameters and moments are deleted; off: they hold their values."""
    step, state = step_and_state(scheme)
    step(state, *place(step, batch()))
    large = [state.params["w"], state.ema["w"], state.opt_state[0].trace["w"]]
    assert all(leaf.is_deleted() for leaf in large)
    step, state = step_and_state(scheme, donate=False)
    step(state, *place(step, batch()))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    copy = 0 if scheme == "pmap" else ...
    np.testing.assert_array_equal(np.asarray(state.params["w"])[copy], params()["w"])


@every_scheme
def test_the_users_parameters_survive_a_donated_step(scheme):
    """Arrays given on device 0, where a shard of the state lives too: never aliased, so unchanged after the step."""
    step = step_of(loss, OPTIMIZER, full_parallel(scheme), devices=4)
    given = jax.tree.map(jnp.asarray, params())
    state = place_state(
        new_state(OPTIMIZER, step.spec.parallel, params=given, model_state={}, seed=0),
        parallel=step.spec.parallel, mesh=step.spec.mesh,
    )  # fmt: skip
    step(state, *place(step, batch()))
    for name, leaf in given.items():
        np.testing.assert_array_equal(leaf, params()[name])


def test_the_moving_average_is_no_alias_of_the_parameters():
    """Both are donated, in a new state as in a placed one: one buffer given twice would be refused."""
    step, placed = step_and_state("per_device")
    new = new_state(OPTIMIZER, step.spec.parallel, params=jax.tree.map(jnp.asarray, params()), model_state={}, seed=0)
    for state in (new, placed):
        for average, leaf in zip(state.ema["w"].addressable_shards, state.params["w"].addressable_shards, strict=True):
            assert average.data.unsafe_buffer_pointer() != leaf.data.unsafe_buffer_pointer()


@every_scheme
def test_the_device_axis_comes_off_again(scheme):
    """`drop_device_axis` of a placed state gives each leaf as it was, replicated over the four devices."""
    step, state = step_and_state(scheme)
    single = drop_device_axis(state, parallel=step.spec.parallel, mesh=step.spec.mesh)
    wanted = new_state(
        OPTIMIZER, step.spec.parallel, params=jax.tree.map(jnp.asarray, params()), model_state=state.model_state, seed=0
    )
    assert jax.tree.map(jnp.shape, single.params) == jax.tree.map(jnp.shape, wanted.params)
    np.testing.assert_array_equal(single.params["w"], params()["w"])
    assert single.step.shape == () and len(single.params["w"].addressable_shards) == 4
    assert (jax.random.key_data(single.rng) == jax.random.key_data(wanted.rng)).all()


def test_taking_the_device_axis_off_compiles_once(caplog):
    """Placing and dropping twice: no program is made the second time."""
    step = step_of(loss, OPTIMIZER, full_parallel("pmap"), devices=4)
    where = {"parallel": step.spec.parallel, "mesh": step.spec.mesh}
    state = new_state(OPTIMIZER, step.spec.parallel, params=jax.tree.map(jnp.asarray, params()), model_state={}, seed=0)
    drop_device_axis(place_state(state, **where), **where)
    with jax.log_compiles():
        drop_device_axis(place_state(state, **where), **where)
    assert not [record for record in caplog.records if "Compiling" in record.getMessage()]


def test_a_state_without_device_axis_is_refused_by_pmap():
    """Case 4, four devices: the first leaf and the size 4 are named; with the axis, as the fix says, it works."""
    step = step_of(loss, OPTIMIZER, Parallel("pmap"), devices=4)
    lacking = new_state(OPTIMIZER, Parallel("pmap"), params=jax.tree.map(jnp.asarray, params()), model_state={}, seed=0)
    with pytest.raises(StateError) as caught:
        step(lacking, *place(step, batch()))
    assert "'step'" in caught.value.what and "()" in caught.value.what and "size 4" in caught.value.what
    assert "4 copies" in caught.value.fix and "trainer.place(other_trainer.single(state))" in caught.value.fix
    step(place_state(lacking, parallel=Parallel("pmap"), mesh=step.spec.mesh), *place(step, batch()))


def test_a_leaf_with_a_device_axis_of_another_size_is_named():
    """Case 4: one leaf for 2 devices where 4 are: its dotted name, its shape and the size expected."""
    step, state = step_and_state("pmap")
    state.params["w"] = state.params["w"][:2]
    with pytest.raises(StateError) as caught:
        step(state, *place(step, batch()))
    assert "'params.w'" in caught.value.what and "(2, 6)" in caught.value.what and "size 4" in caught.value.what


@pytest.mark.parametrize("scheme", LOCAL_SCHEMES)
def test_the_key_of_the_run_never_changes(scheme):
    """Everything random derives from (seed, step): the key after a step is that of before."""
    step, state = step_and_state(scheme, donate=False)
    after, _ = step(state, *place(step, batch()))
    np.testing.assert_array_equal(jax.random.key_data(after.rng), jax.random.key_data(state.rng))


@every_scheme
def test_a_used_state_is_refused_wherever_it_is_read(scheme):
    """By placing and by taking the device axis off: jax would crash the process or raise an error of its own."""
    parallel = Parallel(scheme)
    step = step_of(loss, OPTIMIZER, parallel, devices=4)
    state = start(step, params())
    step(state, *place(step, batch()))
    with pytest.raises(StateError, match="given to a step before"):
        drop_device_axis(state, parallel=parallel, mesh=step.spec.mesh)
    with pytest.raises(StateError, match="given to a step before"):
        place_state(state, parallel=parallel, mesh=step.spec.mesh)


@every_scheme
def test_a_state_of_other_devices_is_placed(scheme):
    """From two devices to four: every value stays (exactly), on all four."""
    parallel = Parallel(scheme)
    small, large = (step_of(loss, OPTIMIZER, parallel, devices=devices) for devices in (2, 4))
    single = drop_device_axis(start(small, params()), parallel=parallel, mesh=small.spec.mesh)
    placed = place_state(single, parallel=parallel, mesh=large.spec.mesh)
    assert placed.step.sharding.device_set == set(large.spec.mesh.devices.flat)
    back = drop_device_axis(placed, parallel=parallel, mesh=large.spec.mesh)
    for name, value in params().items():
        np.testing.assert_array_equal(back.params[name], value)


@every_scheme
def test_a_state_with_a_device_axis_is_not_placed(scheme):
    """Under pmap it would get a second axis."""
    classic = step_of(loss, OPTIMIZER, Parallel("pmap"), devices=4)
    with pytest.raises(StateError, match="leading device axis of size 4") as caught:
        place_state(start(classic, params()), parallel=Parallel(scheme), mesh=classic.spec.mesh)
    assert "other_trainer.single(state)" in caught.value.fix


@every_scheme
def test_a_state_of_another_optimizer_is_refused(scheme):
    """The first leaf that only one of the two has is named."""
    step = step_of(loss, OPTIMIZER, Parallel(scheme), devices=4)
    other = step_of(loss, optax.adam(0.1), Parallel(scheme), devices=4)
    with pytest.raises(StateError, match="of another optimizer") as caught:
        step(start(other, params()), *place(step, batch()))
    assert "'0.count', which this optimizer has not" in caught.value.what and "trainer.init" in caught.value.fix


@every_scheme
def test_an_optimizer_that_tells_matrices_from_vectors_keeps_its_state(scheme):
    """sm3 keeps one moment a dim, so its tree depends on the shapes; the device axis of pmap is no dim of them."""
    step = step_of(loss, SM3, Parallel(scheme), devices=4)
    step(start(step, {"w": np.ones(6, np.float32), "b": np.ones(1, np.float32)}), *place(step, batch()))
