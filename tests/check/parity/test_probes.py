"""What a loss shows by itself on one device: what is named, and what is a choice of the author's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import paceline
from paceline.check.parity import causes
from paceline.check.parity.narrow import throughout
from paceline.check.parity.probes import draws_numbers, interaction_culprits, task_culprits
from paceline.check.parity.reference import Reference
from tests.check.parity.problems import problem

pytestmark = pytest.mark.usefixtures("x64")

GENERATOR = np.random.default_rng(0)
ROWS = {"x": GENERATOR.normal(size=(8, 3)), "n": np.arange(8.0)}
PARAMS = {"w": np.array([0.5, -1.0, 2.0])}


def rows_of(params, batch):
    return (batch["x"] @ params["w"] - 1) ** 2


def culprits(loss, **options):
    given = problem(loss, [ROWS], params=PARAMS, **options)
    return [(found.cause, found.evidence) for found in task_culprits(given, Reference(throughout(given)))]


def mean(params, batch):
    return rows_of(params, batch).mean()


def bfloat16_mean(params, batch):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), rows_of(params, batch)).mean()


def with_penalty(params, batch):
    return rows_of(params, batch).mean() + 0.1 * (params["w"] ** 2).sum()


def with_metrics(params, batch):
    rows = rows_of(params, batch)
    return rows, {"rows": rows < 1, "weighted": paceline.Weighted(rows.sum(), jnp.float64(8)), "scalar": rows.mean()}


def fixed_features(params, batch):
    """A constant key for a matrix of the model, not for its rows."""
    matrix = jax.random.normal(jax.random.key(0), (3, 3))
    return rows_of(params, {**batch, "x": batch["x"] @ matrix})


def split_keys(params, batch, rng):
    first, second = jax.random.split(rng)
    noise = jax.random.normal(first, batch["x"].shape) + jax.random.normal(second, batch["x"].shape)
    return rows_of(params, {**batch, "x": batch["x"] + noise})


@pytest.mark.parametrize("loss", [mean, bfloat16_mean, with_penalty, with_metrics, fixed_features, split_keys])
def test_nothing_is_named_in_a_right_loss(loss):
    """Means in any type, penalties on the parameters, a fixed random matrix, keys that were split."""
    assert culprits(loss) == []


def total(params, batch):
    return rows_of(params, batch).sum()


def half_batch_mean(params, batch):
    return (rows_of(params, batch) * batch["n"]).sum() / batch["n"].sum()


def root_of_the_mean(params, batch):
    rows = rows_of(params, batch)
    return rows, {"rmse": jnp.sqrt(rows.mean())}


def count(params, batch):
    rows = rows_of(params, batch)
    return rows, {"correct": (rows < 1).astype(rows.dtype).sum()}


@pytest.mark.parametrize(
    ("loss", "cause", "words"),
    [
        (total, causes.NOT_A_MEAN, "the loss is a sum: twice the rows give twice the value"),
        (half_batch_mean, causes.MEAN_OF_MEANS, "the loss is "),
        (root_of_the_mean, causes.MEAN_OF_MEANS, "metric 'rmse' is "),
        (count, causes.METRIC_SUMMED, "metric 'correct' is a sum"),
    ],
)
def test_a_scalar_that_is_no_mean_is_named_with_its_numbers(loss, cause, words):
    """The one cause, and what it is about."""
    ((found, evidence),) = culprits(loss)
    assert found is cause
    assert evidence.startswith(words)


def test_the_numbers_told_are_those_of_the_rows():
    """Weights 0..7 on 8 rows: the mean of the halves' weighted means, by numpy, to the digits shown."""
    rows = (ROWS["x"] @ PARAMS["w"] - 1) ** 2
    means = [np.average(rows[part], weights=ROWS["n"][part]) for part in (slice(8), slice(4), slice(4, 8))]
    ((_, evidence),) = culprits(half_batch_mean)
    assert evidence == f"the loss is {means[0]:.6g} on all rows, and the mean of its halves {np.mean(means[1:]):.6g}"


def test_a_constant_key_for_rows_is_named_with_its_line():
    """Reused at every step, and the same on every device; the line is the user's, also where the loss is float32."""

    def loss(params, batch):
        mask = jax.random.bernoulli(jax.random.key(0), 0.5, batch["x"].shape)
        return rows_of(params, {**batch, "x": batch["x"] * mask}).astype(np.float32)

    found = culprits(loss)
    assert [cause for cause, _ in found] == [causes.KEY_EVERY_STEP, causes.SAME_MASK]
    assert all("test_probes.py:" in evidence for _, evidence in found)


def test_one_key_for_two_draws_is_named():
    """With the lines of both."""

    def loss(params, batch, rng):
        noise = jax.random.normal(rng, batch["x"].shape)
        mask = jax.random.bernoulli(rng, 0.5, batch["x"].shape)
        return rows_of(params, {**batch, "x": (batch["x"] + noise) * mask})

    ((cause, evidence),) = culprits(loss)
    assert cause is causes.KEY_SHARED
    assert evidence.count("test_probes.py:") == 2


@pytest.mark.parametrize("when", ["trace", "run"])
def test_a_loss_that_changes_by_itself_is_named_and_nothing_else(when):
    """A number of the host's, taken at trace time or at run time; what else is wrong cannot be told then."""
    numbers = iter(range(1, 100))

    def loss(params, batch):
        if when == "trace":
            return total(params, batch) * next(numbers)
        drawn = jax.pure_callback(lambda: np.float64(next(numbers)), jax.ShapeDtypeStruct((), np.float64))
        return total(params, batch) + jax.lax.stop_gradient(drawn)

    ((cause, evidence),) = culprits(loss)
    assert cause is causes.NONDETERMINISTIC
    assert evidence == {"trace": "tracing the loss twice gave two programs",
                        "run": "two runs on one device gave different values"}[when]  # fmt: skip


KEEP = 0.9


def normalising(*, kept):
    def loss(params, model_state, batch, rng):
        mean, spread = batch["x"].mean(0), kept(batch["x"])
        new = {"a": KEEP * model_state["a"] + 0.1 * mean, "b": KEEP * model_state["b"] + 0.1 * spread}
        return paceline.Outcome(rows_of(params, batch), {}, new)

    return loss


STATE = {"a": np.zeros(3), "b": np.ones(3)}


def test_a_variance_that_was_not_declared_is_named_by_its_leaf():
    """The mean of two halves falls short of the whole everywhere."""
    loss = normalising(kept=lambda x: x.var(0))
    assert culprits(loss, model_state=STATE) == [(causes.VARIANCE_AVERAGED, "model_state.b")]


@pytest.mark.parametrize("why", ["declared", "synced", "no variance"])
def test_statistics_that_are_merged_right_are_not_named(why):
    """Declared; taken over all devices anyway; or a mean of squares, of which halves have the right mean."""
    options = {"statistics": [paceline.RunningStatistics("a", "b", KEEP)]} if why == "declared" else {}
    loss = normalising(kept=(lambda x: (x**2).mean(0)) if why == "no variance" else lambda x: x.var(0))
    assert culprits(loss, model_state=STATE, synced=why == "synced", **options) == []


def centred(params, batch):
    return rows_of(params, {**batch, "x": batch["x"] - batch["x"].mean(0)})


def flat(params, batch, rng):
    mask = jax.random.bernoulli(rng, 0.5, (batch["x"].size,)).reshape(batch["x"].shape)
    return rows_of(params, {**batch, "x": batch["x"] * mask})


def row_keys(params, batch, rng):
    masks = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (3,)))(jax.random.split(rng, len(batch["n"])))
    return rows_of(params, {**batch, "x": batch["x"] * masks})


@pytest.mark.parametrize(
    ("loss", "cause"),
    [(centred, causes.ROWS_INTERACT), (flat, causes.MASK_CHANGES), (split_keys, None), (row_keys, None), (mean, None)],
)
def test_what_part_of_the_rows_would_have_otherwise_is_named(loss, cause):
    """Rows that see each other; a mask drawn flat; not draws by row, nor keys by row."""
    found = [culprit.cause for culprit in interaction_culprits(problem(loss, [ROWS], params=PARAMS))]
    assert found == ([] if cause is None else [cause])


def test_rows_that_see_each_other_a_little_are_found():
    """A share of 1e-6 of the batch mean."""

    def loss(params, batch):
        rows = rows_of(params, batch)
        return rows + 1e-6 * rows.mean()

    (found,) = interaction_culprits(problem(loss, [ROWS], params=PARAMS))
    assert found.cause is causes.ROWS_INTERACT


@pytest.mark.parametrize(("loss", "expected"), [(mean, False), (split_keys, True), (fixed_features, True)])
def test_draws_are_seen(loss, expected):
    """Whether from the key given or from another."""
    assert draws_numbers(problem(loss, [ROWS], params=PARAMS)) == expected
