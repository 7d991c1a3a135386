"""Verdicts, the table and the JSON of a verification; it holds only what was run and equal."""

from __future__ import annotations

import json
import math
import re

import pytest

from paceline.check.parity import causes
from paceline.check.parity.cases import Skipped
from paceline.check.parity.causes import Culprit
from paceline.check.parity.report import Result, Verification, aligned
from paceline.check.parity.trace import Deviation


def result(value: float = 1e-12, **changes) -> Result:
    """A case that deviates by `value` where 1e-10 is allowed."""
    options = {
        "label": "per_device", "devices": 4, "accumulation": 1, "precision": "float64",
        "worst": Deviation(value, "params.w", 2), "tolerance": 1e-10,
    }  # fmt: skip
    return Result(**{**options, **changes})


def verification(*results: Result, **more) -> Verification:
    return Verification("my_task", "my_task: one device against 4", results, **more)


NAMED = Culprit(causes.MEAN_OF_MEANS, "gradient.w")


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(0.0, "equal"), (1e-10, "equal"), (1.1e-10, "differs"), (math.inf, "differs"), (math.nan, "differs")],
)
def test_a_case_is_equal_up_to_its_tolerance(value, verdict):
    """The tolerance itself passes; what is not finite never does."""
    assert result(value).verdict == verdict


def test_replicas_that_differ_drift_however_small_the_deviation():
    """Device 0 alone is compared with one device."""
    assert result(0.0, drifting=("params.w",)).verdict == "drifts"


BAD = {
    "nothing was run": ((), {}),
    "a case differs": ((result(), result(1.0)), {}),
    "a case drifts": ((result(), result(0.0, drifting=("params.w",))), {}),
    "a cause was found though all cases are equal": ((result(),), {"culprits": (NAMED,)}),
    "all was skipped": ((), {"skipped": (Skipped("K = 16", "there are 8 devices"),)}),
}


@pytest.mark.parametrize(("results", "more"), BAD.values(), ids=BAD)
def test_it_is_not_ok_when(results, more):
    """`ok` is False, and the last line says so."""
    outcome = verification(*results, **more)
    assert not outcome.ok
    assert outcome.as_dict()["ok"] is False
    assert outcome.lines()[-1].startswith("\nNOT VERIFIED: ")


CONCLUSIONS = {
    "verified: 2 of 2 programs compute what one device would (3 s)": verification(result(), result(), seconds=3.2),
    "verified: 1 of 1 programs compute what one device would (0 s); 2 more were not run": verification(
        result(),
        skipped=(*(Skipped(name, "no time", is_program=True) for name in "ab"), Skipped("an uneven batch", "scalar")),
    ),
    "NOT VERIFIED: nothing was run": verification(),
    "NOT VERIFIED: 1 of 2 programs do not compute what one device would": verification(result(), result(1.0)),
    "NOT VERIFIED: all 1 programs agree with one device, but see the cause above": verification(
        result(), culprits=(NAMED,)
    ),
}


@pytest.mark.parametrize(("text", "outcome"), CONCLUSIONS.items(), ids=range(len(CONCLUSIONS)))
def test_the_last_line_concludes(text, outcome):
    """Word for word, with the counts."""
    assert outcome.lines()[-1].strip() == text


def test_what_was_skipped_does_not_make_it_fail_but_is_told():
    """One case equal, one left out."""
    outcome = verification(result(), skipped=(Skipped("K = 16", "there are 8 devices"),))
    assert outcome.ok
    assert "not run: K = 16: there are 8 devices" in outcome.lines()


def test_programs_skipped_for_one_reason_share_a_line():
    """Six of them: the count, the first four, the rest by number; the JSON has all six."""
    late = [Skipped(f"case {number}", "no time", is_program=True) for number in range(6)]
    skipped = (*late, Skipped("K = 16", "few devices"))
    outcome = verification(result(), skipped=skipped)
    told = [line for line in outcome.lines() if line.startswith("not run")]
    assert told == [
        "not run: 6 programs, case 0; case 1; case 2; case 3 and 2 more (--json lists them): no time",
        "not run: K = 16: few devices",
    ]
    assert len(outcome.as_dict()["skipped"]) == 7


def table(*results: Result) -> list[list[str]]:
    """Rows of the table, columns split at two spaces or more."""
    lines = [line for line in verification(*results).lines() if line.startswith("  ")]
    return [re.split(" {2,}", line.strip()) for line in lines]


def test_the_table_has_a_line_for_each_scheme_and_k():
    """Columns in the order of the heading; numbers with one decimal."""
    rows = table(result(2e-12), result(0.5, label="pmap", devices=8))
    assert rows == [
        ["scheme", "K", "n", "worst leaf", "deviation", "tolerance", "verdict"],
        ["per_device", "4", "1", "params.w (update 2)", "2.0e-12", "1.0e-10", "equal"],
        ["pmap", "8", "1", "params.w (update 2)", "5.0e-01", "1.0e-10", "differs"],
    ]


def test_columns_are_as_wide_as_their_longest_cell():
    """No trailing blanks."""
    assert aligned([("a", "bcd", "e"), ("fgh", "i", "jk")]) == ["  a    bcd  e", "  fgh  i    jk"]


def test_accumulations_with_one_verdict_share_a_line_that_shows_what_comes_nearest_to_its_tolerance():
    """n = 1 is at 0.9 of its own, n = 4 at 0.1, though it deviates by more."""
    rows = table(
        result(9e-11, accumulation=1),
        result(accumulation=4, worst=Deviation(1e-9, "params.b", 1), tolerance=1e-8),
    )
    assert len(rows) == 2
    assert rows[1][2:5] == ["1, 4", "params.w (update 2)", "9.0e-11"]


@pytest.mark.parametrize(
    "other",
    [
        result(1.0, accumulation=4),
        result(accumulation=4, drifting=("params.w",)),
        result(accumulation=4, devices=8),
        result(accumulation=4, label="per_device zero1"),
        result(accumulation=4, note=", as one device with its rows in 4 groups"),
    ],
)
def test_what_differs_in_more_than_n_has_a_line_of_its_own(other):
    """A failing n is not hidden behind an equal one."""
    assert len(table(result(), other)) == 3


def test_each_precision_has_a_table():
    """float64 first, as the results come."""
    lines = verification(result(), result(precision="bfloat16")).lines()
    assert [line for line in lines if line in ("float64", "bfloat16")] == ["float64", "bfloat16"]
    assert sum("worst leaf" in line for line in lines) == 2


def test_a_drifting_leaf_is_named_in_the_table():
    """In place of the worst."""
    assert "opt_state.0.mu differs between devices" in table(result(drifting=("opt_state.0.mu", "params.w")))[1]


def test_bit_equality_and_a_step_without_n_are_told():
    """No leaf is the worst; a dash for n."""
    assert table(result(0.0, accumulation=None))[1][2:4] == ["-", "all bit-equal"]


def test_a_cause_is_told_with_its_reason_and_its_fix():
    """Three lines behind the table."""
    lines = verification(result(1.0), culprits=(NAMED,)).lines()
    assert lines[lines.index("cause: mean of means (gradient.w)") + 1].startswith("  why: devices (or microbatches)")
    assert any(line.startswith("  fix: reduce sums") for line in lines)


def test_the_data_are_ready_for_json():
    """Strict JSON, without NaN or infinity; a deviation that is not finite is null."""
    drifting = result(0.5, drifting=("params.w",), note=", as one device with its rows in 4 groups")
    outcome = verification(
        result(math.inf), result(math.nan), drifting, skipped=(Skipped("K = 16", "few"),), culprits=(NAMED,),
        seconds=1.5,
    )  # fmt: skip
    content = json.loads(json.dumps(outcome.as_dict(), allow_nan=False))
    assert content == outcome.as_dict()
    assert content.keys() == {"ok", "subject", "setting", "results", "skipped", "causes", "seconds"}
    assert [entry["deviation"] for entry in content["results"]] == [None, None, 0.5]
    assert content["results"][2] == {
        "case": "per_device", "devices": 4, "accumulation": 1, "precision": "float64", "worst_leaf": "params.w",
        "update": 2, "deviation": 0.5, "tolerance": 1e-10, "drifting": ["params.w"], "verdict": "drifts",
        "note": "as one device with its rows in 4 groups",
    }  # fmt: skip
    assert [(entry["what"], entry["why"]) for entry in content["skipped"]] == [("K = 16", "few")]
    assert content["causes"][0].keys() == {"cause", "evidence", "why", "fix"}


def test_the_time_is_no_part_of_equality():
    """Two runs with the same findings are the same outcome."""
    assert verification(result(), seconds=1.0) == verification(result(), seconds=2.0)
    assert verification(result()) != verification(result(2e-12))
