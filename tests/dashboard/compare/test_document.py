"""The comparison as data: each number, what is called best, what is said when nothing may be."""

from __future__ import annotations

import json

import pytest

from paceline.dashboard.compare.document import compare_document
from paceline.dashboard.compare.subjects import load_subject
from tests.dashboard.compare.made_results import plan_document, scale_document, verify_document, write
from tests.dashboard.made_runs import LiveRun, make_run

GPU = "NVIDIA H100 80GB HBM3"


def on_gpu(count, kind=GPU):
    """Devices of a run, as run.json has them."""
    return {"devices": {"count": count, "platform": "gpu", "kind": kind, "processes": 1}}


def compared(*paths):
    return compare_document([load_subject(path) for path in paths])


def row(document, key):
    return next(one for one in document["rows"] if one["key"] == key)


def cells(document, key, name, *more):
    """One entry of each cell of a row, or several together."""
    found = row(document, key)["cells"]
    return [(cell[name], *(cell[one] for one in more)) if more else cell[name] for cell in found]


@pytest.fixture
def results(tmp_path):
    """Paths of a scaling, a plan and a verification of one task."""
    made = {"scale": scale_document(), "plan": plan_document(), "verify": verify_document()}
    return {kind: write(tmp_path / f"{kind}.json", content) for kind, content in made.items()}


def test_throughput_of_a_run_is_rows_over_the_time_of_all_steps(tmp_path):
    """20 steps of 0.01 s, then 20 of 0.03 s, 256 rows each: 10,240 rows in 0.8 s; the median is between the two."""
    live = LiveRun(tmp_path / "a")
    for step in range(40):
        live.step(speed__step_s=0.01 if step < 20 else 0.03)
    document = compared(live.path)
    assert cells(document, "samples_per_s", "value") == [pytest.approx(12_800)]
    assert cells(document, "step_p50_s", "value") == [pytest.approx(0.02)]
    assert cells(document, "step_p95_s", "value", "low") == [
        (pytest.approx(0.03), None)
    ]  # 4 steps a block tell no 95 %
    assert document["subjects"][0]["state"] == "unfinished"


def test_a_step_without_a_time_is_warm_up(tmp_path):
    """The first step of a start has no time: its rows count for nothing."""
    live = LiveRun(tmp_path / "a")
    live.append({"kind": "step", "step": 1, "time_s": 1.0, "values": {"train/loss": 9.0, "train/rows": 10**9}})
    live.last = 1
    live.step(speed__step_s=0.5)
    assert cells(compared(live.path), "samples_per_s", "value") == [pytest.approx(512)]


def test_what_is_better_beyond_the_noise_is_called_best(tmp_path):
    """Steps of 20 ms against 18 ms, with 5 % noise, 500 of each."""
    slow = make_run(tmp_path / "slow", steps=500)
    fast = make_run(tmp_path / "fast", steps=500, step_s=0.018, scheme="global_view")
    document = compared(slow, fast)
    for key in ("samples_per_s", "step_p50_s", "step_p95_s"):
        assert cells(document, key, "best") == [False, True]
        assert row(document, key)["verdict"] == f"{fast.name} is best"


def test_a_difference_within_the_noise_is_not_called_better(tmp_path):
    """Both runs switch between two speeds; one is 1 % faster on the whole."""
    paths = []
    for name, factor in (("a", 1.0), ("b", 0.99)):
        live = LiveRun(tmp_path / name)
        paths.append(live.path)
        for step in range(200):
            live.step(speed__step_s=factor * (0.01 if (step // 30) % 2 else 0.03))
    document = compared(*paths)
    assert cells(document, "samples_per_s", "best") == [False, False]
    assert row(document, "samples_per_s")["verdict"] == "no difference beyond the noise"


def test_of_three_the_two_that_are_level_are_both_best(tmp_path):
    runs = [make_run(tmp_path / name, steps=500, step_s=s) for name, s in (("a", 0.02), ("b", 0.01), ("c", 0.01))]
    document = compared(*runs)
    assert cells(document, "samples_per_s", "best") == [False, True, True]
    assert row(document, "samples_per_s")["verdict"] == f"{runs[1].name} and {runs[2].name} are best"


def test_too_few_steps_for_an_interval_are_not_judged(tmp_path):
    runs = [make_run(tmp_path / name, steps=500 if name == "a" else 9, step_s=0.02) for name in "ab"]
    document = compared(*runs)
    assert cells(document, "samples_per_s", "best") == [False, False]
    assert row(document, "samples_per_s")["verdict"] == "not judged: too few steps for an interval"


@pytest.mark.parametrize(
    ("change", "what", "key"),
    [
        ({"task": "text"}, "task", "samples_per_s"),
        ({"task": "text"}, "task", "train_loss_last"),
        ({"devices": 2}, "devices", "samples_per_s"),
        ({"batch": 512}, "batch", "step_p50_s"),
        ({"extra": on_gpu(4)}, "platform", "samples_per_s"),
        ({"devices": 2}, "devices", "sent_bytes"),
    ],
)
def test_nothing_is_best_across_a_condition_that_decides_it(tmp_path, change, what, key):
    """The condition is told in words, and the row says why it is not judged."""
    runs = [make_run(tmp_path / "a", steps=300), make_run(tmp_path / "b", steps=300, step_s=0.01, **change)]
    document = compared(*runs)
    assert cells(document, key, "best") == [False, False]
    assert row(document, key)["verdict"].startswith("not judged: other ")
    told = next(one for one in document["differences"] if one["what"] == what)
    assert told["serious"]
    assert runs[0].name in told["text"] and runs[1].name in told["text"]


@pytest.mark.parametrize(("name", "value"), [("precision", "bfloat16"), ("scheme", "pmap"), ("accumulation", 4)])
def test_a_choice_that_differs_is_told_but_judged(tmp_path, name, value):
    runs = [make_run(tmp_path / "a", steps=300), make_run(tmp_path / "b", steps=300, step_s=0.01, **{name: value})]
    document = compared(*runs)
    told = next(one for one in document["differences"] if one["what"] == name)
    assert not told["serious"]
    assert str(value) in told["text"]
    assert cells(document, "samples_per_s", "best") == [False, True]


def test_options_of_the_task_that_differ_are_told(tmp_path):
    configs = [{"config": {"target": "image", "options": {}, "recipe": {"width": width}}} for width in (64, 128)]
    runs = [make_run(tmp_path / name, steps=3, extra=extra) for name, extra in zip("ab", configs, strict=True)]
    texts = [one["text"] for one in compared(*runs)["differences"]]
    assert texts == [f"task option width differs: 64 ({runs[0].name}), 128 ({runs[1].name})"]


def test_subjects_under_the_same_conditions_are_judged_beside_one_that_is_not(tmp_path):
    """A run on one device is the baseline; the two schemes on four are judged."""
    one = make_run(tmp_path / "one", steps=300, devices=1, batch=64)
    slow = make_run(tmp_path / "slow", steps=300)
    fast = make_run(tmp_path / "fast", steps=300, step_s=0.018)
    document = compared(one, slow, fast)
    assert cells(document, "samples_per_s", "best") == [False, False, True]
    assert row(document, "samples_per_s")["verdict"] == f"among {slow.name} and {fast.name}: {fast.name} is best"


def test_exact_numbers_need_no_interval(tmp_path):
    """Bytes are counted: any difference that shows is one."""
    runs = [make_run(tmp_path / name, steps=3) for name in "ab"]
    assert row(compared(*runs), "sent_bytes")["verdict"] == "equal"
    [one] = json.loads((runs[0] / "program.json").read_text())["collectives"]
    with_collectives(runs[0], {**one, "bytes": one["bytes"] - 1})
    assert row(compared(*runs), "sent_bytes")["verdict"] == "equal in the digits shown"
    with_collectives(runs[0], {**one, "bytes": one["bytes"] - 1_000_000})
    assert row(compared(*runs), "sent_bytes")["verdict"] == f"{runs[0].name} is best"


def with_collectives(run, *uses):
    """Give the compiled step of a run these collectives."""
    program = json.loads((run / "program.json").read_text())
    uses = [{"dtype": "float32", "devices": 4, "times": 1, **use} for use in uses]
    payload = sum(use["bytes"] * use["times"] for use in uses)
    write(run / "program.json", {**program, "collectives": uses, "wire_bytes": payload})


def test_an_all_reduce_sends_as_much_as_a_reduce_scatter_and_an_all_gather(tmp_path):
    """On 4 devices a ring sends 2 x 3/4 of 4000 bytes, or 3/4 twice: 6000; the payload is 4000 and 8000."""
    runs = [make_run(tmp_path / name, steps=3) for name in "ab"]
    with_collectives(runs[0], {"kind": "all-reduce", "bytes": 2000, "times": 2})
    with_collectives(
        runs[1], {"kind": "reduce-scatter", "bytes": 4000}, {"kind": "all-gather", "bytes": 1000, "times": 4}
    )
    document = compared(*runs)
    assert cells(document, "sent_bytes", "value") == [6000, 6000]
    assert row(document, "sent_bytes")["verdict"] == "equal"
    assert cells(document, "wire_bytes", "value", "best") == [(4000, False), (8000, False)]
    assert row(document, "wire_bytes")["verdict"] == ""


@pytest.mark.parametrize("use", [{"kind": "all-share"}, {"devices": 0}, {"kind": None}, {"devices": None}])
def test_a_collective_that_is_not_known_is_not_judged(tmp_path, use):
    runs = [make_run(tmp_path / name, steps=3) for name in "ab"]
    with_collectives(runs[0], {"kind": "all-reduce", "bytes": 1, **use})
    sent = row(compared(*runs), "sent_bytes")
    assert sent["cells"][0]["why"] == "the kind or the group of a collective is not known"
    assert sent["verdict"] == ""


@pytest.mark.parametrize(("compiled", "sent"), [(8, 7 / 8), (2, 7 / 8)])
def test_a_plan_sends_among_the_devices_that_it_is_for(tmp_path, compiled, sent):
    """Twice 7/8 of 1000 bytes for 8 devices, whatever number the step was compiled for; once 1/2 in groups of one."""
    use = {"bytes": 1000, "dtype": "float32", "times": 1, "blocking": False}
    plan = plan_document(
        devices=8, communication=[{**use, "kind": "all-reduce", "devices": compiled},
                                  {**use, "kind": "all-gather", "devices": 1}],
    )  # fmt: skip
    assert cells(compared(write(tmp_path / "p.json", plan)), "sent_bytes", "value") == [2 * sent * 1000]


def test_timed_steps_are_counted(tmp_path):
    """Of three steps one has no time, as those around an evaluation."""
    live = LiveRun(tmp_path / "a")
    live.step(speed__step_s=0.5)
    live.append({"kind": "step", "step": 2, "time_s": 1.0, "values": {"train/loss": 9.0, "train/rows": 10**9}})
    live.last = 2
    live.step(speed__step_s=0.5)
    document = compared(live.path)
    assert cells(document, "timed_steps", "text") == ["2"]
    assert cells(document, "samples_per_s", "value", "detail") == [(512, "over 2 timed steps; too few for an interval")]


@pytest.mark.parametrize(
    ("ended", "note"),
    [(True, "the last line of its events is torn: 1 line left out"),
     (False, "the last line of its events is torn, or still being written: 1 line left out")],
)  # fmt: skip
def test_a_torn_last_line_is_told_as_such(tmp_path, ended, note):
    run = make_run(tmp_path / "a", steps=30, ended=ended)
    with open(run / "events-0.jsonl", "a") as file:
        file.write('{"kind": "step", "st')
    assert note in compared(run)["subjects"][0]["notes"]


def test_a_plan_is_shown_as_it_was_planned(results, tmp_path):
    """For 2 devices, though its curve has the 4 of the runs beside it, of its task or of another."""
    for name, task in (("same", "image"), ("other", "text")):
        run = make_run(tmp_path / name, steps=30, devices=4, batch=256, task=task, extra=on_gpu(4))
        document = compared(results["plan"], run)
        assert [one["settings"]["devices"] for one in document["subjects"]] == [2, 4]
        assert [one["settings"]["batch"] for one in document["subjects"]] == [128, 256]
        assert cells(document, "memory_compiled_bytes", "value")[0] == 900_000_000


def test_a_scaling_joins_in_with_a_plan_but_not_with_another_task(results, tmp_path):
    """The plan is for 2 devices; the run of another task on 1 says nothing of the scaling, whose largest is 2."""
    run = make_run(tmp_path / "a", steps=30, devices=1, task="text", extra=on_gpu(1))
    for subjects in ((run, results["scale"]), (results["plan"], results["scale"])):
        assert compared(*subjects)["subjects"][1]["settings"]["devices"] == 2


def test_a_number_of_a_model_without_an_interval_makes_none_best(tmp_path):
    runs = [make_run(tmp_path / name, steps=3, step_s=step_s) for name, step_s in (("a", 0.02), ("b", 0.03))]
    document = compared(*runs)
    assert cells(document, "communication_s", "best") == [False, False]
    assert (
        row(document, "communication_s")["verdict"]
        == f"{runs[0].name} is lowest; a model's number, without an interval"
    )


def test_evaluations_are_compared_but_no_seed_makes_one_best(tmp_path):
    """Last and best of each; accuracy the higher, loss the lower; how many rows they had is no result."""
    runs = [make_run(tmp_path / "a", steps=200, batch=512), make_run(tmp_path / "b", steps=400)]
    document = compared(*runs)
    accuracy = row(document, "evaluate/accuracy/best")
    assert accuracy["better"] == "higher"
    assert [cell["best"] for cell in accuracy["cells"]] == [False, False]
    assert accuracy["verdict"] == f"{runs[1].name} is highest; another seed may turn that round"
    assert row(document, "evaluate/loss/last")["verdict"].startswith(f"{runs[1].name} is lowest")
    assert not any("evaluate/rows" in one["key"] for one in document["rows"])


def test_a_loss_that_is_not_a_number_is_shown_as_such(tmp_path):
    """In the last tenth the mean is not a number; the best step is one; the curve keeps the gap; JSON takes it all."""
    run = make_run(tmp_path / "a", steps=100, nan_at=(95,))
    document = compared(run)
    assert cells(document, "train_loss_last", "value", "text") == [("nan", "not a number")]
    assert isinstance(cells(document, "train_loss_best", "value")[0], float)
    assert "nan" in document["curves"][0]["lines"][0]["value"]
    json.dumps(document, allow_nan=False)


def test_a_run_without_program_or_steps_says_why_numbers_are_missing(tmp_path):
    run = make_run(tmp_path / "a", steps=0, planned=10, program=False, ended=False)
    document = compared(run)
    why = {one["key"]: one["why"] for one in document["unknown"]}
    assert "no step" in why["samples_per_s"]
    assert "program.json" in why["wire_bytes"]
    assert "CPU" in why["memory_measured_bytes"]


def test_each_missing_number_has_its_reason(results, tmp_path):
    document = compared(make_run(tmp_path / "a", steps=30), *results.values())
    for one in document["rows"]:
        for cell in one["cells"]:
            assert (cell["value"] is None) == bool(cell["why"])
            assert bool(cell["text"]) == (cell["value"] is not None)


def test_measured_memory_is_the_largest_over_steps_and_processes(tmp_path):
    live = LiveRun(tmp_path / "a", processes=2)
    live.step(memory__peak_bytes=700)
    live.append({"kind": "step", "step": 1, "time_s": 1.0, "values": {"memory/peak_bytes": 900}}, process=1)
    live.step(memory__peak_bytes=800)
    live.step(memory__peak_bytes="nan")
    assert cells(compared(live.path), "memory_measured_bytes", "value", "basis") == [(900, "measured")]
    assert cells(compared(live.path), "memory_compiled_bytes", "value", "basis") == [(812_000_000, "compiler")]


def test_the_fidelity_of_a_verification_lists_the_worst_first(tmp_path):
    document = compared(write(tmp_path / "v.json", verify_document(differs=True)))
    found = document["fidelity"][0]
    assert (found["verdict"], found["text"]) == (
        "differs", "not verified: 1 of 3 programs compute what one device would",
    )  # fmt: skip
    assert [one["verdict"] for one in found["rows"]] == ["drifts", "differs", "equal"]


def test_a_scaling_shows_every_point_against_the_ideal_line(results):
    found = compared(results["scale"])["scaling"][0]
    assert [point["ideal_samples_per_s"] for point in found["points"]] == [1000, 2000]
    assert found["points"][1]["efficiency"] == {"value": 0.9, "low": 0.88, "high": 0.92}


def test_waterfalls_end_at_the_efficiency(results):
    """Measured 100 - 4 - 6 = 90; predicted 100 - 1 - 3 - 1 = 95, where the host is what is left."""
    measured, planned = compared(results["scale"], results["plan"])["waterfalls"]
    assert measured["efficiency_percent"] == pytest.approx(90)
    assert {term["name"]: term["percent"]["value"] for term in planned["terms"]} == pytest.approx(
        {"compute": 1, "stragglers": 0, "communication": 3, "input": 0, "host": 1}
    )
    for one in (measured, planned):
        lost = sum(term["percent"]["value"] for term in one["terms"])
        assert 100 - lost == pytest.approx(one["efficiency_percent"])


def test_a_plan_and_a_scaling_show_predicted_against_measured(results):
    """1980 against 1800 samples/s is 10 % more; the plan's interval 1620 to 2352 holds the measured one."""
    found = {one["key"]: one for one in compared(results["plan"], results["scale"])["predictions"]}
    rate = found["samples_per_s"]
    assert (rate["predicted"], rate["measured"]) == (0, 1)
    assert rate["difference_percent"] == pytest.approx(10)
    assert rate["within"] is True
    assert rate["text"] == "plan.json says 10.0 % more than scale.json"
    assert rate["difference_points"] is None
    assert found["efficiency"]["difference_percent"] == pytest.approx(100 * (0.95 / 0.9 - 1))
    assert found["efficiency"]["difference_points"] == pytest.approx(5)
    assert found["efficiency"]["text"] == "plan.json says 5.0 percent points more than scale.json"
    assert found["efficiency"]["within"] is True  # 90 to 98 against 88 to 92


def test_a_plan_stands_beside_a_run_of_the_same_shape_also_off_its_own_k(results, tmp_path):
    """The plan is for 2 devices; its curve has 4, with 64 rows each, as the run."""
    run = make_run(tmp_path / "a", steps=100, devices=4, batch=256, extra=on_gpu(4))
    found = {one["key"]: one for one in compared(results["plan"], run)["predictions"]}
    assert found["samples_per_s"]["predicted_text"] == "3,600 samples/s"
    assert "sent_bytes" not in found  # what was compiled for two devices says nothing of four
    assert found["samples_per_s"]["conditions"] == []  # an H100 by either name


@pytest.mark.parametrize(
    ("change", "words"),
    [({"batch": 512}, "512 rows on 4 devices"), ({"task": "text"}, "another task")],
)
def test_a_plan_that_is_about_something_else_says_so(results, tmp_path, change, words):
    run = make_run(tmp_path / "a", steps=100, **{"devices": 4, "batch": 256, **change})
    document = compared(results["plan"], run)
    assert document["predictions"] == []
    assert words in document["not_predicted"][0]


def test_another_device_is_told_with_the_prediction(results, tmp_path):
    run = make_run(tmp_path / "a", steps=100, devices=4, batch=256, extra=on_gpu(4, "NVIDIA A100-SXM4-80GB"))
    assert compared(results["plan"], run)["predictions"][0]["conditions"] == ["another kind of device"]


def test_a_prediction_is_never_best_against_a_measurement(results):
    document = compared(results["plan"], results["scale"])
    assert not any(cell["best"] for one in document["rows"] for cell in one["cells"])


def test_a_scaling_joins_in_with_the_devices_of_the_others(results, tmp_path):
    run = make_run(tmp_path / "a", steps=100, devices=1, batch=64, extra=on_gpu(1))
    document = compared(run, results["scale"])
    assert [one["settings"]["devices"] for one in document["subjects"]] == [1, 1]
    assert cells(document, "samples_per_s", "value")[1] == 1000


def test_two_runs_give_the_efficiency_of_the_one_on_more_devices(tmp_path):
    """Steps of 20 ms on 1 and of 25 ms on 4 devices, 64 rows each: E_4 = 80 %."""
    one = make_run(tmp_path / "one", steps=300, devices=1, batch=64, extra=on_gpu(1))
    four = make_run(tmp_path / "four", steps=300, batch=256, step_s=0.025, extra=on_gpu(4))
    document = compared(one, four)
    assert cells(document, "efficiency", "value") == [None, pytest.approx(0.8, rel=1e-3)]
    assert document["scaling"][0]["mode"] == "weak"
    assert [point["devices"] for point in document["scaling"][0]["points"]] == [1, 4]


@pytest.mark.parametrize("change", [{"batch": 100}, {"precision": "bfloat16"}, {"task": "text"}])
def test_no_efficiency_from_a_run_of_something_else(tmp_path, change):
    one = make_run(tmp_path / "one", steps=300, devices=1, extra=on_gpu(1), **{"batch": 64, **change})
    four = make_run(tmp_path / "four", steps=300, batch=256, extra=on_gpu(4))
    assert compared(one, four)["scaling"] == []


@pytest.mark.parametrize("kind", ["cpu", "TFRT_CPU"])
def test_no_efficiency_is_claimed_on_simulated_devices(tmp_path, kind):
    one = make_run(tmp_path / "one", steps=300, devices=1, batch=64, extra=on_gpu(1, kind))
    four = make_run(tmp_path / "four", steps=300, batch=256, extra=on_gpu(4, kind))
    document = compared(one, four)
    assert document["scaling"] == []
    assert "share cores" in next(one["why"] for one in document["unknown"] if one["key"] == "efficiency")


def test_one_run_twice_has_two_labels(tmp_path):
    run = make_run(tmp_path / "a", steps=30)
    document = compared(run, run)
    assert [one["label"] for one in document["subjects"]] == [run.name, f"{run.name} (2)"]
    assert row(document, "samples_per_s")["verdict"] == "equal"
    assert document["differences"] == []


def test_curves_of_long_runs_are_thinned_and_keep_their_extremes(tmp_path):
    live = LiveRun(tmp_path / "a")
    losses = {step: 1.0 + (step == 777) - (step == 4001) for step in range(1, 12_001)}
    lines = [
        {"kind": "step", "step": step, "time_s": float(step), "values": {"train/loss": loss}}
        for step, loss in losses.items()
    ]
    live.append("".join(json.dumps(line) + "\n" for line in lines))
    line = compared(live.path)["curves"][0]["lines"][0]
    assert len(line["step"]) < 2000
    assert line["step"] == sorted(line["step"])
    assert {777, 4001, 1, 12_000} <= set(line["step"])
    assert (max(line["value"]), min(line["value"])) == (2.0, 0.0)


def test_a_step_that_was_computed_twice_counts_once(tmp_path):
    run = make_run(tmp_path / "a", steps=200, restart_at=120)
    document = compared(run)
    steps = document["curves"][0]["lines"][0]["step"]
    assert steps == sorted(set(steps))
    assert any("started 2 times" in note for note in document["subjects"][0]["notes"])


def test_a_metric_that_is_a_share_is_written_in_percent_as_on_the_page(tmp_path):
    """1 - 0.92 / e of the made run after 100 steps; a loss is no share."""
    document = compared(make_run(tmp_path / "a", steps=100))
    assert cells(document, "evaluate/accuracy/last", "value", "text") == [(pytest.approx(0.66155, abs=1e-4), "66.16 %")]
    assert "%" not in cells(document, "evaluate/loss/last", "text")[0]
