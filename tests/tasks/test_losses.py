"""The three forms of a loss, against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.base.errors import LossError
from paceline.tasks.losses import (
    Outcome,
    Totals,
    Weighted,
    check_loss,
    is_maskable,
    nominal_weight,
    outcome_is_maskable,
    totals,
)

ROWS = np.array([3.0, 5.0, 7.0, 11.0], np.float32)
TOKENS = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
ALL, THREE, NONE = np.ones(4, bool), np.array([True, False, True, True]), np.zeros(4, bool)


def reduced(value, valid=ALL):
    return totals(value, jnp.asarray(valid), name="the loss")


@pytest.mark.parametrize(("valid", "total", "weight"), [(ALL, 26, 4), (THREE, 21, 3), (NONE, 0, 0)])
def test_rows_are_summed_over_valid_rows(valid, total, weight):
    """Total and count of 3, 5, 7, 11, exactly."""
    got = reduced(jnp.asarray(ROWS), valid)
    assert (got.total, got.weight) == (total, weight)


@pytest.mark.parametrize(("valid", "total", "weight"), [(ALL, 26, 10), (THREE, 21, 8), (NONE, 0, 0)])
def test_weighted_rows_are_summed_over_valid_rows(valid, total, weight):
    """Totals 3, 5, 7, 11 of 1, 2, 3, 4 tokens, exactly."""
    got = reduced(Weighted(jnp.asarray(ROWS), jnp.asarray(TOKENS)), valid)
    assert (got.total, got.weight) == (total, weight)


@pytest.mark.parametrize("valid", [ALL, THREE])
def test_forms_without_rows_are_taken_as_they_are(valid):
    """A scalar is the mean of all four rows it was given, `Weighted` of scalars their sum: no mask can change that."""
    assert tuple(map(float, reduced(jnp.float32(6.5), valid))) == (26, 4)
    assert tuple(map(float, reduced(6.5, valid))) == (26, 4)
    assert tuple(map(float, reduced(Weighted(jnp.float32(26), jnp.float32(10)), valid))) == (26, 10)


def test_a_padding_row_that_is_not_finite_does_not_spoil_the_sum():
    """A masked row may hold anything: zero times infinity would not be zero."""
    rows = jnp.array([3.0, jnp.inf, 7.0, jnp.nan])
    got = reduced(Weighted(rows, rows), np.array([True, False, True, False]))
    assert (got.total, got.weight) == (10, 10)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_sums_are_accumulated_in_float32(dtype):
    """1000 ones add up to 1000; a bfloat16 sum would stop at 256."""
    ones = jnp.ones(1000, dtype)
    got = totals(Weighted(ones, ones), jnp.ones(1000, bool), name="the loss")
    assert (got.total, got.weight) == (1000, 1000)
    assert got.total.dtype == got.weight.dtype == jnp.float32


@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.int8, jnp.uint8, jnp.int32])
def test_counts_are_accumulated_in_int32(dtype):
    """1000 correct rows are 1000, also as int8, which stops at 127."""
    got = totals(jnp.ones(1000, dtype), jnp.ones(1000, bool), name="metric 'correct'")
    assert got.total == 1000 and got.total.dtype == jnp.int32


def test_sums_stay_float64_under_x64(x64):
    """One third, exactly as numpy sums it."""
    got = totals(jnp.full(3, 1 / 9), jnp.ones(3, bool), name="the loss")
    assert got.total.dtype == jnp.float64 and float(got.total) == pytest.approx(1 / 3, rel=1e-15)


def test_the_mean_is_total_over_weight():
    """7 of 11 correct rows are 7/11 (float32); no rows are 0.0, not nan."""
    seven = Totals(jnp.asarray(7, jnp.int32), jnp.asarray(11, jnp.int32)).mean()
    assert seven == np.float32(7) / np.float32(11) and seven.dtype == jnp.float32
    assert Totals(jnp.float32(0), jnp.asarray(0, jnp.int32)).mean() == 0


def test_the_mean_of_no_rows_has_a_gradient_of_zero():
    """0/0 is avoided on both sides of the selection: the gradient is 0, not nan."""
    gradient = jax.grad(lambda x: Totals(x * 0, jnp.asarray(0, jnp.int32)).mean())(1.0)
    assert gradient == 0


def test_weights_carry_no_gradient():
    """d/dw of w*total + w*weight is the total's alone: 26."""

    def objective(w):
        got = reduced(Weighted(w * jnp.asarray(ROWS), w * jnp.asarray(TOKENS)))
        return got.total + got.weight

    assert jax.grad(objective)(1.0) == 26


def test_the_nominal_weight_is_known_before_the_step():
    """The number of rows, or what `Weighted` says."""
    weighted = Weighted(jnp.asarray(ROWS), jnp.asarray(TOKENS), nominal=512)
    assert nominal_weight(weighted, 4) == 512
    assert nominal_weight(Weighted(jnp.asarray(ROWS), jnp.asarray(TOKENS)), 4) == 4
    assert nominal_weight(jnp.asarray(ROWS), 4) == 4


def test_only_forms_with_rows_can_be_masked():
    """One metric that is a scalar is enough to refuse an uneven batch."""
    rows = jnp.asarray(ROWS)
    assert is_maskable(rows) and is_maskable(Weighted(rows, rows))
    assert not is_maskable(jnp.float32(1)) and not is_maskable(1.0)
    assert outcome_is_maskable(Outcome(rows, {"a": rows})) and not outcome_is_maskable(Outcome(rows, {"a": rows[0]}))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (jnp.zeros((4, 2)), "shape (4, 2) for 4 rows"),
        (jnp.zeros(5), "shape (5,) for 4 rows"),
        (Weighted(jnp.zeros(4), jnp.zeros(())), "total of shape (4,) and a weight of shape ()"),
        (Weighted(jnp.zeros(3), jnp.zeros(3)), "total of shape (3,)"),
        ("4.0", "of type str"),
        (None, "of type NoneType"),
    ],
)
def test_another_form_is_refused(value, what):
    """The error says what came; the fix names the three forms with the number of rows."""
    with pytest.raises(LossError) as caught:
        reduced(value)
    assert what in caught.value.what
    assert "shape (4,)" in caught.value.fix and "Weighted" in caught.value.fix and "scalar" in caught.value.fix


def test_a_loss_of_integers_is_refused():
    """Only a floating-point number has a gradient; the fix is the cast."""
    with pytest.raises(LossError, match="int32") as caught:
        check_loss(jnp.zeros(4, jnp.int32), 4)
    assert "astype(jnp.float32)" in caught.value.fix
