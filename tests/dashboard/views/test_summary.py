"""One line of the list of runs."""

from __future__ import annotations

import json

import pytest

from paceline.dashboard.views.summary import summary
from tests.dashboard.made_runs import START_S, LiveRun, make_run, write_json


def test_a_finished_run_tells_what_it_was_and_where_it_ended(tmp_path, open_run):
    """Against the documents that were written."""
    folder = make_run(tmp_path / "sweep-1", steps=200, devices=4, batch=256)
    found = summary(open_run(folder), now_s=START_S)
    expected = {
        "id": "sweep-1", "name": "sweep-1", "task": "image", "state": "finished", "stopped": None, "step": 200,
        "steps": 200, "started_s": START_S, "devices": 4, "platform": "cpu", "processes": 1, "batch": 256,
        "scheme": "per_device", "placement": "replicated", "precision": "float32", "accumulation": 1, "problems": [],
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["read"]["bytes"] == found["read"]["of_bytes"] == (folder / "events-0.jsonl").stat().st_size


def test_the_rate_is_rows_by_seconds_of_the_last_fifty_steps(tmp_path, open_run):
    """Not the mean of rates: one slow step of 49 fast ones halves it (pencil)."""
    live = LiveRun(tmp_path / "a")
    for step in range(1, 71):
        live.step(speed__step_s=5.0 if step == 70 else 0.1, train__rows=100)
    assert summary(open_run(tmp_path / "a"), now_s=0)["samples_per_s"] == pytest.approx(5000 / (49 * 0.1 + 5))


def test_the_rate_of_a_run_that_has_ended_is_that_of_its_report(tmp_path, open_run):
    """Over all its steps, of which the last may be unlike the others."""
    folder = make_run(tmp_path / "a", steps=60)
    report = json.loads((folder / "report.json").read_text())
    write_json(folder / "report.json", report | {"samples_per_s": 77.5})
    assert summary(open_run(folder), now_s=0)["samples_per_s"] == 77.5


def test_a_divergence_is_told_also_after_an_equal_audit(tmp_path, open_run):
    """The last one, and whether a later audit found none."""
    now = summary(open_run(make_run(tmp_path / "now", steps=100, diverges_at=100)), now_s=0)["divergence"]
    before = summary(open_run(make_run(tmp_path / "before", steps=150, diverges_at=100)), now_s=0)["divergence"]
    assert [(found["step"], found["is_last"]) for found in (now, before)] == [(100, True), (100, False)]
    assert "params.conv1.kernel" in now["text"]
    assert summary(open_run(make_run(tmp_path / "none", steps=100)), now_s=0)["divergence"] is None


def test_a_silent_run_says_why_it_is_called_so(tmp_path, open_run):
    run = open_run(LiveRun(tmp_path / "a", steps=30).path)
    found = summary(run, now_s=run.updated_s() + 1e6)
    assert (found["state"], found["problem_words"][0]["key"]) == ("silent", "problem.silent")


def test_a_loss_that_is_not_finite_is_its_word(tmp_path, open_run):
    """As JSON has no number for it."""
    live = LiveRun(tmp_path / "a")
    live.step(train__loss="inf")
    found = summary(open_run(tmp_path / "a"), now_s=0)
    assert found["loss"] == "inf"
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("content", ["{}", '{"counts": 7, "devices": [], "parallel": null, "task": 5}', "[]", "{"])
def test_documents_of_other_types_leave_entries_empty(tmp_path, open_run, content):
    """Another version's run.json, or a damaged one, is no error."""
    folder = make_run(tmp_path / "a", steps=5)
    (folder / "run.json").write_text(content)
    found = summary(open_run(folder), now_s=START_S)
    assert [found[key] for key in ("task", "steps", "devices", "scheme", "batch")] == [None] * 5
    assert found["step"] == 5


def test_problems_come_as_text_and_as_words(tmp_path, open_run):
    """The page translates by key and values."""
    folder = make_run(tmp_path / "a", steps=5)
    (folder / "run.json").unlink()
    found = summary(open_run(folder), now_s=START_S)
    assert found["problems"] == ["run.json is missing: nothing says what ran"]
    assert found["problem_words"][0]["key"] == "problem.run_missing"
