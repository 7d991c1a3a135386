"""Names of metrics that a task may choose, and numbers of any size."""

from __future__ import annotations

import warnings

import pytest

from paceline.dashboard.views.detail import detail
from paceline.dashboard.views.pipeline import pipeline
from paceline.dashboard.views.replicas import replicas
from paceline.dashboard.views.series import keys_of, series, source_of
from paceline.dashboard.views.summary import summary
from paceline.dashboard.views.table import csv_lines
from tests.dashboard.made_runs import LiveRun, make_run


def step(values, number=1, time_s=1.0):
    return {"kind": "step", "step": number, "time_s": time_s, "values": values}


@pytest.mark.parametrize(
    "key", ["evaluate/recall@5", "train/hit@1", "x@", "@", "@1", "a@b", "a@0", "a@01@7", "@@", "a\n@2"]
)
def test_an_at_sign_in_a_name_is_part_of_it(tmp_path, open_run, key):
    """In the list of metrics, in its series, in the table."""
    live = LiveRun(tmp_path / "a", processes=2)
    live.append(step({key: 0.5, "train/loss": 1.0}))
    run = open_run(tmp_path / "a")
    assert key in set(keys_of(run))
    (metric,) = [metric for metric in detail(run)["metrics"] if metric["key"] == key]
    assert (metric["last"], metric["count"]) == (0.5, 1)
    assert series(run, keys=[key])["series"][key]["value"] == [0.5]
    assert "".join(csv_lines(run, keys=[key])).endswith(",0.5\n")


def test_a_key_as_it_stands_comes_before_the_key_of_another_process(tmp_path, open_run):
    """And it is named once."""
    live = LiveRun(tmp_path / "a", processes=2)
    live.append(step({"input/wait_s@1": 0.5, "input/wait_s": 0.25}))
    live.append(step({"input/wait_s": 0.75, "input/other@5": 2.0}), process=1)
    run = open_run(tmp_path / "a")
    assert series(run, keys=["input/wait_s@1"])["series"]["input/wait_s@1"]["value"] == [0.5]
    assert series(run, keys=["input/other@5@1"])["series"]["input/other@5@1"]["value"] == [2.0]
    found = list(keys_of(run))
    assert (len(found), found.count("input/wait_s@1")) == (len(set(found)), 1)


@pytest.mark.parametrize("suffix", ["@", "@0", "@00", "@01", "@1x", "@-1", "@١", "@1\n", "@9999999999", "@7"])
def test_only_the_canonical_name_of_a_process_is_one(tmp_path, open_run, suffix):
    run = open_run(make_run(tmp_path / "a", steps=3, processes=2))
    assert source_of(run, "input/wait_s@1") is not None
    assert source_of(run, "input/wait_s" + suffix) is None


@pytest.mark.parametrize("one_by_one", [True, False])
def test_numbers_at_the_ends_of_the_scale_raise_no_warnings(tmp_path, open_run, one_by_one):
    """Warnings of numpy would fill the terminal of the server."""
    folder = make_run(tmp_path / "a", steps=0, ended=False)
    live = LiveRun(folder, steps=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = open_run(folder) if one_by_one else None
        huge = (1.7e308, -1.7e308, 5e-324, 0, "nan", "inf", "-inf")
        for number in range(1, 211):
            value = huge[number % len(huge)]
            keys = ("speed/step_s", "input/wait_s", "train/loss", "train/rows", "input/make_s", "speed/samples_per_s")
            time_s = (1e308, -1e308)[number % 2]
            live.append(step(dict.fromkeys(keys, value), number, time_s))
            if run is not None:
                run.refresh()
                run.look()
                run.read(1 << 20)
        run = run or open_run(folder)
        assert len(run.columns()) == 210
        for points in (4, 50, 1000):
            series(run, keys=list(keys_of(run)), points=points)
        for answer in (detail(run), summary(run, now_s=0.0), pipeline(run), replicas(run, now_s=0.0)):
            assert answer is not None
