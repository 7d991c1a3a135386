"""Every known cause, planted where users plant it, is named; the same code without it is verified."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import paceline
from paceline.check.parity import causes
from paceline.check.parity.verify import verify
from tests.check.parity import planted

pytestmark = pytest.mark.once(
    reason="which cause is named follows from numbers and traces; test_verify, test_probes and test_handwritten prove "
    "those at both ends"
)


def verified_step(step, *, loss=planted.mean_error, optimizer=planted.SGD, devices=(4,), clip_norm=None, **task):
    """A step against the loss of one device, on K = 4."""
    return verify(
        paceline.task(loss, **task), optimizer, data=planted.table(), params=planted.params(),
        model_state=planted.model_state() if task else None, parallel=paceline.Parallel(clip_norm=clip_norm),
        step=step, devices=devices, accumulation=(4,), updates=2,
    )  # fmt: skip


def verified_task(loss, *, schemes=("per_device",), devices=(2,), accumulation=(1,), model_state=None, **task):
    """A task under Paceline's own step, in the fewest programs that show its mistake."""
    return verify(
        paceline.task(loss, **task), planted.SGD, data=planted.table(), params=planted.params(),
        model_state=planted.model_state() if "statistics" in task else model_state, schemes=schemes,
        placements=("replicated",), devices=devices, accumulation=accumulation, updates=2, batch=16,
    )  # fmt: skip


def named(outcome) -> set[str]:
    """Names of the causes."""
    return {culprit.cause.name for culprit in outcome.culprits}


STEPS = {
    "under check_vma=True, pmean": (planted.times_k, {}, causes.GRADIENT_TIMES_K),
    "under check_vma=True, psum": (planted.times_k_squared, {}, causes.GRADIENT_TIMES_K2),
    "divided twice": (lambda: planted.over_k, {}, causes.GRADIENT_OVER_K),
    "no pmean": (lambda: planted.never_reduced, {}, causes.NEVER_REDUCED),
    "mean of token means": (lambda: planted.mean_of_means, {"loss": planted.token_error}, causes.MEAN_OF_MEANS),
    "clip, then mean": (lambda: planted.clip_first, {"clip_norm": 0.5}, causes.CLIP_BEFORE_MEAN),
    "mask ignored": (
        lambda: planted.masked_step(uses_mask=False), {"loss": planted.error}, causes.PADDING_COUNTED,
    ),
    "one key for all devices": (lambda: planted.same_mask, {"loss": planted.dropped_error}, causes.SAME_MASK),
    "a key a device": (lambda: planted.mask_of_device, {"loss": planted.dropped_error}, causes.MASK_CHANGES),
    "a constant key": (lambda: planted.constant_key, {"loss": planted.dropped_error}, causes.KEY_EVERY_STEP),
    "one key twice": (lambda: planted.shared_key_step, {"loss": planted.two_keys}, causes.KEY_SHARED),
    "statistics kept apart": (
        lambda: planted.statistics_drift,
        {"loss": planted.batch_norm_loss, "statistics": planted.STATISTICS},
        causes.BATCH_NORM_DRIFTS,
    ),
    "statistics averaged": (
        lambda: planted.variance_averaged,
        {"loss": planted.batch_norm_loss, "statistics": planted.STATISTICS},
        causes.VARIANCE_AVERAGED,
    ),
    "psum of a mean": (lambda: planted.metric_summed, {"loss": planted.with_accuracy}, causes.METRIC_SUMMED),
    "optimizer asked n times": (
        lambda: planted.schedule_step, {"optimizer": planted.SCHEDULED}, causes.SCHEDULE_COUNTS_MICROBATCHES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", STEPS)
def test_the_mistake_of_a_step_is_named(mistake):
    """The cause and no other, but for keys: a constant key is the same on all devices too."""
    make, options, cause = STEPS[mistake]
    outcome = verified_step(make(), **options)
    assert not outcome.ok
    allowed = {cause.name}
    if cause in (causes.KEY_EVERY_STEP, causes.KEY_SHARED):
        allowed |= {causes.SAME_MASK.name}
    assert cause.name in named(outcome) and named(outcome) <= allowed, outcome.lines()


RIGHT_STEPS = {
    "a function to be mapped": (lambda: planted.right_bare, {}),
    "pmap with donation": (lambda: planted.right_pmap, {}),
    "shard_map": (planted.right_sharded, {}),
    "tokens": (lambda: planted.right_tokens, {"loss": planted.token_error}),
    "mean, then clip": (lambda: planted.clip_last, {"clip_norm": 0.5}),
    "mask": (lambda: planted.masked_step(uses_mask=True), {"loss": planted.error}),
    "metric": (lambda: planted.metric_right, {"loss": planted.with_accuracy}),
    "statistics of the union": (
        lambda: planted.right_statistics, {"loss": planted.batch_norm_loss, "statistics": planted.STATISTICS},
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", RIGHT_STEPS)
def test_a_right_step_is_verified(way):
    """Equal in float64 to 1e-10 and in float32, no cause named."""
    make, options = RIGHT_STEPS[way]
    outcome = verified_step(make(), **options)
    assert outcome.ok, outcome.lines()
    assert {result.precision for result in outcome.results} == {"float64", "float32"}


TASKS = {
    "a sum": (planted.sum_loss, {}, {causes.NOT_A_MEAN}),
    "a weighted mean of its own": (planted.own_mean, {}, {causes.MEAN_OF_MEANS}),
    "rows that see each other": (planted.contrastive, {}, {causes.ROWS_INTERACT}),
    "a constant key": (planted.constant_dropout, {}, {causes.KEY_EVERY_STEP, causes.SAME_MASK}),
    "one key twice": (planted.one_key_twice, {}, {causes.KEY_SHARED}),
    "a flat draw": (planted.flat_draw, {}, {causes.MASK_CHANGES}),
    "a metric that is a sum": (planted.metric_sum, {}, {causes.METRIC_SUMMED}),
    "numpy noise in the trace": (planted.noise_of_the_host, {}, {causes.NONDETERMINISTIC}),
    "numpy noise in a callback": (planted.callback_noise, {}, {causes.NONDETERMINISTIC}),
    "rows less their mean": (planted.centred, {}, {causes.ROWS_INTERACT}),
    "no slope": (planted.flat, {}, {causes.NOTHING_SHOWN}),
    "sums in the model state": (
        planted.counts_rows,
        {"model_state": {"count": np.zeros((), np.int32), "sum": np.zeros((), np.float32)}},
        {causes.STATE_SUMMED},
    ),
    "a variance not declared": (
        planted.batch_norm_loss,
        {"model_state": planted.model_state()},
        {causes.VARIANCE_AVERAGED},
    ),
}


@pytest.mark.parametrize("mistake", TASKS)
def test_the_mistake_of_a_task_is_named(mistake):
    """The causes and no other."""
    loss, options, expected = TASKS[mistake]
    outcome = verified_task(loss, **options)
    assert not outcome.ok
    assert named(outcome) == {cause.name for cause in expected}, outcome.lines()


@pytest.mark.parametrize(
    ("loss", "task"),
    [
        (planted.mean_error, {}),
        (planted.with_accuracy, {}),
        (planted.token_error, {}),
        (planted.two_keys, {}),
        (planted.batch_norm_loss, {"statistics": planted.STATISTICS}),
    ],
)
def test_a_right_task_is_verified(loss, task):
    """Every scheme on 2 devices, n = 1 and 2, in float64 to 1e-10 and in float32; no cause named."""
    schemes = ("global_view", "per_device", "pmap")
    outcome = verified_task(loss, schemes=schemes, accumulation=(1, 2), **task)
    assert outcome.ok, outcome.lines()
    assert len(outcome.results) == 2 * 3 * 2


def test_facts_of_the_gradient_table(x64):
    """x = 0..7, y = 2x, w = 0, loss mean((xw - y)^2): loss 70, gradient -70 by pencil."""
    data = {"x": jax.numpy.arange(8.0), "y": 2 * jax.numpy.arange(8.0)}
    value, gradient = jax.value_and_grad(lambda w: ((data["x"] * w - data["y"]) ** 2).mean())(0.0)
    assert (value, gradient) == (70, -70)
