"""Which programs are compared, in which order, with which one-device run; what is left out, and why."""

from __future__ import annotations

import itertools

import numpy as np
import optax
import pytest

from paceline.check.parity.cases import PLACEMENTS, SCHEMES, Case, Grid, plan_cases, promised_split
from paceline.check.parity.problem import Batch, Problem
from paceline.check.parity.reference import Split
from paceline.engine.parallel import Parallel
from paceline.tasks.task import task

PRECISIONS = ("float64", "float32")
FULL = Grid(SCHEMES, PLACEMENTS, (2, 4, 8), (1, 4))


def planned(grid: Grid = FULL, *, visible: int = 8):
    return plan_cases(grid, precisions=PRECISIONS, visible=visible)


def combinations(grid: Grid) -> set[tuple]:
    return set(itertools.product(*grid, PRECISIONS))


def as_tuple(case: Case) -> tuple:
    return case.scheme, case.placement, case.devices, case.accumulation, case.precision


def test_the_full_product_has_84_programs():
    """3 schemes x 3 placements less two for pmap, 3 K, 2 n, 2 precisions: 7 * 12; only pmap's placements left out."""
    cases, skipped = planned()
    assert len(cases) == len(set(cases)) == 84
    assert [skip.what for skip in skipped] == ["pmap with zero1 and fsdp"]


GRIDS = {
    "full": FULL,
    "pmap with a split state only": Grid(("pmap",), ("fsdp",), (2,), (1,)),
    "more devices than there are": Grid(("per_device",), ("replicated",), (16, 32), (1,)),
    "some of them": Grid(("pmap", "global_view"), ("zero1", "replicated"), (4, 16), (4, 2)),
}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_every_combination_is_planned_or_left_out_with_a_reason(grid):
    """The plan and what the reasons cover are together the product, with nothing in both."""
    cases, skipped = planned(grid)
    told = {skip.what: skip.why for skip in skipped}
    covered = set()
    for combination in combinations(grid):
        scheme, placement, devices, _, _ = combination
        by_count, by_scheme = told.get(f"K = {devices}"), scheme == "pmap" and placement != "replicated"
        if by_scheme:
            assert any(what.startswith("pmap with") and placement in what for what in told)
        if by_count or by_scheme:
            covered.add(combination)
    assert covered | set(map(as_tuple, cases)) == combinations(grid)
    assert not covered & set(map(as_tuple, cases))
    assert all(told.values())


def test_devices_that_are_not_there_are_told_how_to_get():
    """4 of them; 8 asked for: the reason says both, and the flag."""
    cases, skipped = planned(Grid(("per_device",), ("replicated",), (2, 8), (1,)), visible=4)
    assert {case.devices for case in cases} == {2}
    assert [skip.what for skip in skipped] == ["K = 8"]
    assert "there are 4 devices; --simulate 8" in skipped[0].why


def test_the_plainest_case_of_every_scheme_comes_first():
    """float64, the largest K that is there, the smallest n, replicated; in the order of the schemes asked for."""
    grid = Grid(("pmap", "per_device", "global_view"), PLACEMENTS, (2, 4, 16), (4, 1))
    cases, _ = planned(grid)
    assert [as_tuple(case) for case in cases[:3]] == [
        (scheme, "replicated", 4, 1, "float64") for scheme in ("pmap", "per_device", "global_view")
    ]


def test_options_are_changed_one_by_one_before_pairs():
    """Sorted by how many of precision, K, n and placement differ from the plainest; singles show every value."""
    cases, _ = planned()

    def changes(case: Case) -> int:
        plain = ("replicated", 8, 1, "float64")
        return sum(a != b for a, b in zip(as_tuple(case)[1:], plain, strict=True))

    ranks = [changes(case) for case in cases]
    assert ranks == sorted(ranks)
    singles = [as_tuple(case) for case in cases if changes(case) <= 1]
    for column, wanted in enumerate((SCHEMES, PLACEMENTS, (2, 4, 8), (1, 4), PRECISIONS)):
        assert {case[column] for case in singles} == set(wanted)


def test_nothing_that_can_be_run_is_an_empty_plan():
    """No case, one reason for each K."""
    cases, skipped = planned(Grid(("per_device",), ("replicated",), (16, 32), (1,)))
    assert (cases, [skip.what for skip in skipped]) == ([], ["K = 16", "K = 32"])


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        ("replicated", "per_device, K = 4, n = 2, float64"),
        ("zero1", "per_device zero1, K = 4, n = 2, float64"),
    ],
)
def test_a_case_is_read_as_its_options(placement, text):
    """Replicated goes without saying."""
    assert str(Case("per_device", placement, 4, 2, "float64")) == text


def problem(*, state: bool, synced: bool = False) -> Problem:
    batch = Batch({"x": np.ones(16)}, np.ones(16, bool))
    kept = {"mean": np.zeros(1)} if state else {}
    return Problem(
        task(lambda params, batch: batch["x"]), optax.sgd(1.0), Parallel(), {"w": np.zeros(1)}, kept, (batch,), seed=0,
        maskable=True, synced=synced,
    )  # fmt: skip


def case(scheme, *, precision="float64") -> Case:
    return Case(scheme, "replicated", 4, 2, precision)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_model_state_one_device_takes_all_rows_at_once(scheme):
    """Whatever K and n."""
    assert promised_split(problem(state=False), case(scheme)) == Split(groups=1, microbatches=1)


@pytest.mark.parametrize(
    ("scheme", "synced", "groups"),
    [
        ("global_view", False, 1),
        ("per_device", False, 4),
        ("pmap", False, 4),
        ("per_device", True, 1),
        ("pmap", True, 1),
    ],
)
def test_with_model_state_rows_are_taken_as_batch_norm_sees_them(scheme, synced, groups):
    """n microbatches always; K groups where statistics are those of a device."""
    assert promised_split(problem(state=True, synced=synced), case(scheme)) == Split(groups=groups, microbatches=2)


def test_a_one_device_run_is_asked_for_once():
    """global_view and synced share one split; each precision has its own."""
    cases = [case(scheme, precision=precision) for precision in PRECISIONS for scheme in SCHEMES]
    splits = list(dict.fromkeys((promised_split(problem(state=True), found), found.precision) for found in cases))
    groups = [(1, "float64"), (4, "float64"), (1, "float32"), (4, "float32")]
    assert splits == [(Split(groups=count, microbatches=2), precision) for count, precision in groups]
