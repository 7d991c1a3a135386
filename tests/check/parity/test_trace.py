"""Names of what is compared, and the measure of deviation, by pencil."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from paceline.check.parity.trace import (
    EXACT_FLOOR,
    ROUNDED_FLOOR,
    Deviation,
    deviations,
    flat_leaves,
    flatten,
    kind_of,
    without,
    worst,
    worst_by_kind,
)


def leaf(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def values_of(observed, wanted, **options) -> dict[str, float]:
    """Deviation by leaf, of one update."""
    return {found.leaf: found.value for found in deviations([observed], [wanted], **options)}


def test_leaves_are_named_by_kind_and_path():
    """Nested trees, a tree that is one leaf, tuples by number; None leaves nothing."""
    named = flatten(loss=np.float32(2), params={"a": {"w": np.ones(2)}}, opt_state=(np.zeros(1), 3), ema=None)
    assert list(named) == ["loss", "params.a.w", "opt_state.0", "opt_state.1"]
    assert named["opt_state.1"] == 3
    assert all(type(value) is np.ndarray for value in named.values())


def test_the_kind_of_a_leaf_is_what_stands_before_the_first_dot():
    """A name without a dot is its own kind."""
    assert [kind_of(name) for name in ("gradient.a.b", "opt_state.0.mu.w", "loss")] == ["gradient", "opt_state", "loss"]


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
def test_a_key_is_compared_by_its_words(make):
    """Equal words deviate by 0, other words infinitely."""
    one, same, other = (flatten(opt_state={"rng": make(seed)}) for seed in (7, 7, 8))
    assert one["opt_state.rng"].dtype == np.uint32
    assert values_of(same, one) == {"opt_state.rng": 0}
    assert values_of(other, one) == {"opt_state.rng": math.inf}


def test_a_leaf_is_measured_against_its_own_largest_value():
    """|2.5 - 2| = 0.5 over a largest value of 4, exact."""
    assert values_of({"params.w": leaf(-4, 2.5)}, {"params.w": leaf(-4, 2)}) == {"params.w": 0.125}


def test_the_largest_value_is_that_of_all_updates():
    """A parameter that passes through 0: 0.5 off 0, over 4 at the other update."""
    found = list(
        deviations([{"params.w": leaf(4)}, {"params.w": leaf(0.5)}], [{"params.w": leaf(4)}, {"params.w": leaf(0)}])
    )
    assert found == [Deviation(0, "params.w", 1), Deviation(0.125, "params.w", 2)]


@pytest.mark.parametrize("floor", [EXACT_FLOOR, ROUNDED_FLOOR])
def test_a_small_leaf_is_measured_against_a_share_of_the_largest_of_its_kind(floor):
    """1e-9 beside 8: over floor * 8; a small leaf of another kind against itself. rtol 1e-12."""
    wanted = {"gradient.w": leaf(8), "gradient.b": leaf(0), "params.b": leaf(1e-6)}
    seen = {"gradient.w": leaf(8), "gradient.b": leaf(1e-9), "params.b": leaf(3e-6)}
    found = values_of(seen, wanted, floor=floor)
    assert found["gradient.w"] == 0
    assert found["gradient.b"] == pytest.approx(1e-9 / (8 * floor), rel=1e-12)
    assert found["params.b"] == pytest.approx(2, rel=1e-12)


def test_without_a_floor_given_it_is_that_of_float64():
    """1e-9 over 1e-4 * 1, rtol 1e-12."""
    wanted, seen = {"gradient.w": leaf(1), "gradient.b": leaf(0)}, {"gradient.w": leaf(1), "gradient.b": leaf(1e-9)}
    assert values_of(seen, wanted)["gradient.b"] == pytest.approx(1e-5, rel=1e-12)
    assert worst_by_kind([seen], [wanted])["gradient"].value == pytest.approx(1e-5, rel=1e-12)


UNLIKE = {
    "NaN for a number": (leaf(np.nan, 1), leaf(0, 1)),
    "a number for NaN": (leaf(0, 1), leaf(np.nan, 1)),
    "NaN in both": (leaf(np.nan, 1), leaf(np.nan, 1)),
    "infinity for a number": (leaf(np.inf, 1), leaf(0, 1)),
    "a number for infinity": (leaf(1, 1), leaf(np.inf, 1)),
    "infinity of the other sign": (leaf(-np.inf), leaf(np.inf)),
    "another shape": (leaf(1, 1), leaf(1)),
    "a shape that broadcasts": (np.ones((1, 2)), np.ones(2)),
    "another integer": (np.array([1, 3]), np.array([1, 2])),
    "another truth": (np.array(True), np.array(False)),
    "anything for a kind of zeros": (leaf(1e-300), leaf(0)),
}


@pytest.mark.parametrize(("seen", "wanted"), UNLIKE.values(), ids=UNLIKE)
def test_what_cannot_be_measured_deviates_infinitely(seen, wanted):
    """Never a number that a tolerance could pass, never NaN."""
    assert values_of({"params.w": seen}, {"params.w": wanted}) == {"params.w": math.inf}


ALIKE = {
    "zeros": (leaf(0), leaf(0)),
    "zero of the other sign": (leaf(-0.0), leaf(0.0)),
    "infinity": (leaf(np.inf, 1), leaf(np.inf, 1)),
    "no numbers": (np.zeros((0, 3)), np.zeros((0, 3))),
    "integers": (np.array([1, 2]), np.array([1, 2])),
    "another type with the same values": (np.array([1, 2], np.float32), leaf(1, 2)),
}


@pytest.mark.parametrize(("seen", "wanted"), ALIKE.values(), ids=ALIKE)
def test_equal_values_deviate_by_zero(seen, wanted):
    """Exactly 0."""
    assert values_of({"params.w": seen}, {"params.w": wanted}) == {"params.w": 0}


def test_an_infinity_in_one_leaf_hides_no_other():
    """A best value so far starts at infinity, a mask is of minus infinities: 0.5 of 4 is 0.125 still."""
    wanted = {"opt_state.best": leaf(np.inf), "opt_state.m": leaf(4, 4), "opt_state.mask": leaf(-np.inf, 2)}
    seen = {"opt_state.best": leaf(np.inf), "opt_state.m": leaf(4, 4.5), "opt_state.mask": leaf(-np.inf, 2.5)}
    assert values_of(seen, wanted) == {"opt_state.best": 0, "opt_state.m": 0.125, "opt_state.mask": 0.25}


def test_narrow_floats_are_measured_in_float64():
    """bfloat16 256 and 258 differ by 2/256; 1e38 from -1e38 in float32 is 2, not an overflow. Exact."""
    narrow = {"params.w": np.array([258], ml_dtypes.bfloat16)}, {"params.w": np.array([256], ml_dtypes.bfloat16)}
    assert values_of(*narrow) == {"params.w": 2 / 256}
    large = np.array([3e38], np.float32)
    assert values_of({"params.w": -large}, {"params.w": large}) == {"params.w": 2}


def test_only_leaves_that_both_have_are_compared():
    """A handwritten step may return no metrics; what only the observed has is nothing to compare with."""
    assert values_of({"loss": leaf(1), "extra": leaf(2)}, {"loss": leaf(1), "metrics.a": leaf(5)}) == {"loss": 0}


FLAT = [
    {"gradient.a.b": leaf(1e-15, -1e-14), "gradient.b": leaf(1e-3), "gradient.w": leaf(2.0)},
    {"gradient.a.b": leaf(0, 1e-13), "gradient.b": leaf(0), "gradient.w": leaf(0.0)},
]
OTHERS = ("params.a.b", "params.b", "params.w", "opt_state.0.mu.a.b", "opt_state.0.mu.b", "opt_state.count", "ema.a.b")


def test_leaves_are_flat_whose_gradient_is_rounding_in_every_update():
    """1e-13 beside 2 is; 1e-3 once is not, though its name ends alike; counts, losses and statistics never are."""
    right = [{**values, **dict.fromkeys([*OTHERS, "model_state.a.b", "loss"], leaf(1))} for values in FLAT]
    assert flat_leaves(right) == {"params.a.b", "opt_state.0.mu.a.b", "ema.a.b"}
    assert "params.a.b" not in without(right, flat_leaves(right))[1]


def test_a_model_without_any_gradient_is_flat():
    """0 everywhere: the loss does not depend on it."""
    assert flat_leaves([{"gradient.w": leaf(0), "params.w": leaf(1)}]) == {"params.w"}


def test_traces_of_different_lengths_are_a_bug():
    """One update against two is no comparison."""
    with pytest.raises(ValueError, match=r"longer|shorter"):
        list(deviations([{"loss": leaf(1)}], [{"loss": leaf(1)}] * 2))


WANTED = [{"loss": leaf(2), "gradient.w": leaf(4), "params.w": leaf(1)}] * 2
SEEN = [
    {"loss": leaf(2.5), "gradient.w": leaf(4), "params.w": leaf(1)},
    {"loss": leaf(2), "gradient.w": leaf(6), "params.w": leaf(1)},
]


def test_the_worst_is_found_over_all_updates_and_leaves():
    """Loss off by 0.5/2 at update 1, gradient by 2/4 at update 2."""
    assert worst(SEEN, WANTED) == Deviation(0.5, "gradient.w", 2)
    assert worst(SEEN, WANTED, kinds=("loss", "params")) == Deviation(0.25, "loss", 1)


def test_the_worst_of_each_kind_is_found():
    """Every kind once, with its leaf and update; an equal kind with 0."""
    assert worst_by_kind(SEEN, WANTED) == {
        "loss": Deviation(0.25, "loss", 1),
        "gradient": Deviation(0.5, "gradient.w", 2),
        "params": Deviation(0, "params.w", 1),
    }


@pytest.mark.parametrize(("seen", "wanted"), [([], []), ([{}], [{"loss": leaf(1)}]), ([{"loss": leaf(1)}], [{}])])
def test_nothing_to_compare_is_no_equality(seen, wanted):
    """The worst is infinite, and no kind is listed."""
    assert worst(seen, wanted) == Deviation(math.inf, "nothing", 0)
    assert worst_by_kind(seen, wanted) == {}


def test_leaves_of_jax_and_numpy_are_one_thing():
    """The same values from both sides deviate by 0."""
    assert values_of(flatten(params={"w": jnp.arange(3.0)}), flatten(params={"w": np.arange(3.0)})) == {"params.w": 0}
