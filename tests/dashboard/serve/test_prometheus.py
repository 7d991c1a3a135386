"""The text that Prometheus scrapes: names, labels, special numbers."""

from __future__ import annotations

import re
from typing import get_args

from paceline.dashboard.follow.health import State
from paceline.dashboard.follow.library import Library
from paceline.dashboard.serve.prometheus import render
from paceline.dashboard.views.detail import detail
from tests.dashboard.made_runs import LiveRun

_LINE = re.compile(
    r"(# (HELP|TYPE) [a-zA-Z_][a-zA-Z0-9_]* .+|[a-zA-Z_][a-zA-Z0-9_]*\{([a-z]+=\"(\\.|[^\\\"])*\",?)*\} \S+)"
)


def page(metrics=(), *, now_s=100.0, **changes):
    read = {"bytes": 300, "of_bytes": 400}
    summary = {"id": "a", "state": "running", "step": 5, "steps": 9, "updated_s": 97.5, "read": read, **changes}
    return render([(summary, metrics)], now_s=now_s)


def metric(key, last, description="words", process=None):
    return {"key": key, "process": process, "last": last, "description": description}


def test_a_run_is_its_state_its_step_its_age_and_its_last_numbers():
    """One gauge each, with the run as a label."""
    lines = page([metric("train/loss", 0.25), metric("input/wait_s@3", 0.5, process=3)]).splitlines()
    assert 'paceline_state{run="a",state="running"} 1' in lines
    assert 'paceline_state{run="a",state="failed"} 0' in lines
    assert 'paceline_step{run="a"} 5' in lines
    assert 'paceline_steps{run="a"} 9' in lines
    assert 'paceline_last_event_age_seconds{run="a"} 2.5' in lines
    assert 'paceline_events_read_ratio{run="a"} 0.75' in lines
    assert 'paceline_train_loss{run="a"} 0.25' in lines
    assert 'paceline_input_wait_s{run="a",process="3"} 0.5' in lines
    assert sum("paceline_state{" in line for line in lines) == len(get_args(State))


def test_an_at_sign_in_a_name_is_no_process(tmp_path):
    """`evaluate/recall@5` is a metric of a task; `input/wait_s@1` is what process 1 tells."""
    live = LiveRun(tmp_path / "a", processes=2)
    live.append({"kind": "step", "step": 1, "time_s": 1.0, "values": {"evaluate/recall@5": 0.5, "input/wait_s@7": 1}})
    live.append({"kind": "step", "step": 1, "time_s": 1.0, "values": {"input/wait_s": 0.25}}, process=1)
    library = Library(tmp_path)
    library.read_all()
    lines = page(detail(library.run("a"))["metrics"]).splitlines()
    assert 'paceline_evaluate_recall_5{run="a",key="evaluate/recall@5"} 0.5' in lines
    assert 'paceline_input_wait_s_7{run="a",key="input/wait_s@7"} 1' in lines
    assert 'paceline_input_wait_s{run="a",process="1"} 0.25' in lines


def test_numbers_that_are_none_have_the_names_that_prometheus_knows():
    """NaN, +Inf, -Inf; what is missing is left out; a clock ahead of ours gives no negative age."""
    text = page(
        [metric("train/a", "nan"), metric("train/b", "inf"), metric("train/c", "-inf"), metric("train/d", None)]
    )
    assert 'paceline_train_a{run="a"} NaN' in text
    assert 'paceline_train_b{run="a"} +Inf' in text
    assert 'paceline_train_c{run="a"} -Inf' in text
    assert "train_d" not in text
    assert 'paceline_last_event_age_seconds{run="a"} 0.0' in page(updated_s=101.0)
    assert "age_seconds" not in page(updated_s=None)
    assert "read_ratio" not in page(read={"bytes": 0, "of_bytes": 0})


def test_no_name_breaks_out_of_its_label():
    """Quotes, backslashes and line breaks are escaped; a key that is no legal name keeps its spelling in a label."""
    evil = 'x"} 1\nfake_metric{run="\\'
    text = page([metric(evil, 1, description="two\nlines \\"), metric("train/été", 2)], id=evil)
    assert all(_LINE.fullmatch(line) for line in text.splitlines())
    assert not any(line.startswith("fake_metric") for line in text.splitlines())
    assert 'key="x\\"} 1\\nfake_metric{run=\\"\\\\"' in text
    assert "paceline_train__t_{run=" in text and 'key="train/été"' in text


def test_samples_of_one_metric_stand_together_under_one_head():
    """As the format demands, whatever the order of runs and keys."""
    known = {"state": "running", "step": 1, "steps": None, "updated_s": 1.0, "read": {"bytes": 1, "of_bytes": 1}}
    runs = [({"id": name, **known}, [metric("train/loss", 1)]) for name in ("a", "b")]
    lines = render(runs, now_s=2.0).splitlines()
    assert lines.count("# TYPE paceline_train_loss gauge") == 1
    place = lines.index("# TYPE paceline_train_loss gauge")
    assert lines[place + 1 : place + 3] == ['paceline_train_loss{run="a"} 1', 'paceline_train_loss{run="b"} 1']
