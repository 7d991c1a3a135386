"""Curves and what is derived from them."""

from __future__ import annotations

import json
import statistics

import pytest

from paceline.dashboard.views import series as views
from paceline.dashboard.views.detail import detail
from paceline.dashboard.views.series import keys_of, series
from tests.dashboard.made_runs import LiveRun, make_run, write_json


def test_few_steps_come_as_they_were_written(tmp_path, open_run):
    """Steps, times, values, of training and of evaluations."""
    folder = make_run(tmp_path / "a", steps=100)
    found = series(open_run(folder), keys=["train/loss", "evaluate/loss"])["series"]
    lines = [json.loads(line) for line in (folder / "events-0.jsonl").read_text().splitlines()]
    for key, kind in (("train/loss", "step"), ("evaluate/loss", "evaluation")):
        events = [line for line in lines if line["kind"] == kind]
        assert found[key] == {
            "step": [event["step"] for event in events],
            "time_s": [event["time_s"] for event in events],
            "value": [event["values"][key] for event in events],
            "means": None,
        }


def test_numbers_that_are_not_finite_are_words(tmp_path, open_run):
    """And the document is JSON that every browser reads."""
    found = series(open_run(make_run(tmp_path / "a", steps=3000, nan_at=(77, 1500))), keys=["train/loss"], points=50)
    curve = found["series"]["train/loss"]
    assert [step for step, value in zip(curve["step"], curve["value"], strict=True) if value == "nan"] == [77, 1500]
    assert {"kind": "nonfinite", "step": 77, "process": 0, "text": "train/loss is nan"}.items() <= next(
        mark for mark in found["marks"] if mark["kind"] == "nonfinite"
    ).items()
    json.dumps(found, allow_nan=False)


def test_a_part_of_the_run_is_shown_in_full(tmp_path, open_run):
    """Both ends included."""
    run = open_run(make_run(tmp_path / "a", steps=3000))
    curve = series(run, keys=["train/loss"], points=50, from_step=1000, to_step=1040)["series"]["train/loss"]
    assert curve["step"] == list(range(1000, 1041))


def test_all_curves_of_a_run_together_are_bounded(tmp_path, open_run, monkeypatch):
    """Of many keys each has fewer points; a key that is given twice, or that the run lacks, counts once."""
    run = open_run(make_run(tmp_path / "a", steps=3000))
    monkeypatch.setattr(views, "MOST_NUMBERS", 400)
    keys = ["train/loss", "train/loss", "speed/step_s", "no/such", "nor/such"]
    found = series(run, keys=keys, points=10_000)["series"]
    assert found == series(run, keys=keys[:3], points=100)["series"]
    assert len(found["train/loss"]["step"]) < 200
    assert len(series(run, keys=["train/loss"], points=10_000)["series"]["train/loss"]["step"]) > 300


def test_curves_may_be_written_one_after_the_other(tmp_path, open_run):
    """What is written stands in the place of the curve."""
    run = open_run(make_run(tmp_path / "a", steps=30))
    found = series(run, keys=["train/loss", "speed/step_s"], write=lambda curve: len(curve["step"]))
    assert found["series"] == {"train/loss": 30, "speed/step_s": 30}


def test_keys_of_further_processes_carry_their_index(tmp_path, open_run):
    """What each tells for itself: input and memory."""
    run = open_run(make_run(tmp_path / "a", steps=10, processes=2, slow_process=1))
    found = series(run, keys=["input/make_s", "input/make_s@1", "input/make_s@7", "input/make_s@x"])["series"]
    assert list(found) == ["input/make_s", "input/make_s@1"]
    own, other = (found[key]["value"][5] for key in found)
    assert other == pytest.approx(6 * own)
    assert "memory/process_bytes@1" in set(keys_of(run))


def test_communication_is_the_modelled_part_of_the_measured_step(tmp_path, open_run):
    """program.communication_s / the mean of the last 50 step times, at each step."""
    run = open_run(make_run(tmp_path / "a", steps=60, step_s=0.02))
    found = series(run, keys=["communication/share", "speed/step_s"])["series"]
    steps_s = found["speed/step_s"]["value"]
    recent_s = [statistics.mean(steps_s[max(0, place - 49) : place + 1]) for place in range(60)]
    assert found["communication/share"]["value"] == pytest.approx([0.002 / step_s for step_s in recent_s])


def test_a_thinned_curve_comes_with_the_means_of_its_stretches(tmp_path, open_run):
    """As JSON holds them: null where no number is finite."""
    folder = make_run(tmp_path / "a", steps=3000, nan_at=tuple(range(1001, 1200)))
    curve = series(open_run(folder), keys=["train/loss"], points=60)["series"]["train/loss"]
    lines = [json.loads(line) for line in (folder / "events-0.jsonl").read_text().splitlines()]
    losses = [line["values"]["train/loss"] for line in lines if line["kind"] == "step"]
    means = curve["means"]
    assert list(means) == ["from_step", "to_step", "time_s", "value", "finite", "not_finite"]
    assert None in means["value"] and sum(means["not_finite"]) == 199
    for low, high, mean in zip(means["from_step"], means["to_step"], means["value"], strict=True):
        finite = [loss for loss in losses[low - 1 : high] if loss != "nan"]
        assert mean == (pytest.approx(sum(finite) / len(finite), rel=1e-12) if finite else None)
    json.dumps(curve, allow_nan=False)


def test_the_mean_share_of_communication_is_that_of_the_time(tmp_path, open_run):
    """All communication over all steps' time, in each stretch."""
    run = open_run(make_run(tmp_path / "a", steps=600, step_s=0.02))
    found = series(run, keys=["communication/share", "speed/recent_step_s"], points=20)["series"]
    shares, steps_s = (found[key]["means"]["value"] for key in ("communication/share", "speed/recent_step_s"))
    assert shares == pytest.approx([0.002 / step_s for step_s in steps_s])


def test_the_share_of_communication_is_at_most_the_whole_step(tmp_path, open_run):
    """The model's second over steps of 50 ms."""
    folder = make_run(tmp_path / "a", steps=600)
    program = json.loads((folder / "program.json").read_text())
    write_json(folder / "program.json", program | {"communication_s": 1.0})
    run = open_run(folder)
    for points in (20, 1000):
        curve = series(run, keys=["communication/share"], points=points)["series"]["communication/share"]
        means = [] if curve["means"] is None else curve["means"]["value"]
        assert {*curve["value"], *means} == {1.0}


def test_without_a_program_there_is_no_communication(tmp_path, open_run):
    """An old run: the key is left out, others are there."""
    run = open_run(make_run(tmp_path / "a", steps=10, program=False))
    assert list(series(run, keys=["communication/share", "train/loss", "no/such"])["series"]) == ["train/loss"]
    assert "communication/share" not in set(keys_of(run))


def test_every_key_that_is_told_gives_a_curve(tmp_path, open_run):
    """With the count and the last number that the run's page shows."""
    run = open_run(make_run(tmp_path / "a", steps=120, processes=2))
    metrics = {metric["key"]: metric for metric in detail(run, now_s=0)["metrics"]}
    found = series(run, keys=list(keys_of(run)))["series"]
    assert list(found) == list(metrics)
    for key, curve in found.items():
        assert metrics[key]["count"] == len(curve["value"]) > 0
        assert metrics[key]["last"] == pytest.approx(curve["value"][-1])
        assert metrics[key]["description"]
    assert metrics["speed/step_p95_s"]["unit"] == "s"


def test_a_run_without_anything_gives_an_empty_answer(tmp_path, open_run):
    (tmp_path / "a").mkdir()
    found = series(open_run(tmp_path / "a"), keys=["train/loss", "communication/share"])
    assert (found["series"], found["marks"], found["reading"]) == ({}, [], False)


@pytest.mark.parametrize("points", [-5, 0, 1, 10**9])
def test_any_number_of_points_is_answered(tmp_path, open_run, points):
    """Bounded at both ends."""
    run = open_run(make_run(tmp_path / "a", steps=500))
    assert 2 <= len(series(run, keys=["train/loss"], points=points)["series"]["train/loss"]["step"]) <= 500


def test_a_step_that_was_computed_twice_counts_once(tmp_path, open_run):
    """The later one."""
    live = LiveRun(tmp_path / "a")
    for step in (1, 2, 3, 2, 3):
        live.last = step - 1
        live.step(
            train__loss=live.path.stat().st_ino * 0 + len((live.path / "events-0.jsonl").read_text().splitlines())
        )
    curve = series(open_run(tmp_path / "a"), keys=["train/loss"])["series"]["train/loss"]
    assert (curve["step"], curve["value"]) == ([1, 2, 3], [1, 4, 5])
