"""Findings as text and as JSON."""

from __future__ import annotations

import json

from paceline.base.errors import BatchSizeError
from paceline.doctor.finding import Finding, diagnosis, error_finding, not_run

WRONG = Finding("source", "error", "x is gone", "use y", "step.py", 7)


def test_a_finding_is_one_line_and_its_fix():
    """Level, check, place, what; the fix below it, and no second line without one."""
    assert WRONG.lines() == ["error    source: step.py:7: x is gone", "         fix: use y"]
    assert Finding("batch", "ok", "8 rows").lines() == ["ok       batch: 8 rows"]
    assert Finding("source", "error", "empty", file="step.py").lines() == ["error    source: step.py: empty"]


def test_a_diagnosis_is_ok_without_errors_and_counts_the_rest():
    """Warnings leave it ok; one error does not. The order of the checks is kept."""
    good = diagnosis([Finding("batch", "ok", "8 rows")], [not_run("keys", "no data")])
    assert good.ok and good.lines()[-1] == "0 errors, 1 warning"
    bad = diagnosis(good.findings, [WRONG])
    assert not bad.ok and bad.lines()[-1] == "1 error, 1 warning"
    assert [finding.check for finding in bad.findings] == ["batch", "keys", "source"]


def test_a_check_that_did_not_run_is_never_ok():
    found = not_run("memory", "the task does not trace")
    assert found.level == "warning" and found.what == "not run: the task does not trace"


def test_an_error_keeps_its_words():
    """What, why and fix of the error that would have ended the run."""
    found = error_finding("batch", BatchSizeError(what="19 rows", why="unequal shares", fix="use 16"))
    assert found.lines() == ["error    batch: 19 rows: unequal shares", "         fix: use 16"]


def test_a_diagnosis_is_plain_json():
    """ok, errors, warnings, and each finding with all its fields."""
    content = json.loads(json.dumps(diagnosis([WRONG]).as_dict()))
    assert (content["ok"], content["errors"], content["warnings"]) == (False, 1, 0)
    assert content["findings"] == [
        {"check": "source", "level": "error", "what": "x is gone", "fix": "use y", "file": "step.py", "line": 7}
    ]
