"""The pipeline at a step."""

from __future__ import annotations

import json

import pytest

from paceline.dashboard.views.pipeline import pipeline
from tests.dashboard.made_runs import LiveRun, make_run

STAGES = ["input", "prefetch", "shard", "forward_backward", "all_reduce", "update", "output"]


def stages(document: dict) -> dict[str, dict]:
    return {stage["id"]: stage for stage in document["stages"]}


def test_the_stages_divide_the_step(tmp_path, open_run):
    """Made with 2 % wait; the program says 0.85, 0.10, 0.05 of the rest (pencil)."""
    found = pipeline(open_run(make_run(tmp_path / "a", steps=100)))
    assert [stage["id"] for stage in found["stages"]] == STAGES
    shares = {name: stage["share"] for name, stage in stages(found).items() if stage["share"] is not None}
    assert shares == pytest.approx({"input": 0.02, "forward_backward": 0.833, "all_reduce": 0.098, "update": 0.049})
    assert sum(shares.values()) == pytest.approx(1)
    assert stages(found)["all_reduce"]["seconds"] == pytest.approx(0.098 * found["step_s"])
    assert {name: stage["basis"] for name, stage in stages(found).items()}["all_reduce"] == "modelled"
    assert stages(found)["input"]["basis"] == "measured"


def test_shapes_are_those_of_the_batch_and_of_a_device(tmp_path, open_run):
    """[B, ...] and [B/K, ...]."""
    shapes = pipeline(open_run(make_run(tmp_path / "a", steps=3, batch=1024, devices=8, row_shape=(224, 224, 3))))[
        "shapes"
    ]
    assert shapes["input"][0] == {"name": "image", "shape": [1024, 224, 224, 3], "dtype": "float32"}
    assert [leaf["shape"] for leaf in shapes["shard"]] == [[128, 224, 224, 3], [128]]


def test_littles_law_stands_beside_the_rows_in_flight(tmp_path, open_run):
    """Made runs have a latency of five steps: P = L x T is five batches."""
    found = pipeline(open_run(make_run(tmp_path / "a", steps=100, batch=256)))
    assert found["little_rows"] == pytest.approx(5 * 256, rel=1e-9)
    assert found["rows_in_flight"] == 5 * 256
    assert found["queue"] == {"batches": 2, "depth": 2}


def test_the_queue_is_a_mean_over_the_same_steps_as_the_time_in_it(tmp_path, open_run):
    """Two batches ready at the first half of the last fifty steps, none at the others: one, and it waits one step."""
    run = LiveRun(tmp_path / "a", steps=30)
    for step in range(50):
        run.step(input__queued_batches=2 if step < 25 else 0)
    found = pipeline(open_run(run.path))
    assert found["queue"] == {"batches": pytest.approx(1), "depth": 2}
    prefetch = stages(found)["prefetch"]
    assert prefetch["seconds"] == pytest.approx(found["step_s"])
    assert prefetch["basis"] == "little"  # neither measured nor modelled


def rewritten(folder, **entries):
    """The run with other entries in program.json; those that are `...` are taken away."""
    program = json.loads((folder / "program.json").read_text()) | entries
    kept = {key: value for key, value in program.items() if value is not ...}
    (folder / "program.json").write_text(json.dumps(kept))
    return folder


def shares_of(document) -> dict[str, float]:
    return {name: stage["share"] for name, stage in stages(document).items() if stage["share"] is not None}


def test_what_the_model_does_not_explain_is_not_booked_as_communication(tmp_path, open_run):
    """A step of two parameters: 4.5 ms by the clock, of which the model explains 0.195 (0.097, 0.065, 0.033)."""
    live = LiveRun(tmp_path / "a")
    for _ in range(25):
        live.step(speed__step_s=4.5e-3, input__wait_s=0.0)
    division = {"forward_backward": 97 / 195, "all_reduce": 65 / 195, "update": 33 / 195}
    rewritten(tmp_path / "a", stages=division, communication_s=65e-6, step_s=195e-6)
    found = pipeline(open_run(tmp_path / "a"))
    assert {name: stages(found)[name]["seconds"] for name in division} == pytest.approx(
        {"forward_backward": 4.5e-3 - 98e-6, "all_reduce": 65e-6, "update": 33e-6}
    )
    assert shares_of(found)["all_reduce"] == pytest.approx(65e-6 / 4.5e-3)
    assert sum(shares_of(found).values()) == pytest.approx(1)
    assert stages(found)["forward_backward"]["detail"]["modelled_s"] == pytest.approx(97e-6)
    assert (found["bottleneck"]["stage"], found["bottleneck"]["words"]["key"]) == (
        "forward_backward", "bottleneck.unexplained",
    )  # fmt: skip
    assert "98% of each step; paceline scale measures which" in found["bottleneck"]["why"]


def test_an_older_program_gives_the_model_s_step_by_its_communication(tmp_path, open_run):
    """2 ms are a tenth of a step of 20 ms; without communication the shares divide what there is, as a guess."""
    division = {"forward_backward": 0.85, "all_reduce": 0.1, "update": 0.05}
    folder = make_run(tmp_path / "a", steps=50, step_s=0.1, wait_share=0.0)
    found = pipeline(open_run(rewritten(folder, stages=division, communication_s=0.002, step_s=...)))
    assert stages(found)["update"]["seconds"] == pytest.approx(0.001)
    assert stages(found)["all_reduce"]["seconds"] == pytest.approx(0.002)
    folder = make_run(tmp_path / "b", steps=50, step_s=0.1, wait_share=0.0)
    found = pipeline(open_run(rewritten(folder, stages=division, communication_s=..., step_s=...)))
    assert shares_of(found) == pytest.approx({"input": 0} | division)


def test_a_model_that_explains_more_than_there_is_divides_what_there_is(tmp_path, open_run):
    """A model of 40 ms for a step of 20: 28, 8 and 4 ms become 14, 4 and 2."""
    folder = make_run(tmp_path / "a", steps=50, wait_share=0.0)
    division = {"forward_backward": 0.7, "all_reduce": 0.2, "update": 0.1}
    found = pipeline(open_run(rewritten(folder, stages=division, communication_s=0.008, step_s=0.04)))
    assert shares_of(found) == pytest.approx({"input": 0} | division)
    assert stages(found)["all_reduce"]["detail"]["modelled_s"] == pytest.approx(0.008)


@pytest.mark.parametrize(
    ("wait_share", "division", "stage", "key"),
    [
        (0.3, {"forward_backward": 0.3, "all_reduce": 0.7, "update": 0.0}, "input", "input"),
        (0.05, {"forward_backward": 0.4, "all_reduce": 0.55, "update": 0.05}, "all_reduce", "all_reduce"),
        (0.05, {"forward_backward": 0.4, "all_reduce": 0.05, "update": 0.55}, "update", "update"),
        (0.02, {"forward_backward": 0.6, "all_reduce": 0.15, "update": 0.25}, "forward_backward", "rest.update"),
        (0.02, {"forward_backward": 0.8, "all_reduce": 0.15, "update": 0.05}, "forward_backward", "rest.all_reduce"),
        (0.08, {"forward_backward": 0.9, "all_reduce": 0.05, "update": 0.05}, "forward_backward", "rest.input"),
        (0.02, {"forward_backward": 0.94, "all_reduce": 0.03, "update": 0.03}, "forward_backward", "forward_backward"),
        (0.02, None, "forward_backward", "whole_step"),
    ],
)  # fmt: skip
def test_the_bottleneck_is_the_input_above_a_tenth_and_else_the_largest_share(
    tmp_path, open_run, wait_share, division, stage, key
):
    """Beside forward and backward the largest rest is named if it is over 5 %."""
    folder = make_run(tmp_path / "a", steps=50, wait_share=wait_share)
    communication_s = None if division is None else 0.02 * division["all_reduce"]
    found = pipeline(open_run(rewritten(folder, stages=division, communication_s=communication_s)))["bottleneck"]
    assert (found["stage"], found["words"]["key"]) == (stage, f"bottleneck.{key}")
    assert "%" in found["why"]
    assert ("the largest rest: " in found["why"]) == key.startswith("rest.")
    json.dumps(found["words"])


@pytest.mark.parametrize("part", [-1, 2, "half", None, True])
def test_a_program_with_senseless_shares_is_no_division(tmp_path, open_run, part):
    """Shares below 0 or above 1, or none at all: the step stands as a whole."""
    folder = rewritten(make_run(tmp_path / "a", steps=50), stages={"forward_backward": part})
    found = pipeline(open_run(folder))
    assert stages(found)["forward_backward"]["detail"]["whole_step"]
    assert sum(shares_of(found).values()) == pytest.approx(1)


def test_a_finished_run_can_be_replayed_step_by_step(tmp_path, open_run):
    """Means of the last 50 steps up to the one asked for; beyond the ends, the first and the last step."""
    live = LiveRun(tmp_path / "a")
    for step in range(1, 101):
        live.step(speed__step_s=float(step), train__loss=1 / step)
    run = open_run(tmp_path / "a")
    found = pipeline(run, step=60)
    assert (found["step"], found["step_s"], found["loss"]) == (60, pytest.approx(35.5), pytest.approx(1 / 60))
    assert (found["first_step"], found["last_step"]) == (1, 100)
    assert [pipeline(run, step=step)["step"] for step in (-5, 0, 1, 100, 10**9)] == [1, 1, 1, 100, 100]


def test_a_run_that_has_ended_is_shown_by_the_means_of_all_its_steps(tmp_path, open_run):
    """As its report has them; at a step that is asked for, by those before it."""
    live = LiveRun(tmp_path / "a")
    for step in range(1, 101):
        live.step(speed__step_s=float(step), train__rows=100)
    live.end()
    run = open_run(tmp_path / "a")
    found = pipeline(run)
    assert (found["step"], found["step_s"]) == (100, pytest.approx(50.5))
    assert found["samples_per_s"] == pytest.approx(100 / 50.5)
    assert found["means"] == {"steps": 100, "whole_run": True}
    assert pipeline(run, step=100)["means"] == {"steps": 50, "whole_run": False}
    assert pipeline(run, step=100)["step_s"] == pytest.approx(75.5)


def test_the_slowest_input_of_all_processes_is_the_bottleneck_and_named(tmp_path, open_run):
    """Devices reduce together: where one process waits for a batch, all do. Process 2 waits 30 %, the others 5 %."""
    run = open_run(make_run(tmp_path / "a", steps=60, processes=4, slow_process=2, wait_share=0.05))
    found = pipeline(run)
    assert found["bottleneck"]["stage"] == "input"
    assert found["bottleneck"]["why"].startswith("the devices of process 2 idle 30%")
    entry = stages(found)["input"]
    assert entry["share"] == pytest.approx(0.3, rel=0.01)
    assert entry["detail"]["process"] == 2
    alike = pipeline(open_run(make_run(tmp_path / "b", steps=60, processes=4, wait_share=0.3)))
    assert alike["bottleneck"]["why"].startswith("the devices idle 30%")


def test_what_the_model_does_not_explain_is_told_beside_slow_input_too(tmp_path, open_run):
    folder = make_run(tmp_path / "a", steps=60, wait_share=0.3)
    division = {"forward_backward": 0.9, "all_reduce": 0.06, "update": 0.04}
    rewritten(folder, stages=division, communication_s=2e-5, step_s=4e-4)
    found = pipeline(open_run(folder))["bottleneck"]
    assert found["stage"] == "input"
    assert "the model explains less than half of the rest" in found["why"]


def test_a_run_without_steps_has_no_times(tmp_path, open_run):
    """All stages are there, without numbers."""
    found = pipeline(open_run(make_run(tmp_path / "a", steps=0, planned=10, ended=False)))
    assert (found["step"], found["bottleneck"], found["step_s"], found["little_rows"]) == (None, None, None, None)
    assert [stage["share"] for stage in found["stages"]] == [None] * 7


def test_an_old_run_shows_what_it_has(tmp_path, open_run):
    """No program, no shapes, no times of making and placing: the compiled step stands as a whole."""
    folder = make_run(tmp_path / "a", steps=0, planned=5, program=False, ended=False)
    document = json.loads((folder / "run.json").read_text())
    del document["batch"]
    (folder / "run.json").write_text(json.dumps(document))
    with open(folder / "events-0.jsonl", "a") as file:
        for step in range(1, 6):
            values = {"train/loss": 1.0, "train/rows": 256, "speed/step_s": 0.1, "input/wait_s": 0.02}
            file.write(json.dumps({"kind": "step", "step": step, "time_s": 5.0 + step, "values": values}) + "\n")
    found = pipeline(open_run(folder))
    assert found["shapes"] == {"input": [], "shard": []}
    shares = {name: stage["share"] for name, stage in stages(found).items() if stage["share"] is not None}
    assert shares == pytest.approx({"input": 0.2, "forward_backward": 0.8})
    assert stages(found)["forward_backward"]["detail"]["whole_step"]
    assert stages(found)["forward_backward"]["basis"] == "measured"
    assert (found["latency_s"], found["rows_in_flight"]) == (None, None)


@pytest.mark.parametrize("batch", [7, "x", [3], [{"shape": "abc"}], [{"shape": [True]}], [{}], {"shape": [1]}])
def test_shapes_of_another_form_are_left_out(tmp_path, open_run, batch):
    folder = make_run(tmp_path / "a", steps=2, extra={"batch": batch})
    assert pipeline(open_run(folder))["shapes"]["input"] == []


def test_the_numbers_of_a_step_that_is_not_finite_are_words(tmp_path, open_run):
    """A loss of NaN at the step that is shown."""
    found = pipeline(open_run(make_run(tmp_path / "a", steps=30, nan_at=(30,))))
    assert found["loss"] == "nan"
    json.dumps(found, allow_nan=False)
