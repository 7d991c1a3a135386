"""The one-device answer, against numpy and pencil: it is what everything else is compared with."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import optax
import pytest

import paceline
from paceline.base.errors import LossError, TaskError
from paceline.check.parity.reference import Reference, Split, averaged
from paceline.engine.parallel import Parallel
from paceline.engine.rng import base_key, step_key
from tests.check.parity.problems import problem

GENERATOR = np.random.default_rng(0)
X, Y, W0 = GENERATOR.normal(size=(2, 8, 3)), GENERATOR.normal(size=(2, 8)), np.array([0.5, -1.0, 2.0])
VALID = [[True] * 8, [True, False, True, True, True, False, False, False]]
BATCHES = [({"x": x, "y": y}, valid) for x, y, valid in zip(X, Y, VALID, strict=True)]
SPLITS = [Split(), Split(groups=4), Split(microbatches=2), Split(groups=2, microbatches=2)]


def squares(params, batch):
    return (batch["x"] @ params["w"] - batch["y"]) ** 2


def with_metric(params, batch):
    rows = squares(params, batch)
    return rows, {"small": rows < 1}


def tokens(params, batch):
    return paceline.Weighted(squares(params, batch) * batch["n"], batch["n"])


@pytest.fixture(autouse=True)
def _float64(x64):
    """Everything here is float64, but where a test says so."""


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_updates_are_those_of_momentum_by_hand(split):
    """Two updates of 8 and 4 valid rows, however they are taken: g = mean 2(xw - y)x, m = 0.9m + g, w -= 0.1m."""
    given = problem(with_metric, BATCHES, params={"w": W0}, optimizer=optax.sgd(0.1, momentum=0.9))
    found = Reference(given, split).run()
    w, m = W0, np.zeros(3)
    for seen, x, y, valid in zip(found, X, Y, VALID, strict=True):
        x, y = x[valid], y[valid]
        error = x @ w - y
        gradient = 2 * (error[:, None] * x).mean(0)
        np.testing.assert_allclose(seen["loss"], (error**2).mean(), rtol=1e-13)
        np.testing.assert_allclose(seen["metrics.small"], (error**2 < 1).mean(), rtol=1e-13)
        m = 0.9 * m + gradient
        w = w - 0.1 * m
        for name, wanted in (("gradient.w", gradient), ("opt_state.0.trace.w", m), ("params.w", w)):
            np.testing.assert_allclose(seen[name], wanted, rtol=1e-13, err_msg=name)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_weights_divide_once(split):
    """Sum of n times error over the sum of n, over all rows; rtol 1e-13."""
    n = np.array([1.0, 7, 0, 2, 0, 0, 3, 11])
    found = Reference(problem(tokens, [{"x": X[0], "y": Y[0], "n": n}], params={"w": W0}), split).run()[0]
    error = X[0] @ W0 - Y[0]
    np.testing.assert_allclose(found["loss"], (n * error**2).sum() / n.sum(), rtol=1e-13)
    np.testing.assert_allclose(found["gradient.w"], 2 * ((n * error)[:, None] * X[0]).sum(0) / n.sum(), rtol=1e-13)


def test_a_batch_without_valid_rows_has_gradient_zero_and_loss_zero():
    """0 over 0 is 0: nothing moves, not even by weight decay, and no update is counted."""
    batches = [({"x": X[0], "y": Y[0]}, [False] * 8)]
    optimizer = optax.adamw(0.1, weight_decay=0.5)
    found = Reference(problem(squares, batches, params={"w": W0}, optimizer=optimizer)).run()[0]
    assert (found["loss"], found["opt_state.0.count"]) == (0, 0)
    np.testing.assert_array_equal(found["gradient.w"], np.zeros(3))
    np.testing.assert_array_equal(found["params.w"], W0)


def test_the_clip_follows_the_mean():
    """Device gradients (6, 8), (0.3, -0.4), 0, 0: mean (1.575, 1.9), at norm 1 (0.6382, 0.7699). To 1e-4."""
    rows = {"g": np.array([[6, 8], [0.3, -0.4], [0, 0], [0, 0]])}
    given = problem(
        lambda params, batch: batch["g"] @ params["w"], [rows], params={"w": np.zeros(2)},
        parallel=Parallel(clip_norm=1.0), optimizer=optax.sgd(1.0),
    )  # fmt: skip
    found = Reference(given, Split(groups=4)).run()[0]
    np.testing.assert_allclose(found["gradient.w"], [0.6382, 0.7699], atol=1e-4)
    np.testing.assert_array_equal(found["params.w"], -found["gradient.w"])


def test_a_gradient_below_the_clip_is_left_alone():
    """Norm 5 under a limit of 5.1: bit for bit."""
    given = problem(
        lambda params, batch: batch["g"] @ params["w"], [{"g": np.array([[3.0, 4.0]])}], params={"w": np.zeros(2)},
        parallel=Parallel(clip_norm=5.1),
    )  # fmt: skip
    assert Reference(given).run()[0]["gradient.w"].tolist() == [3, 4]


def test_the_moving_average_follows_the_parameters():
    """From 1: unit gradients at rate 0.1 give 0.9 and 0.8; decay 0.9 gives 0.99 and 0.971. rtol 1e-13."""
    rows = {"x": np.ones(2)}
    given = problem(
        lambda params, batch: batch["x"] * params["w"], [rows, rows], params={"w": np.ones(())},
        parallel=Parallel(ema_decay=0.9),
    )  # fmt: skip
    np.testing.assert_allclose([seen["ema.w"] for seen in Reference(given).run()], [0.99, 0.971], rtol=1e-13)


def dropped(params, batch, rng):
    return squares(params, {**batch, "x": batch["x"] * jax.random.bernoulli(rng, 0.5, batch["x"].shape)})


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_masks_are_those_of_one_device(split):
    """Gradient under the mask that plain JAX draws for all rows from the key of each step; rtol 1e-13."""
    given = problem(dropped, [BATCHES[0][0]] * 2, params={"w": W0}, optimizer=optax.sgd(0.0), seed=5)
    for update, seen in enumerate(Reference(given, split).run()):
        mask = jax.random.bernoulli(step_key(base_key(5), jax.numpy.int32(update)), 0.5, (8, 3))
        x = X[0] * np.asarray(mask)
        np.testing.assert_allclose(seen["gradient.w"], 2 * ((x @ W0 - Y[0])[:, None] * x).mean(0), rtol=1e-13)


def test_own_keys_give_every_group_the_mask_of_the_first():
    """The fault of a shared mask: 4 groups of 2 rows with the mask of 2 rows."""
    given = problem(dropped, [BATCHES[0][0]], params={"w": W0})
    mask = np.asarray(jax.random.bernoulli(step_key(base_key(0), jax.numpy.int32(0)), 0.5, (2, 3)))
    x = X[0] * np.tile(mask, (4, 1))
    found = Reference(given, Split(groups=4), own_keys=True).run()[0]
    np.testing.assert_allclose(found["gradient.w"], 2 * ((x @ W0 - Y[0])[:, None] * x).mean(0), rtol=1e-13)


KEEP = 0.9


def batch_norm(params, model_state, batch, rng):
    mean, variance = batch["x"].mean(), batch["x"].var()
    z = (batch["x"] - mean) / (variance + 1e-5) ** 0.5
    kept = {
        "mean": KEEP * model_state["mean"] + (1 - KEEP) * mean,
        "variance": KEEP * model_state["variance"] + (1 - KEEP) * variance,
        "seen": model_state["seen"] + 1,
    }
    return paceline.Outcome((z * params["w"] - 1) ** 2, {}, kept)


STATISTICS = [paceline.RunningStatistics("mean", "variance", KEEP)]


def normalising(x, *, declared=True):
    state = {"mean": np.zeros(()), "variance": np.ones(()), "seen": np.zeros((), np.int32)}
    return problem(
        batch_norm, [{"x": np.asarray(x, float)}], params={"w": np.full((), 0.5)}, model_state=state,
        statistics=STATISTICS if declared else (),
    )  # fmt: skip


PAIRS = [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("declared", "rule", "variance"), [(True, None, 1.025), (False, None, 0.9), (True, averaged, 0.9)]
)
def test_statistics_of_groups_are_those_of_the_union_if_declared(declared, rule, variance):
    """Device d has two rows of value d: mean 0.15; variance 0.9 + 0.1 * 1.25; averaged, that of zeros. 1e-12."""
    options = {} if rule is None else {"combine": rule}
    found = Reference(normalising(PAIRS, declared=declared), Split(groups=4), **options).run()[0]
    np.testing.assert_allclose(found["model_state.mean"], 0.15, rtol=1e-12)
    np.testing.assert_allclose(found["model_state.variance"], variance, rtol=1e-12)
    assert found["model_state.seen"] == 1


def statistics_by_hand(parts):
    mean, variance = 0.0, 1.0
    for rows in parts:
        mean, variance = KEEP * mean + 0.1 * rows.mean(), KEEP * variance + 0.1 * rows.var()
    return mean, variance


def gradient_by_hand(parts):
    """d/dw of the mean over all rows of (zw - 1)^2, z normalised within each part, at w = 0.5."""
    z = np.concatenate([(part - part.mean()) / np.sqrt(part.var() + 1e-5) for part in parts])
    return (2 * z * (0.5 * z - 1)).mean()


def test_microbatches_normalise_their_own_rows_one_after_the_other():
    """Microbatch j of 2 takes rows j, j + 2, ...; statistics move twice. rtol 1e-13."""
    x = GENERATOR.normal(size=8)
    found = Reference(normalising(x), Split(microbatches=2)).run()[0]
    parts = [x[0::2], x[1::2]]
    np.testing.assert_allclose(found["gradient.w"], gradient_by_hand(parts), rtol=1e-13)
    kept = found["model_state.mean"], found["model_state.variance"]
    np.testing.assert_allclose(kept, statistics_by_hand(parts), rtol=1e-13)
    assert found["model_state.seen"] == 2


def test_groups_of_microbatches_merge_every_microbatch():
    """2 groups of 4 rows in 2 microbatches: each part normalised alone, statistics of each pair's union. rtol 1e-12."""
    x = GENERATOR.normal(size=8)
    found = Reference(normalising(x), Split(groups=2, microbatches=2)).run()[0]
    halves = [x[:4], x[4:]]
    parts = [half[j::2] for half in halves for j in range(2)]
    np.testing.assert_allclose(found["gradient.w"], gradient_by_hand(parts), rtol=1e-13)
    unions = [np.concatenate([half[j::2] for half in halves]) for j in range(2)]
    kept = found["model_state.mean"], found["model_state.variance"]
    np.testing.assert_allclose(kept, statistics_by_hand(unions), rtol=1e-12)


def test_float16_computes_in_float16_and_keeps_its_parameters():
    """w = 1 + 2^-12 is 1 in float16: gradient of (wx)^2 at x = 3 is 18, not 18.004; w moves from where it was."""
    w = np.float32(1 + 2.0**-12)
    with jax.enable_x64(False):
        given = problem(
            lambda params, batch: (batch["x"] * params["w"]) ** 2, [{"x": np.full(2, 3, np.float32)}],
            params={"w": w}, parallel=Parallel(precision="float16"), optimizer=optax.sgd(1.0),
        )  # fmt: skip
        found = Reference(given).run()[0]
    assert (found["gradient.w"], found["params.w"]) == (18, w - np.float32(18))
    assert found["params.w"].dtype == found["gradient.w"].dtype == np.float32


def test_an_optimizer_is_given_the_loss():
    """Some ask for `value`: 0.5 of it is taken off the parameter. Exact."""

    def update(updates, state, params=None, **extra):
        return {"w": -0.5 * extra["value"]}, state

    optimizer = optax.GradientTransformationExtraArgs(lambda params: (), update)
    given = problem(
        lambda params, batch: batch["x"] * params["w"], [{"x": np.full(2, 4.0)}], params={"w": np.ones(())},
        optimizer=optimizer,
    )  # fmt: skip
    assert Reference(given).run()[0]["params.w"] == 1 - 2


@pytest.mark.filterwarnings("ignore:overflow|invalid")
def test_a_loss_that_is_not_finite_cannot_be_compared_with():
    """Update 2 gives infinity: it is named with its number."""
    batches = [{"x": np.ones(2)}, {"x": np.full(2, 1e200)}]
    given = problem(lambda params, batch: (batch["x"] * params["w"]) ** 2, batches, params={"w": np.ones(())})
    with pytest.raises(LossError, match="not finite at update 2 on one device"):
        Reference(given).run()


def test_a_loss_that_does_not_trace_is_named_with_its_line():
    """The user's words and file."""

    def broken(params, batch):
        return batch["x"] + params["v"]

    with pytest.raises(TaskError, match="KeyError: 'v'") as caught:
        Reference(problem(broken, [{"x": np.ones(2)}], params={"w": np.ones(())})).run()
    assert "test_reference.py" in caught.value.fix


def test_starts_moved_by_rounding_give_other_last_places_from_one_program():
    """Three runs, all different from the plain one, by less than 1e-13; one compiled program."""
    reference = Reference(problem(squares, BATCHES, params={"w": W0}))
    plain, moved = reference.run(), reference.nudged(2.0**-52)
    gaps = [np.abs(run[1]["params.w"] / plain[1]["params.w"] - 1).max() for run in moved]
    assert len(gaps) == 3 and all(0 < gap < 1e-13 for gap in gaps)
    assert reference.program._cache_size() == 1


def test_the_text_is_the_same_unless_the_host_decides():
    """numpy's generator in the trace gives another program each time; a constant array counts as well."""
    constants = iter(np.eye(8))

    def moody(params, batch):
        return squares(params, batch) + next(constants)

    plain, odd = (Reference(problem(loss, BATCHES[:1], params={"w": W0})) for loss in (squares, moody))
    assert plain.text() == plain.text()
    assert odd.text() != odd.text()


def test_a_start_is_not_changed_by_a_run():
    """The same trace twice, bit for bit."""
    reference = Reference(problem(squares, BATCHES, params={"w": W0}))
    first, second = reference.run(), reference.run(dataclasses.replace(reference.problem))
    assert all(np.array_equal(one[name], two[name]) for one, two in zip(first, second, strict=True) for name in one)
