"""Tolerances by pencil: 1e-10, or what the rounding of a type and of one device allow."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from paceline.check.parity import tolerance
from paceline.check.parity.trace import EXACT_FLOOR, KINDS, ROUNDED_FLOOR, Deviation
from paceline.engine.parallel import Parallel

EPS32, EPS16 = 2.0**-23, 2.0**-7


def trace(**leaves: float) -> list[dict[str, np.ndarray]]:
    """One update of scalars; ``params__w`` is the leaf ``params.w``."""
    return [{name.replace("__", "."): np.array(value, np.float64) for name, value in leaves.items()}]


def test_float64_allows_1e_10_for_every_kind():
    """Whatever the leaf is called."""
    limits = tolerance.exact()
    assert (dict(limits.limits), limits.floor) == (dict.fromkeys(KINDS, 1e-10), EXACT_FLOOR)
    assert limits.limit("opt_state.0.mu.w") == 1e-10


def test_a_leaf_that_rounding_moves_may_move_that_far_and_no_other():
    """The largest of three samples, 5e-9, times 8; a leaf moved by 1e-12 keeps 1e-10, so does the rest of the kind."""
    wanted = trace(params__b=1, params__w=1, params__v=1)
    moves = ((2e-9, 1e-12), (-5e-9, 0), (3e-9, 0))
    nudged = [trace(params__b=1 + b, params__w=1 + w, params__v=1) for b, w in moves]
    limits = tolerance.exact(wanted=wanted, nudged=nudged)
    assert limits.limit("params.b") == pytest.approx(4e-8, rel=1e-6)
    assert [limits.limit(leaf) for leaf in ("params.w", "params.v", "gradient.b")] == [1e-10] * 3


def test_a_leaf_moved_by_less_than_its_eighth_keeps_1e_10():
    """8 * 1e-11 is below 1e-10, 8 * 2e-11 above. rtol 1e-3."""
    wanted = trace(params__a=1, params__b=1)
    limits = tolerance.exact(wanted=wanted, nudged=[trace(params__a=1 + 1e-11, params__b=1 + 2e-11)])
    assert limits.limit("params.a") == 1e-10
    assert limits.limit("params.b") == pytest.approx(1.6e-10, rel=1e-3)


@pytest.mark.parametrize(
    ("parallel", "inside", "eps"),
    [
        (Parallel(), np.float64, EPS32),
        (Parallel(), np.float32, EPS32),
        (Parallel(), jnp.bfloat16, EPS16),
        (Parallel(), np.float16, 2.0**-10),
        (Parallel(precision="bfloat16"), np.float64, EPS16),
        (Parallel(precision="float16"), np.float64, 2.0**-10),
        (Parallel(scheme="per_device", reduce_dtype="bfloat16"), np.float64, EPS16),
        (Parallel(scheme="per_device", reduce_dtype="float32"), np.float64, EPS32),
    ],
)
def test_the_unit_is_the_widest_rounding_of_all_types_used(parallel, inside, eps):
    """2^-23 for float32, 2^-10 for float16, 2^-7 for bfloat16, be it the precision, the wire, or a cast inside."""
    assert tolerance.unit(parallel, inside=inside) == eps


def test_a_kernel_is_given_the_rounding_of_its_type():
    """64 units of float32 for every kind."""
    limits = tolerance.inside(np.float32)
    assert (dict(limits.limits), limits.floor) == (dict.fromkeys(KINDS, 64 * EPS32), EXACT_FLOOR)


def test_the_own_precision_allows_64_units_or_8_measured_roundings():
    """Moved by 2^-10, the larger of two samples: 8 * 2^-10; not moved, or not there: 64 units."""
    rounded = trace(gradient__w=1, gradient__v=1, loss=1)
    others = [
        trace(gradient__w=1 - 2.0**-10, gradient__v=1, loss=1),
        trace(gradient__w=1 + 2.0**-12, gradient__v=1, loss=1),
    ]
    limits = tolerance.own(EPS32, rounded=rounded, others=others)
    assert limits.limit("gradient.w") == 8 * 2.0**-10
    assert {limits.limit(leaf) for leaf in ("gradient.v", "loss", "metrics.a")} == {64 * EPS32}
    assert limits.floor == ROUNDED_FLOOR


def test_only_a_leaf_that_is_rounding_by_its_nature_may_be_off_by_its_own_size():
    """Moved by a factor of 3, that is by 2: 16 for a flat leaf; half of its size for any other."""
    rounded, others = trace(params__b=1, params__w=1), [trace(params__b=3, params__w=3)]
    limits = tolerance.own(EPS32, rounded=rounded, others=others, flat={"params.b"})
    assert (limits.limit("params.b"), limits.limit("params.w")) == (16, 0.5)


def test_a_leaf_that_is_rounding_is_told_by_its_gradient():
    """A gradient of 1e-13 beside 1: its parameter may be moved by a factor of 3 in float64; the other's not."""
    wanted = trace(gradient__b=1e-13, gradient__w=1, params__b=1, params__w=1)
    limits = tolerance.exact(wanted=wanted, nudged=[trace(params__b=3, params__w=3)])
    assert (limits.limit("params.b"), limits.limit("params.w")) == (16, 0.5)


def test_limits_hold_or_do_not():
    """1e-10 off holds in float64, 2e-10 does not."""
    wanted = trace(loss=0, params__w=1)
    assert tolerance.exact().holds(trace(loss=0, params__w=1 + 0.99e-10), wanted)
    assert not tolerance.exact().holds(trace(loss=0, params__w=1 + 2e-10), wanted)


def test_the_own_precision_never_allows_less_than_64_units():
    """A measured rounding of one unit gives 8 and is raised to 64."""
    limits = tolerance.own(EPS32, rounded=trace(loss=1), others=[trace(loss=1 + EPS32)])
    assert limits.limit("loss") == 64 * EPS32


def test_the_farthest_is_measured_in_units_of_its_own_limit():
    """Off by 0.2 where 1 is allowed, by 0.1 where 0.01 is: the second is the farthest."""
    limits = tolerance.Tolerances({"params": 1.0, "params.b": 0.01}, EXACT_FLOOR)
    found = limits.farthest(trace(params__w=1.2, params__b=1.1), trace(params__w=1, params__b=1))
    assert found == (pytest.approx(0.1), "params.b", 1)


def test_a_value_that_is_not_finite_is_the_farthest():
    """However wide the limit."""
    limits = tolerance.Tolerances({"params": 1e9, "loss": 1e-10}, EXACT_FLOOR)
    found = limits.farthest(trace(params__w=math.nan, loss=2), trace(params__w=1, loss=1))
    assert found == Deviation(math.inf, "params.w", 1)


def test_the_floor_of_the_tolerance_is_the_one_used():
    """1e-9 for 0 beside 1: over the floor of 1e-2 it is 1e-7. rtol 1e-12."""
    limits = tolerance.Tolerances(dict.fromkeys(KINDS, 1e-5), ROUNDED_FLOOR)
    found = limits.farthest(trace(gradient__w=1, gradient__b=1e-9), trace(gradient__w=1, gradient__b=0))
    assert found.value == pytest.approx(1e-7, rel=1e-12)


def test_a_rounding_that_is_not_finite_is_no_limit():
    """NaN or infinity on one device: no limit that an infinite deviation, or one of a factor of 2, could pass."""
    odd = trace(loss=math.inf, params__w=math.nan)
    limits = tolerance.own(EPS32, rounded=odd, others=[trace(loss=1, params__w=1)])
    assert all(limit < 1 for limit in limits.limits.values())
    limits = tolerance.exact(wanted=trace(params__w=math.nan), nudged=[trace(params__w=math.nan)])
    assert limits.limit("params.w") < 1


def test_two_nans_are_not_the_smallest_deviation():
    """Infinite in units of any limit, wherever the leaf stands among the others."""
    limits = tolerance.Tolerances(dict.fromkeys(KINDS, 1e-10), EXACT_FLOOR)
    for wanted in (trace(loss=1, params__w=math.nan), trace(params__w=math.nan, loss=1)):
        assert limits.farthest(wanted, wanted) == Deviation(math.inf, "params.w", 1)
