"""Gradient equality under stress: any rows, weights and masks; K devices compute what numpy computes on all rows.

Every update is checked from the state before it, so that tolerances need not grow; the first state is a known one.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

from paceline.engine.parallel import Parallel, Placement, Precision, Scheme
from paceline.engine.step import StepFunction
from paceline.tasks.tree import named_leaves
from tests.ends import grid
from tests.engine.conftest import quickly_compiled
from tests.engine.helpers import place, shard_bytes, start, step_of, to_numpy
from tests.properties import updates
from tests.properties.updates import global_norm

PLACED: tuple[tuple[Scheme, Placement], ...] = (
    ("global_view", "replicated"),
    ("global_view", "zero1"),
    ("global_view", "fsdp"),
    ("per_device", "replicated"),
    ("per_device", "zero1"),
    ("per_device", "fsdp"),
    ("pmap", "replicated"),
)
DEVICES, PARTS, ROWS = (1, 2, 4, 8), (1, 2, 4), (1, 2, 3)
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16")
FORMS = tuple(updates.LOSSES)
WEIGHTS = (0.0, 0.25, 1.0, 2.0)

ROUNDING = {"float64": 1e-12, "float32": 4 * 2.0**-24, "bfloat16": 4 * 2.0**-8, "float16": 4 * 2.0**-11}
"""Allowed error, as a share of what a sum would be without cancellation: four units of rounding; more than float64's,
so that Adam, which divides by gradients, comes to 1e-10."""

STORED = {"float64": 1e-10, "float32": 1e-7}
"""Allowed error of a parameter beside that of its gradient: it is of order 1 and is rounded when it is stored."""


class Case(NamedTuple):
    """A program.

    Args:
      scheme, placement, devices, precision: as in `Parallel`; float64 is float32 under x64.
      parts: microbatches.
      rows: of a microbatch of one device.
      form: of the loss, a key of `updates.LOSSES`.
    """

    scheme: Scheme
    placement: Placement
    devices: int
    parts: int
    rows: int
    form: str
    precision: Precision | str

    @property
    def batch(self) -> int:
        """B."""
        return self.devices * self.parts * self.rows

    @property
    def wide(self) -> bool:
        """Whether all is float64."""
        return self.precision == "float64"

    @property
    def dtype(self) -> str:
        """Of parameters and rows."""
        return "float64" if self.wide else "float32"

    @property
    def adam(self) -> bool:
        """Only where no rounding can turn the sign of a gradient, of which Adam makes a whole step."""
        return self.wide and self.devices != 2

    @property
    def maskable(self) -> bool:
        """Whether rows can be left out."""
        return self.form in updates.MASKABLE

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return self.form in updates.WEIGHTED

    def __str__(self) -> str:
        return "-".join(map(str, self))


def case_of(number: int, other: int, precision: str) -> Case:
    """Latin squares: with `number` 0 to 6 and `other` 0 to 3 nearly every pair of two options comes up."""
    return Case(
        *PLACED[number], DEVICES[other % 4], PARTS[(number + other) % 3], ROWS[(number + 2 * other) % 3],
        FORMS[(number // 2 + other) % 4], precision,
    )  # fmt: skip


WIDE = [case_of(number, other, "float64") for number, other in itertools.product(range(7), range(4))]
NARROW = [
    case_of(number, 3 * number + shift, precision)
    for number, (shift, precision) in itertools.product(range(7), enumerate(PRECISIONS))
]
CASES = [*WIDE, *NARROW]


def both_ends(case: Case) -> bool:
    """Whether the low end runs it too: 2 and 8 devices compile as 4 do, 1 does not."""
    return case.devices in (1, 4)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """49 programs, each for a few small batches."""
    with quickly_compiled():
        yield


def step_for(case: Case) -> StepFunction:
    """The program; both answers to what is not finite, since a batch without weight is neither."""
    precision: Any = "float32" if case.wide else case.precision
    parallel = Parallel(
        case.scheme, placement=case.placement, accumulation=case.parts, precision=precision, clip_norm=updates.CLIP,
        ema_decay=updates.DECAY, nonfinite="skip" if case.parts == 1 else "stop",
    )  # fmt: skip
    optimizer = updates.ADAM if case.adam else updates.SGD
    return step_of(updates.LOSSES[case.form], optimizer, parallel, devices=case.devices)


class Batch(NamedTuple):
    """Rows and the mask of those that count."""

    rows: updates.Leaves
    valid: np.ndarray

    def counted(self, case: Case) -> np.ndarray:
        """The true weight of every row, float64 [B]."""
        return self.valid * (self.rows["weight"] if case.weighted else np.ones(case.batch)).astype(np.float64)


@st.composite
def batches(draw, case: Case) -> list[Batch]:
    """Three batches; in the second nothing counts, if the form of the loss can say so."""
    return [draw(_batches(case)), draw(_without_weight(case)), draw(_batches(case))]


@st.composite
def _batches(draw, case: Case) -> Batch:
    size = case.batch
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    weights = st.lists(st.sampled_from(WEIGHTS), min_size=size, max_size=size)
    rows = {
        "x": random.uniform(-0.5, 0.5, (size, 8)),
        "z": random.uniform(-0.5, 0.5, (size, 3)),
        "y": random.uniform(-0.5, 0.5, size) * draw(st.sampled_from([1, 8])),  # on both sides of the clip
        "weight": np.array(draw(weights)) if case.weighted else np.ones(size),
    }
    valid = draw(_masks(case)) if case.maskable else np.ones(size, bool)
    return Batch({name: leaf.astype(case.dtype) for name, leaf in rows.items()}, valid)


@st.composite
def _without_weight(draw, case: Case) -> Batch:
    batch = draw(_batches(case))
    if case.weighted and not (case.maskable and draw(st.booleans())):
        return Batch(batch.rows | {"weight": np.zeros_like(batch.rows["weight"])}, batch.valid)
    return batch._replace(valid=np.zeros(case.batch, bool)) if case.maskable else batch


def _masks(case: Case) -> st.SearchStrategy[np.ndarray]:
    """All rows, any rows, the first ones (a ragged tail), and all rows of some devices."""
    size, devices = case.batch, case.devices
    return st.one_of(
        st.just(np.ones(size, bool)),
        st.lists(st.booleans(), min_size=size, max_size=size).map(np.array),
        st.integers(0, size).map(lambda count: np.arange(size) < count),
        st.lists(st.booleans(), min_size=devices, max_size=devices).map(lambda kept: np.repeat(kept, size // devices)),
    )


@pytest.mark.parametrize("case", grid(CASES, both=both_ends), ids=str)
@settings(max_examples=6)
@given(data=st.data())
def test_every_update_is_that_of_one_device(case, data):
    """After each of three updates loss, gradient norm, parameters, optimizer state, moving average and counters are
    those of numpy: in float64 to 1e-10, else to 4 units of rounding of the largest terms. A batch without weight
    changes nothing but `step` and `empty`, nothing is ever NaN, and all replicas have the same bytes."""
    three = data.draw(batches(case))
    with jax.enable_x64(case.wide):
        step = step_for(case)
        state = start(step, updates.start_params(case.dtype), model_state={"microbatches": np.int32(0)})
        before = on_host(step, state)
        for batch in three:
            state, metrics = step(state, *place(step, *batch))
            after = on_host(step, state)
            assert_follows(case, before, after, values=metrics.fetch(), batch=batch)
            before = after
        assert_replicas_agree(case, state)


def test_the_cases_hold_every_scheme_on_every_number_of_devices_in_every_precision():
    """Pairs that must not be lost when the squares are changed."""
    pairs = {(case.scheme, case.placement, case.devices, case.wide) for case in WIDE}
    assert len(pairs) == len(PLACED) * len(DEVICES)
    assert len({(case.scheme, case.placement, case.precision) for case in NARROW}) == len(PLACED) * len(PRECISIONS)
    assert len({(case.devices, case.parts) for case in WIDE}) == len(DEVICES) * len(PARTS)


def test_the_low_end_has_every_value_of_every_option_but_two_numbers_of_devices():
    """Schemes with their placements, microbatches, rows, forms of loss, precisions; one device and four."""
    for field in ("scheme", "placement", "parts", "rows", "form", "precision", "adam"):
        of_all, of_low = ({getattr(case, field) for case in cases} for cases in (CASES, filter(both_ends, CASES)))
        assert of_low == of_all, field
    placed = {(case.scheme, case.placement, case.devices) for case in filter(both_ends, CASES)}
    assert placed == {(*placed, devices) for placed in PLACED for devices in (1, 4)}


def on_host(step: StepFunction, state: Any) -> dict[str, Any]:
    """A copy in numpy: the next step takes the memory of the state."""
    return jax.tree.map(np.array, to_numpy(step, state))


def assert_follows(case: Case, before: Any, after: Any, *, values: dict[str, float], batch: Batch) -> None:
    """Raise unless `after` and the values of the step are what numpy makes of `before` and the batch."""
    weight = batch.counted(case).sum()
    assert values["weight"] == weight
    assert after["step"] == before["step"] + 1
    assert after["empty"] == before["empty"] + (weight == 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    if case.precision == "float16" and after["skipped"] > before["skipped"]:
        assert_overflowed(case, before, after, batch)
        return
    assert after["skipped"] == before["skipped"]
    if weight:
        assert after["model_state"]["microbatches"] == before["model_state"]["microbatches"] + case.parts
        assert_updated(case, before, after, values=values, batch=batch)
    else:
        assert values["loss"] == values["gradient_norm"] == 0
        assert_kept(before, after)


def assert_kept(before: Any, after: Any) -> None:
    """Bit for bit, in everything but the counters and the loss scale."""
    for field in ("params", "opt_state", "model_state", "ema"):
        for (name, old), (_, new) in zip(named_leaves(before[field]), named_leaves(after[field]), strict=True):
            assert old.tobytes() == new.tobytes(), f"{field} {name}"


def assert_overflowed(case: Case, before: Any, after: Any, batch: Batch) -> None:
    """Left out on all devices with half the scale, as only terms near the largest number of float16 excuse."""
    scale, counted = before["loss_scale"].scale, batch.counted(case)
    terms = updates.largest_terms(wide(before["params"]), wide(batch.rows), counted)
    largest = max(np.abs(leaf).max() for leaf in terms.gradient.values()) * counted.sum() / case.batch
    assert scale * largest > np.finfo(np.float16).max
    assert after["loss_scale"].scale == scale / 2 and after["skipped"] == before["skipped"] + 1
    assert_kept(before, after)


def assert_updated(case: Case, before: Any, after: Any, *, values: dict[str, float], batch: Batch) -> None:
    rows, params, counted = wide(batch.rows), wide(before["params"]), batch.counted(case)
    wanted = updates.mean_square(params, rows, counted)
    terms = updates.largest_terms(params, rows, counted)
    error = ROUNDING[case.precision] * global_norm(terms.gradient)
    close("loss", values["loss"], wanted.loss, error=ROUNDING[case.precision] * terms.loss)
    close("gradient norm", values["gradient_norm"], global_norm(wanted.gradient), error=error)
    update = updates.adapt if case.adam else updates.descend
    next_params, moments = update(params, before["opt_state"][0], updates.clipped(wanted.gradient))
    for moment, tree in moments.items():
        close(moment, getattr(after["opt_state"][0], moment), tree, error=error)
    error = updates.RATE * error + STORED[case.dtype]
    close("params", after["params"], next_params, error=error)
    close("ema", after["ema"], updates.averaged(before["ema"], next_params), error=error)


def close(what: str, got: Any, wanted: Any, *, error: float) -> None:
    for (name, a), (_, b) in zip(named_leaves(got), named_leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=error, err_msg=f"{what} {name}")


def wide(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def assert_replicas_agree(case: Case, state: Any) -> None:
    """Every whole leaf has the same bytes on all devices; under pmap every device has one row of the leading axis."""
    for name, leaf in named_leaves(state):
        if leaf.is_fully_replicated or case.scheme == "pmap":
            assert len(set(shard_bytes(leaf))) == 1, name
