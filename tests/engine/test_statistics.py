"""Model state over devices: BatchNorm as on one device, running statistics of the union, everything else kept."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.base.errors import SchemeError, StateError
from paceline.engine.parallel import Parallel
from paceline.tasks.losses import Outcome
from paceline.tasks.task import RunningStatistics
from tests.engine.helpers import LOCAL_SCHEMES, SCHEMES, assert_close, lowered_text, run, shard_bytes, step_of

MOMENTUM, EPSILON, SEED = 0.9, 1e-5, 5
DESCENT = optax.sgd(1.0)
MOMENTUM_DESCENT = optax.sgd(0.1, momentum=0.9)
NORM = (RunningStatistics(mean="bn.mean", variance="bn.var", momentum=MOMENTUM),)

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
local_scheme = pytest.mark.parametrize("scheme", LOCAL_SCHEMES)


def batch_norm(old, x):
    """Normalised rows, and the running statistics after them (biased variance, as Flax keeps it)."""
    mean, variance = x.mean(axis=0), x.var(axis=0)
    new = {
        "mean": MOMENTUM * old["mean"] + (1 - MOMENTUM) * mean,
        "var": MOMENTUM * old["var"] + (1 - MOMENTUM) * variance,
    }
    return (x - mean) / jnp.sqrt(variance + EPSILON), new


def normed(params, model_state, batch, rng):
    """BatchNorm, one layer, and beside the statistics a counter, a flag, a key and a scalar float."""
    hidden, new = batch_norm(model_state["bn"], batch["x"])
    rows = (hidden @ params["w"] - batch["y"]) ** 2
    state = {
        "bn": new,
        "calls": model_state["calls"] + 1,
        "seen": model_state["seen"] | True,
        "key": jax.random.fold_in(model_state["key"], 1),
        "share": 0.5 * model_state["share"] + 0.5 * batch["y"].mean(),
    }
    return Outcome(rows, model_state=state)


def normed_dropped(params, model_state, batch, rng):
    """BatchNorm, then dropout of its outputs."""
    hidden, new = batch_norm(model_state["bn"], batch["x"] @ params["v"])
    hidden = jnp.where(jax.random.bernoulli(rng, 0.5, hidden.shape), hidden / 0.5, 0)
    return Outcome((hidden @ params["w"] - batch["y"]) ** 2, model_state={"bn": new})


def start_state(features: int) -> dict:
    return {
        "bn": {"mean": np.zeros(features), "var": np.ones(features)},
        "calls": np.int32(0),
        "seen": np.asarray(False),
        "key": jax.random.key(3),
        "share": np.zeros(()),
    }


def random_batches(rows: int, features: int, *, steps: int) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(6)
    return [{"x": draw.normal(2, 3, size=(rows, features)), "y": draw.normal(size=rows)} for _ in range(steps)]


@every_scheme
def test_running_statistics_are_those_of_all_rows(scheme):
    """Case 7, device d sees two rows of value d: mean 0.15, variance 1.025 (averaged local variances give 0.9)."""
    values = np.repeat(np.arange(4.0), 2)
    batch = {"x": values[:, None], "y": values}
    with jax.enable_x64(True):
        step = step_of(normed, DESCENT, Parallel(scheme), devices=4, statistics=NORM)
        got = run(step, [batch], params={"w": np.ones(1)}, model_state=start_state(1))
    assert got.state["model_state"]["bn"]["mean"] == pytest.approx(0.15, abs=1e-12)
    assert got.state["model_state"]["bn"]["var"] == pytest.approx(1.025, abs=1e-12)
    assert len(set(shard_bytes(got.placed.model_state["bn"]["var"]))) == 1


def union_statistics(batches, *, devices: int, parts: int, features: int) -> dict[str, np.ndarray]:
    """numpy: microbatch j is, on each device, rows j, j + n, ...; its statistics are those of all devices' rows."""
    mean, variance = np.zeros(features), np.ones(features)
    for batch in batches:
        of_device = np.split(batch["x"], devices)
        for part in range(parts):
            union = np.concatenate([rows[part::parts] for rows in of_device])
            mean = MOMENTUM * mean + (1 - MOMENTUM) * union.mean(axis=0)
            variance = MOMENTUM * variance + (1 - MOMENTUM) * union.var(axis=0)
    return {"mean": mean, "var": variance}


@local_scheme
@pytest.mark.parametrize("parts", [1, 4])
def test_microbatches_update_the_statistics_in_turn(scheme, parts):
    """Two updates on two devices, one and four microbatches: equal to numpy's statistics of the unions to 1e-12."""
    batches = random_batches(16, 3, steps=2)
    with jax.enable_x64(True):
        step = step_of(normed, DESCENT, Parallel(scheme, accumulation=parts), devices=2, statistics=NORM)
        got = run(step, batches, params={"w": np.ones(3)}, model_state=start_state(3))
    wanted = union_statistics(batches, devices=2, parts=parts, features=3)
    assert_close(got.state["model_state"]["bn"], wanted, tolerance=1e-12)


@local_scheme
def test_rows_are_normalised_by_their_own_devices_statistics(scheme):
    """Local BatchNorm on two devices: loss and gradient equal numpy's, halves normalised apart, to 1e-10 (float64)."""
    batch = random_batches(16, 3, steps=1)[0]
    with jax.enable_x64(True):
        step = step_of(normed, DESCENT, Parallel(scheme), devices=2, statistics=NORM)
        got = run(step, [batch], params={"w": np.ones(3)}, model_state=start_state(3))
    normal = np.concatenate([(x - x.mean(0)) / np.sqrt(x.var(0) + EPSILON) for x in np.split(batch["x"], 2)])
    error = normal @ np.ones(3) - batch["y"]
    assert got.metrics[0]["loss"] == pytest.approx((error**2).mean(), rel=1e-10)
    np.testing.assert_allclose(1 - got.state["params"]["w"], 2 * normal.T @ error / 16, rtol=1e-10)


@local_scheme
def test_what_is_no_statistic_keeps_its_type_and_its_meaning(scheme):
    """Four microbatches: a counter says 4 and not 8, a flag stays one, a key is folded 4 times, a float averaged."""
    batch = random_batches(16, 3, steps=1)[0]
    with jax.enable_x64(True):
        step = step_of(normed, DESCENT, Parallel(scheme, accumulation=4), devices=2, statistics=NORM)
        state = run(step, [batch], params={"w": np.ones(3)}, model_state=start_state(3)).state["model_state"]
    share, key = 0.0, jax.random.key(3)
    for part in range(4):
        key = jax.random.fold_in(key, 1)
        share = 0.5 * share + 0.5 * batch["y"].reshape(2, 8)[:, part::4].mean()
    assert state["calls"] == 4 and state["calls"].dtype == np.int32
    assert state["seen"] and state["seen"].dtype == bool
    np.testing.assert_array_equal(state["key"], jax.random.key_data(key))
    assert state["share"] == pytest.approx(share, abs=1e-12)


def test_statistics_in_float32_survive_a_large_mean():
    """Values near 1e4 apart by 0, 1, 2, 3 on four devices: variance to 1e-3, though its squares are 1e8 (float32)."""
    values = np.repeat(1e4 + np.arange(4.0), 2).astype(np.float32)
    state = start_state(1)
    state["bn"] = {"mean": np.full(1, 1e4, np.float32), "var": np.ones(1, np.float32)}
    step = step_of(normed, DESCENT, Parallel("per_device"), devices=4, statistics=NORM)
    batch = {"x": values[:, None], "y": np.zeros(8, np.float32)}
    got = run(step, [batch], params={"w": np.ones(1, np.float32)}, model_state=state)
    assert got.state["model_state"]["bn"]["var"] == pytest.approx(1.025, abs=1e-3)
    assert got.state["model_state"]["bn"]["mean"].dtype == np.float32


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_batch_norm_and_dropout_under_global_view_are_those_of_one_device(devices):
    """Two updates: params, optimizer state, statistics and loss equal plain JAX to 1e-10 (float64)."""
    batches = random_batches(16, 3, steps=2)
    draw = np.random.default_rng(8)
    params = {"v": draw.normal(size=(3, 5)), "w": draw.normal(size=5)}
    model_state = {"bn": {"mean": np.zeros(5), "var": np.ones(5)}}
    with jax.enable_x64(True):
        step = step_of(normed_dropped, MOMENTUM_DESCENT, Parallel(), devices=devices)
        got = run(step, batches, params=params, model_state=model_state, seed=SEED)
        wanted, losses = one_device(batches, params, model_state)
    assert_close({name: got.state[name] for name in wanted}, wanted, tolerance=1e-10)
    assert_close([values["loss"] for values in got.metrics], losses, tolerance=1e-10)


def one_device(batches, params, model_state):
    """The training that one would write without Paceline."""

    def mean_loss(params, model_state, batch, key):
        outcome = normed_dropped(params, model_state, batch, key)
        return outcome.loss.mean(), outcome.model_state

    params, opt_state, losses = jax.tree.map(jnp.asarray, params), MOMENTUM_DESCENT.init(params), []
    gradient_of = jax.jit(jax.value_and_grad(mean_loss, has_aux=True))
    for number, batch in enumerate(batches):
        key = jax.random.fold_in(jax.random.key(SEED, impl="threefry2x32"), number)
        (loss, model_state), gradient = gradient_of(params, model_state, batch, key)
        updates, opt_state = MOMENTUM_DESCENT.update(gradient, opt_state)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    return {"params": params, "opt_state": opt_state, "model_state": model_state}, losses


@local_scheme
def test_an_undeclared_running_variance_is_refused(scheme):
    """The leaf is named; declared as the fix says, synced or under `global_view`, the same loss trains."""
    batch = random_batches(8, 3, steps=1)[0]
    given = {"params": {"w": np.ones(3)}, "model_state": start_state(3)}
    with jax.enable_x64(True):
        with pytest.raises(StateError) as caught:
            lowered_text(step_of(normed, DESCENT, Parallel(scheme), devices=2), batch, **given)
        assert "'bn.var'" in caught.value.what
        assert "RunningStatistics" in caught.value.fix and "variance='bn.var'" in caught.value.fix
        lowered_text(step_of(normed, DESCENT, Parallel("global_view"), devices=2), batch, **given)
        lowered_text(step_of(normed, DESCENT, Parallel(scheme), devices=1), batch, **given)
        lowered_text(step_of(normed, DESCENT, Parallel(scheme), devices=2, statistics=NORM), batch, **given)


@pytest.mark.parametrize("entry", [{"mean": "bn.men"}, {"variance": "batch_stats.var"}])
def test_declared_statistics_that_are_not_there_are_refused(entry):
    """The path is named, and the fix lists the leaves that there are."""
    statistics = (RunningStatistics(**{"mean": "bn.mean", "variance": "bn.var", "momentum": MOMENTUM} | entry),)
    step = step_of(normed, DESCENT, Parallel("per_device"), devices=2, statistics=statistics)
    batch = random_batches(8, 3, steps=1)[0]
    with pytest.raises(StateError) as caught:
        run(step, [batch], params={"w": np.ones(3)}, model_state=start_state(3))
    assert next(iter(entry.values())) in caught.value.what
    assert "bn.mean" in caught.value.fix and "bn.var" in caught.value.fix


@every_scheme
def test_a_model_state_of_another_tree_is_refused(scheme):
    """A loss that returns a part of it: said before the first step, whatever the scheme."""

    def forgets(params, model_state, batch, rng):
        return Outcome(params["w"] * batch["x"], model_state={"a": model_state["a"]})

    step = step_of(forgets, DESCENT, Parallel(scheme), devices=2)
    with pytest.raises(StateError, match="whole model state") as caught:
        run(step, [{"x": np.ones(2)}], params={"w": np.ones(())}, model_state={"a": np.zeros(2), "b": np.zeros(2)})
    assert "'b'" in caught.value.what


def test_a_model_state_leaf_of_another_shape_is_refused():
    """Per-row values where a scalar was: leaf and both shapes are named."""

    def grows(params, model_state, batch, rng):
        return Outcome(params["w"] * batch["x"], model_state={"a": {"seen": model_state["a"]["seen"] + batch["x"]}})

    step = step_of(grows, DESCENT, Parallel("per_device"), devices=2)
    with pytest.raises(StateError) as caught:
        run(step, [{"x": np.ones(6)}], params={"w": np.ones(())}, model_state={"a": {"seen": np.zeros(())}})
    assert "'a.seen'" in caught.value.what and "()" in caught.value.what and "(3,)" in caught.value.what


def test_a_model_state_in_another_type_comes_back_in_its_own():
    """A loss in bfloat16 returns bfloat16 statistics: kept in float32, so that the next step takes them."""

    def casts(params, model_state, batch, rng):
        return Outcome(
            params["w"] * batch["x"], model_state=jax.tree.map(lambda x: x.astype(jnp.bfloat16), model_state)
        )

    step = step_of(casts, DESCENT, Parallel("per_device"), devices=2)
    got = run(step, [{"x": np.ones(2, np.float32)}] * 2, params={"w": np.float32(1)}, model_state={"a": np.float32(3)})
    assert got.state["model_state"]["a"] == 3 and got.state["model_state"]["a"].dtype == np.float32
    assert step.compilations == 1


def with_state(make):
    """A loss whose next model state is ``make(model_state, batch, rng)``."""

    def loss(params, model_state, batch, rng):
        return Outcome((batch["x"] * params["w"]) ** 2, {}, make(model_state, batch, rng))

    return loss


@every_scheme
def test_a_complex_leaf_is_averaged(scheme):
    """By numpy: the mean of i * x over all rows, to 1e-6."""
    step = step_of(
        with_state(lambda state, batch, rng: {"q": 1j * batch["x"].mean()}), DESCENT, Parallel(scheme), devices=4
    )
    x = np.arange(8, dtype=np.float32)
    ran = run(step, [{"x": x}], params={"w": np.float32(0)}, model_state={"q": np.zeros((), np.complex64)})
    np.testing.assert_allclose(ran.state["model_state"]["q"], 1j * x.mean(), rtol=1e-6)


def test_a_key_of_another_kind_is_refused():
    """The step's key draws by position and is no key of the default kind; a key of the state's own comes through."""
    rows = {"x": np.ones(8, np.float32)}
    start_from = {"params": {"w": np.float32(0)}, "model_state": {"k": jax.random.key(0)}}
    with pytest.raises(StateError, match="model state leaf 'k' changed its type from key<fry>") as caught:
        run(
            step_of(with_state(lambda state, batch, rng: {"k": rng}), DESCENT, Parallel("per_device"), devices=4),
            [rows],
            **start_from,
        )
    assert "split or fold_in the key that the model state holds" in caught.value.fix
    kept = with_state(lambda state, batch, rng: {"k": jax.random.fold_in(state["k"], 1)})
    run(step_of(kept, DESCENT, Parallel("per_device"), devices=4), [rows], **start_from)


def test_a_plain_loss_cannot_be_told_to_sync():
    """`batch_norm='synced'` for a task that does not say how: the fix names the axis and `global_view`."""
    with pytest.raises(SchemeError, match="synced") as caught:
        step_of(normed, DESCENT, Parallel("per_device", batch_norm="synced"), devices=2)
    assert "axis_name='data'" in caught.value.fix and "global_view" in caught.value.fix
    step_of(normed, DESCENT, Parallel("global_view", batch_norm="synced"), devices=2)
