"""Numbers that are none: beyond a float, not finite, negative, text. Each is told, none ends in a traceback."""

from __future__ import annotations

import json

import pytest

from paceline.dashboard.compare.document import compare_document
from paceline.dashboard.compare.result_file import SubjectError
from paceline.dashboard.compare.subjects import load_subject
from paceline.dashboard.compare.text import compare_lines
from tests.dashboard.compare.made_results import plan_document, scale_document, verify_document, write
from tests.dashboard.made_runs import make_run

HUGE = 10**400
NONE = [HUGE, -HUGE, -1, float("nan"), float("inf"), True, "12", [1]]
UNUSABLE = "no number that can be used"


def shown(run):
    """The document of a run, which also becomes text and JSON."""
    document = compare_document([load_subject(run)])
    compare_lines(document, width=100)
    json.dumps(document, allow_nan=False)
    return document


def reasons(document):
    """Why numbers are not known, by key."""
    return {one["key"]: one["why"] for one in document["unknown"]}


def with_program(run, **changes):
    program = json.loads((run / "program.json").read_text())
    (run / "program.json").write_text(json.dumps({**program, **changes}))
    return run


@pytest.mark.parametrize("number", NONE, ids=lambda one: type(one).__name__ + str(one)[:4])
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("memory", ["memory_compiled_bytes"]),
        ("wire_bytes", ["wire_bytes"]),
        ("blocking_collectives", ["blocking_collectives"]),
        ("communication_s", ["communication_s"]),
    ],
)
def test_a_number_of_the_compiled_step_that_is_none_is_told(tmp_path, name, keys, number):
    """Also beside a run whose number is one."""
    good = make_run(tmp_path / "good", steps=3)
    bad = make_run(tmp_path / "bad", steps=3)
    with_program(bad, **{name: {"peak_bytes": number} if name == "memory" else number})
    found = reasons(shown(bad))
    for key in keys:
        assert UNUSABLE in found[key]
    both = compare_document([load_subject(good), load_subject(bad)])
    [row] = [one for one in both["rows"] if one["key"] == keys[0]]
    assert [UNUSABLE in (cell["why"] or "") for cell in row["cells"]] == [False, True]
    assert not any(cell["best"] for cell in row["cells"])


@pytest.mark.parametrize("number", NONE, ids=lambda one: type(one).__name__ + str(one)[:4])
@pytest.mark.parametrize(("name", "keys"), [("bytes", ["sent_bytes"]), ("times", ["sent_bytes", "collectives"])])
def test_a_number_of_a_collective_that_is_none_is_told(tmp_path, name, keys, number):
    use = {"kind": "all-reduce", "bytes": 1000, "devices": 4, "times": 1, name: number}
    found = reasons(shown(with_program(make_run(tmp_path / "a", steps=3), collectives=[use, use])))
    for key in keys:
        assert UNUSABLE in found[key]


def test_a_sum_beyond_a_float_is_told(tmp_path):
    """Each of the two is within one, both together are not."""
    use = {"kind": "all-reduce", "bytes": 10**308, "devices": 4, "times": 10**308}
    found = reasons(shown(with_program(make_run(tmp_path / "a", steps=3), collectives=[use, use])))
    assert UNUSABLE in found["sent_bytes"]
    assert UNUSABLE in found["collectives"]


@pytest.mark.parametrize("uses", [[None], [1], ["x"], [[]]])
def test_a_collective_that_is_no_object_is_told(tmp_path, uses):
    found = reasons(shown(with_program(make_run(tmp_path / "a", steps=3), collectives=uses)))
    assert UNUSABLE in found["sent_bytes"]


@pytest.mark.parametrize("number", [HUGE, -HUGE, "4", True], ids=["huge", "negative", "text", "bool"])
def test_counts_of_a_run_that_are_none_are_not_told(tmp_path, number):
    """Beside a run on one device, whose E_K would be reckoned with them."""
    single = make_run(tmp_path / "single", steps=60, devices=1, batch=64)
    document = json.loads((single / "run.json").read_text())
    for part in ({"devices": {"count": number}}, {"counts": {"global_batch": number}}):
        run = make_run(tmp_path / next(iter(part)), steps=60)
        write(run / "run.json", {**document, **part, "parallel": {"accumulation": number}})
        found = compare_document([load_subject(single), load_subject(run)])
        settings = found["subjects"][1]["settings"]
        assert None in (settings["devices"], settings["batch"])
        assert settings["accumulation"] is None
        [latency] = [one for one in found["rows"] if one["key"] == "step_p50_s"]
        assert latency["verdict"].startswith("not judged: of some the ")


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (plan_document(memory={"peak_bytes": HUGE}), "plan.memory.peak_bytes"),
        (plan_document(devices=HUGE), "plan.devices"),
        (scale_document(rounds=-HUGE), "rounds"),
        ({**verify_document(), "skipped": [{"devices": HUGE}]}, "skipped.0.devices"),
    ],
)
def test_a_result_with_a_number_beyond_a_float_is_refused_with_its_place(tmp_path, document, place):
    with pytest.raises(SubjectError) as caught:
        load_subject(write(tmp_path / "x.json", document))
    assert f"`{place}`" in caught.value.what


@pytest.mark.parametrize("devices", [0, -2])
def test_a_result_of_no_devices_is_refused(tmp_path, devices):
    scale = scale_document()
    scale["scalings"][0]["points"][0]["devices"] = devices
    plan = plan_document()
    plan["plan"]["curve"][0]["devices"] = devices
    for document in (scale, plan, plan_document(devices=devices)):
        with pytest.raises(SubjectError, match="devices"):
            load_subject(write(tmp_path / "x.json", document))


def test_a_result_that_divides_by_zero_is_refused(tmp_path):
    with pytest.raises(SubjectError, match="zero"):
        load_subject(write(tmp_path / "x.json", plan_document(step_s=0)))


@pytest.mark.parametrize("key", ["speed/step_s", "train/rows", "train/loss", "input/wait_s", "memory/peak_bytes"])
def test_a_number_of_a_step_beyond_a_float_ends_in_no_traceback(tmp_path, key):
    """One of 60 steps has it."""
    run = make_run(tmp_path / "a", steps=60)
    events = run / "events-0.jsonl"
    lines = events.read_text().splitlines()
    step = json.loads(lines[20])
    step["values"][key] = HUGE
    events.write_text("\n".join([*lines[:20], json.dumps(step), *lines[21:]]) + "\n")
    shown(run)
