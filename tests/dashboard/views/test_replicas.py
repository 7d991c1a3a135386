"""Tiles of devices and rows of processes."""

from __future__ import annotations

import json

from paceline.dashboard.views.replicas import replicas
from tests.dashboard.made_runs import START_S, LiveRun, make_run, step_event


def states(document: dict) -> list[str]:
    return [tile["state"] for tile in document["tiles"]]


def test_after_an_equal_audit_all_tiles_are_equal(tmp_path, open_run):
    """Devices belong to processes in equal shares."""
    found = replicas(open_run(make_run(tmp_path / "a", steps=100, devices=4, processes=2)), now_s=START_S)
    assert states(found) == ["equal"] * 4
    assert [tile["process"] for tile in found["tiles"]] == [0, 0, 1, 1]
    assert (found["audit"]["step"], found["audit"]["compared"], found["audit"]["differing"]) == (100, 62, 0)


def test_an_odd_device_shows_the_leaf(tmp_path, open_run):
    """Only the last audit counts for the tiles; the divergence itself is counted for good."""
    found = replicas(open_run(make_run(tmp_path / "a", steps=100, diverges_at=100)), now_s=START_S)
    assert states(found) == ["equal", "equal", "odd", "equal"]
    assert found["tiles"][2]["leaves"] == ["params.conv1.kernel"]
    assert found["counts"]["divergences"] == 1
    later = replicas(open_run(make_run(tmp_path / "b", steps=150, diverges_at=100)), now_s=START_S)
    assert (states(later), later["counts"]["divergences"]) == (["equal"] * 4, 1)


def test_without_a_majority_or_without_word_of_where_no_device_is_blamed(tmp_path, open_run):
    """Unknown, not odd: of two that differ none can be told right, and old runs do not say where."""
    live = LiveRun(tmp_path / "a", devices=2)
    where = {"leaf": "w", "devices": [0, 1], "processes": [0, 0], "replicas": 2, "odd": False}
    event = {"kind": "audit", "step": 1, "time_s": START_S, "values": {"audit/differing_leaves": 1}, "text": "differs"}
    live.append(event | {"where": [where]})
    assert states(replicas(open_run(tmp_path / "a"), now_s=START_S)) == ["unknown", "unknown"]
    old = LiveRun(tmp_path / "b", devices=2)
    old.append(event)
    assert states(replicas(open_run(tmp_path / "b"), now_s=START_S)) == ["unknown", "unknown"]


def test_without_an_audit_no_device_is_called_equal(tmp_path, open_run):
    found = replicas(open_run(make_run(tmp_path / "a", steps=10)), now_s=START_S)
    assert (found["audit"], states(found)) == (None, ["not_audited"] * 4)


def test_a_process_with_slow_input_is_the_straggler(tmp_path, open_run):
    """Six times the others' time: named with its reason, the others not."""
    run = open_run(make_run(tmp_path / "a", steps=60, processes=4, slow_process=2, wait_share=0.05))
    rows = replicas(run, now_s=START_S)["processes"]
    assert [row["straggler"] for row in rows] == [False, False, True, False]
    assert rows[2]["why"].startswith("process 2 waits")
    assert rows[2]["why_words"]["values"]["process"] == 2
    assert {row["step"] for row in rows} == {60}


def test_processes_that_differ_by_little_are_no_stragglers(tmp_path, open_run):
    """Six times of next to nothing is still nothing: it costs less than 1 % of the step."""
    run = open_run(make_run(tmp_path / "a", steps=60, processes=2, slow_process=1, wait_share=0.0001))
    assert [row["straggler"] for row in replicas(run, now_s=START_S)["processes"]] == [False, False]


def test_a_process_that_makes_its_batches_slowly_but_in_time_is_no_straggler(tmp_path, open_run):
    """930 us to make a batch against 216: no device waits for it, so it costs nobody anything."""
    folder = make_run(tmp_path / "a", steps=0, planned=30, processes=2, ended=False, step_s=0.005)
    for process, make_s in enumerate((216e-6, 930e-6)):
        with open(folder / f"events-{process}.jsonl", "a") as file:
            for step in range(1, 31):
                values = {"input/make_s": make_s, "input/wait_s": 0.0} | ({} if process else {"speed/step_s": 0.005})
                event = {"kind": "step", "step": step, "time_s": START_S + step, "values": values}
                file.write(json.dumps(event) + "\n")
    rows = replicas(open_run(folder), now_s=START_S)["processes"]
    assert [(row["straggler"], row["input_make_s"]) for row in rows] == [(False, 216e-6), (False, 930e-6)]


def test_leaves_that_are_split_over_the_devices_are_not_called_compared(tmp_path, open_run):
    """62 leaves of parameters and 20 of the optimizer, of which 5 and 16 are whole on every device: 61 are split."""
    names = [f"leaf{number}" for number in range(16)]
    fields = [
        {"field": "params", "leaves": 62, "replicated": names[:5]},
        {"field": "opt_state", "leaves": 20, "replicated": names},
    ]
    made = make_run(tmp_path / "a", steps=50, extra={"placement": {"summary": "fsdp", "fields": fields}})
    assert replicas(open_run(made), now_s=START_S)["audit"]["split"] == 61
    whole = make_run(tmp_path / "b", steps=50)
    assert replicas(open_run(whole), now_s=START_S)["audit"]["split"] == 0
    old = make_run(tmp_path / "c", steps=50, extra={"placement": {"fields": [{"leaves": "many"}]}})
    assert replicas(open_run(old), now_s=START_S)["audit"]["split"] is None


def test_an_audit_that_had_nothing_to_compare_calls_no_device_equal(tmp_path, open_run):
    live = LiveRun(tmp_path / "a", devices=2)
    values = {"audit/compared_leaves": 0, "audit/differing_leaves": 0}
    live.append({"kind": "audit", "step": 1, "time_s": START_S, "values": values})
    assert states(replicas(open_run(tmp_path / "a"), now_s=START_S)) == ["not_audited"] * 2


def test_a_process_that_stays_behind_is_the_straggler(tmp_path, open_run):
    """Its events end where it hangs."""
    folder = make_run(tmp_path / "a", steps=60, processes=3, ended=False)
    lines = (folder / "events-1.jsonl").read_text().splitlines()
    (folder / "events-1.jsonl").write_text("\n".join(lines[:20]) + "\n")
    rows = replicas(open_run(folder), now_s=START_S)["processes"]
    assert [row["straggler"] for row in rows] == [False, True, False]
    assert rows[1]["why"] == "process 1 is at step 19, the others are at 60"


def test_restarts_skips_and_checkpoints_are_counted(tmp_path, open_run):
    run = open_run(make_run(tmp_path / "a", steps=200, restart_at=130, skip_at=(20, 30)))
    counts = replicas(run, now_s=START_S)["counts"]
    # Steps 101 to 129 were computed twice, so step 100's neighbours tell nothing twice: four saves, one restart.
    assert counts == {"restarts": 1, "skips": 2, "checkpoints": 4, "divergences": 0}


def test_machines_are_named_where_run_json_names_them(tmp_path, open_run):
    run = open_run(make_run(tmp_path / "a", steps=3, processes=2, extra={"machines": ["host0"]}))
    assert [row["machine"] for row in replicas(run, now_s=START_S)["processes"]] == ["host0", None]


def test_a_run_without_documents_shows_its_processes(tmp_path, open_run):
    folder = make_run(tmp_path / "a", steps=3, processes=2)
    (folder / "run.json").unlink()
    found = replicas(open_run(folder), now_s=START_S)
    assert (found["tiles"], len(found["processes"])) == ([], 2)
    json.dumps(found, allow_nan=False)


def test_a_number_that_is_not_finite_does_not_spoil_the_means(tmp_path, open_run):
    """The finite ones of the last steps are taken."""
    live = LiveRun(tmp_path / "a")
    live.step(input__wait_s=0.25)
    live.step(input__wait_s="nan")
    event = step_event(live.made, 3, process=0)
    live.append(event | {"values": {"train/loss": 1}})
    assert replicas(open_run(tmp_path / "a"), now_s=START_S)["processes"][0]["input_wait_s"] == 0.25
