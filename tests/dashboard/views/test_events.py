"""The list of events, and the table of steps."""

from __future__ import annotations

import csv
import json
import math

from paceline.dashboard.views.events import events
from paceline.dashboard.views.table import csv_lines
from tests.dashboard.made_runs import START_S, LiveRun, make_run


def test_events_are_all_but_the_steps_in_order(tmp_path, open_run):
    folder = make_run(tmp_path / "a", steps=100, skip_at=(60,))
    found = events(open_run(folder))["events"]
    lines = [json.loads(line) for line in (folder / "events-0.jsonl").read_text().splitlines()]
    expected = [(line["kind"], line["step"], line.get("text")) for line in lines if line["kind"] != "step"]
    assert [(event["kind"], event["step"], event["text"]) for event in found] == expected


def test_earlier_events_come_page_by_page(tmp_path, open_run):
    """By the number of the first one of the page; none twice, none left out."""
    live = LiveRun(tmp_path / "a")
    for step in range(25):
        live.append({"kind": "notice", "step": step, "time_s": START_S, "values": {}, "text": f"{step}"})
    run = open_run(tmp_path / "a")
    pages, before = [], None
    while True:
        page = events(run, before=before, limit=10)
        pages = page["events"] + pages
        before = page["events"][0]["number"]
        if not page["earlier"]:
            break
    assert [event["text"] for event in pages] == [None, *map(str, range(25))]


def test_what_cannot_be_shown_is_counted(tmp_path, open_run):
    live = LiveRun(tmp_path / "a")
    live.append("damage\n")
    live.append({"kind": "teleport", "step": 0, "time_s": 1.0, "values": {}})
    found = events(open_run(tmp_path / "a"))
    assert (found["skipped"], found["unknown"]) == (1, {"teleport": 1})


def test_values_that_are_not_finite_and_places_of_differences_are_json(tmp_path, open_run):
    live = LiveRun(tmp_path / "a")
    where = {"leaf": "<b>w</b>", "devices": [1], "processes": [0], "replicas": 4, "odd": True}
    live.append(
        {"kind": "audit", "step": 1, "time_s": 1.0, "values": {"x": "nan", "y": 3}, "text": "t", "where": [where]}
    )
    found = events(open_run(tmp_path / "a"))["events"][-1]
    assert (found["values"], found["where"]) == ({"x": "nan", "y": 3}, [where])
    json.dumps(found, allow_nan=False)


def test_the_table_reads_back_bit_for_bit(tmp_path, open_run):
    """Every step, exactly; a step without a number has an empty field."""
    folder = make_run(tmp_path / "a", steps=5000, nan_at=(17,))
    run = open_run(folder)
    rows = list(csv.DictReader("".join(csv_lines(run, keys=["train/loss", "evaluate/loss", "no/such"])).splitlines()))
    lines = [json.loads(line) for line in (folder / "events-0.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["values"]["train/loss"] for line in lines if line["kind"] == "step"}
    times = {line["step"]: line["time_s"] for line in lines if line["kind"] == "step"}
    assert [int(row["step"]) for row in rows] == list(losses)
    assert math.isnan(float(rows[16].pop("train/loss")))
    assert all(float(row.get("train/loss", "nan")) == losses[int(row["step"])] for row in rows if "train/loss" in row)
    assert all(float(row["time_s"]) == times[int(row["step"])] for row in rows)
    assert [int(row["step"]) for row in rows if row["evaluate/loss"]] == list(range(50, 5001, 50))
    assert {row["no/such"] for row in rows} == {""}


def test_names_cannot_break_the_table_or_become_a_formula(tmp_path, open_run):
    """Commas, quotes and newlines are quoted; what a spreadsheet would run is marked as text."""
    live = LiveRun(tmp_path / "a")
    names = ['train/a,"b"', "=HYPERLINK(1)"]
    event = {"kind": "step", "step": 1, "time_s": 2.0, "values": dict.fromkeys(names, 1.5)}
    live.append(event)
    rows = list(csv.reader("".join(csv_lines(open_run(tmp_path / "a"), keys=names)).splitlines()))
    assert rows == [["step", "time_s", names[0], "'=HYPERLINK(1)"], ["1", "2.0", "1.5", "1.5"]]


def test_a_table_of_nothing_is_its_header(tmp_path, open_run):
    (tmp_path / "a").mkdir()
    assert "".join(csv_lines(open_run(tmp_path / "a"), keys=["x/y"])) == "step,time_s,x/y\n"


def test_whole_numbers_beyond_what_a_float_holds_are_infinite(tmp_path, open_run):
    """A line may hold them; no browser does."""
    live = LiveRun(tmp_path / "a")
    live.append('{"kind":"evaluation","step":1,"time_s":1.0,"values":{"a":1' + "0" * 400 + ',"b":9007199254740993}}\n')
    values = events(open_run(tmp_path / "a"))["events"][-1]["values"]
    assert values == {"a": "inf", "b": 9007199254740992}


def test_a_table_reaches_the_last_step_that_there_is(tmp_path, open_run):
    """Beyond 2**53 a float64 has no number for each step: later ones are that one."""
    live = LiveRun(tmp_path / "a")
    for number in (1, 2**53 - 1, 2**53, 2**60):
        live.append({"kind": "step", "step": number, "time_s": 2.0, "values": {"train/loss": 1.5}})
    rows = list(csv.reader("".join(csv_lines(open_run(tmp_path / "a"), keys=["train/loss"])).splitlines()))
    assert [int(row[0]) for row in rows[1:]] == [1, 2**53 - 1, 2**53]
