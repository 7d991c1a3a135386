"""Runs that did not end as planned, and numbers that are not finite, among those that did and are."""

from __future__ import annotations

import json
import math

import pytest

from paceline.dashboard.compare.document import compare_document
from paceline.dashboard.compare.subjects import load_subject
from tests.dashboard.compare.made_results import plan_document, scale_document, write
from tests.dashboard.made_runs import LiveRun, make_run

ERROR = "NonFiniteError: the loss of step 20 is not finite"


def compared(*paths):
    return compare_document([load_subject(path) for path in paths])


def row(document, key):
    return next(one for one in document["rows"] if one["key"] == key)


def with_skipped(path, *, steps, skipped, **changes):
    """A run whose last step tells how many updates it left out."""
    live = LiveRun(path, **changes)
    for step in range(1, steps + 1):
        live.step(train__skipped_updates=skipped if step == steps else 0)
    return live.path


def test_a_run_that_broke_off_is_not_best_for_leaving_out_fewer_updates(tmp_path):
    """2 of 40 against 0 of 3."""
    runs = [with_skipped(tmp_path / name, steps=steps, skipped=skipped) for name, steps, skipped in
            (("whole", 40, 2), ("broken", 3, 0))]  # fmt: skip
    document = compared(*runs)
    for key, values in (("skipped_updates", [2, 0]), ("steps", [40, 3])):
        found = row(document, key)
        assert [cell["value"] for cell in found["cells"]] == values
        assert not any(cell["best"] for cell in found["cells"])
        assert found["verdict"] == ""


@pytest.mark.parametrize(
    ("stopped", "state", "note"),
    [
        (None, "finished", None),
        ("interrupted", "stopped", "it ended early: interrupted"),
        ("the data ended", "stopped", "it ended early: the data ended"),
        (ERROR, "failed", f"it failed: {ERROR}"),
    ],
)
@pytest.mark.parametrize("reported", [True, False])
def test_a_run_is_called_what_the_list_of_runs_calls_it(tmp_path, stopped, state, note, reported):
    """By its report, or by its last event where it could write none."""
    run = make_run(tmp_path / "a", steps=20, stopped=stopped)
    if not reported:
        (run / "report.json").unlink()
    [found] = compared(run)["subjects"]
    assert found["state"] == state
    assert found["notes"] == ([] if note is None else [note])


def test_a_report_without_an_end_counts_unless_the_run_went_on(tmp_path):
    """The last event is lost: the report says how it ended. Later steps are of a new start."""
    run = make_run(tmp_path / "a", steps=20, stopped=ERROR)
    events = run / "events-0.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(lines[:-1]))
    assert compared(run)["subjects"][0]["state"] == "failed"
    later = json.loads(lines[-2]) | {"step": 21}
    events.write_text("".join([*lines[:-1], json.dumps(later) + "\n"]))
    assert compared(run)["subjects"][0]["state"] == "unfinished"


@pytest.mark.parametrize(
    ("losses", "mean", "words"),
    [
        ([1.0, math.inf], math.inf, "infinite"),
        ([1.0, -math.inf], -math.inf, "-infinite"),
        ([math.inf, math.nan], math.nan, "not a number"),
        ([math.inf, -math.inf], math.nan, "not a number"),
        ([1e308, 1e308], 1e308, "1e+308"),
    ],
)
def test_losses_that_end_infinite_are_told_as_infinite(tmp_path, losses, mean, words):
    """The last tenth of 20 steps is two."""
    live = LiveRun(tmp_path / "a")
    for loss in [1.0] * 18 + losses:
        live.step(train__loss=loss if math.isfinite(loss) else str(loss))
    [cell] = row(compared(live.path), "train_loss_last")["cells"]
    assert float(cell["value"]) == pytest.approx(mean, nan_ok=True)
    assert cell["text"] == words


def test_losses_that_all_end_infinite_are_not_judged(tmp_path):
    paths = []
    for name in "ab":
        live = LiveRun(tmp_path / name)
        paths.append(live.path)
        live.step(train__loss="inf")
    assert row(compared(*paths), "train_loss_last")["verdict"] == "none is finite"


def on(kind):
    return {"devices": {"count": 2, "platform": "gpu", "kind": kind, "processes": 1}}


def test_devices_that_differ_are_told_by_what_is_judged(tmp_path):
    """A CPU has two names, and is one; an H100 is none."""
    run = make_run(tmp_path / "run", steps=3, devices=2, extra=on("TFRT_CPU"))
    scale = write(tmp_path / "scale.json", scale_document(platform="cpu"))
    plan = write(tmp_path / "plan.json", plan_document())
    assert not [one for one in compared(run, scale)["differences"] if one["what"] == "platform"]
    [found] = [one for one in compared(run, scale, plan)["differences"] if one["what"] == "platform"]
    assert "TFRT" not in found["text"]
    assert "cpu (" in found["text"] and "H100 (" in found["text"]


def test_runs_that_are_not_judged_for_their_devices_are_told_also_beside_a_plan(tmp_path):
    """Two cards of one model: a plan fits both, but runs on them are not compared with each other."""
    kinds = ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe")
    runs = [make_run(tmp_path / name, steps=60, devices=2, batch=128, extra=on(kind))
            for name, kind in zip("ab", kinds, strict=True)]  # fmt: skip
    document = compared(*runs, write(tmp_path / "plan.json", plan_document()))
    assert row(document, "samples_per_s")["verdict"] == "not judged: other kinds of device"
    [found] = [one for one in document["differences"] if one["what"] == "platform"]
    assert all(kind in found["text"] for kind in kinds)


LEARNED = ("train_loss_last", "train_loss_best", "evaluate/loss/last", "evaluate/loss/best")


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"steps": 60}, "15,360 rows in 60 steps"),
        ({"steps": 60, "planned": 400}, "15,360 rows in 60 of 400 steps"),
        ({"steps": 400, "batch": 512}, "204,800 rows in 400 steps"),
    ],
)
def test_runs_that_were_not_trained_as_long_are_not_ranked_by_what_they_learned(tmp_path, other, text):
    runs = [make_run(tmp_path / "a", steps=400), make_run(tmp_path / "b", **other)]
    document = compared(*runs)
    for key in LEARNED:
        assert row(document, key)["verdict"] == "not judged: other numbers of steps made, counted in rows"
    [told] = [one for one in document["differences"] if one["what"] == "trained"]
    assert told["serious"]
    assert told["text"] == f"the steps planned or made differ: 102,400 rows in 400 steps (a), {text} (b)"


@pytest.mark.parametrize("other", [{"steps": 397}, {"steps": 200, "batch": 512}])
def test_runs_that_were_trained_about_as_long_are_ranked(tmp_path, other):
    """Other steps are told all the same."""
    document = compared(make_run(tmp_path / "a", steps=400), make_run(tmp_path / "b", seed=1, **other))
    for key in LEARNED[1:]:
        assert not row(document, key)["verdict"].startswith("not judged")
    [told] = [one for one in document["differences"] if one["what"] == "trained"]
    assert not told["serious"]


def test_of_three_runs_the_two_that_were_trained_as_long_are_ranked(tmp_path):
    runs = [make_run(tmp_path / name, steps=steps, seed=seed)
            for seed, (name, steps) in enumerate((("a", 400), ("b", 60), ("c", 400)))]  # fmt: skip
    assert row(compared(*runs), "train_loss_best")["verdict"].startswith("among a and c: ")


def test_a_verdict_says_whose_machine_was_busy(tmp_path):
    """Where times are judged; counted numbers are as sure as ever."""
    note = (
        "THE MACHINE WAS BUSY: other programs used 48 % of these cores meanwhile, so intervals are wide and efficiency "
        "may be off"
    )
    faster = scale_document(conditions=[note])
    for point in faster["scalings"][0]["points"]:
        point["samples_per_s"] = {name: 2 * value for name, value in point["samples_per_s"].items()}
    document = compared(write(tmp_path / "a.json", scale_document()), write(tmp_path / "b.json", faster))
    assert row(document, "samples_per_s")["verdict"] == "b.json is best; the machine was busy: b.json"
    assert row(document, "efficiency")["verdict"].endswith("; the machine was busy: b.json")
    quiet = compared(write(tmp_path / "a.json", scale_document()), write(tmp_path / "b.json", scale_document()))
    assert not any("busy" in one["verdict"] for one in quiet["rows"])
