"""Runs and results are told apart; what is neither is refused with what, why and fix."""

from __future__ import annotations

import json
import os

import pytest

from paceline.base.errors import PacelineError, RunFolderError
from paceline.dashboard.compare.result_file import SubjectError
from paceline.dashboard.compare.subjects import followed_subject, load_subject
from paceline.dashboard.follow.library import Library
from tests.dashboard.compare.made_results import plan_document, scale_document, verify_document, write
from tests.dashboard.made_runs import LiveRun, make_run


def refusal(path, kind: type[PacelineError] = SubjectError) -> PacelineError:
    with pytest.raises(kind) as caught:
        load_subject(path)
    assert caught.value.what and caught.value.why and caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    ("kind", "document"),
    [("scale", scale_document()), ("plan", plan_document()), ("verify", verify_document())],
)
def test_a_result_is_known_by_its_keys_not_by_its_name(tmp_path, kind, document):
    subject = load_subject(write(tmp_path / "anything.json", document))
    assert (subject.kind, subject.task) == (kind, "image")


def test_a_run_is_its_folder_or_its_run_json(tmp_path):
    folder = make_run(tmp_path / "a", steps=30)
    for path in (folder, folder / "run.json"):
        assert load_subject(path).kind == "run"


def test_a_name_that_is_not_there_gets_the_nearest_one(tmp_path):
    make_run(tmp_path / "warmup", steps=3)
    assert "perhaps" in refusal(tmp_path / "warmpu").what
    assert "warmup" in refusal(tmp_path / "warmpu").what


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_name_that_is_there_but_holds_nothing_to_read_is_no_hint_for_itself(tmp_path, kind):
    """A pipe, and a link that leads nowhere."""
    make_run(tmp_path / "ok", steps=3)
    path = tmp_path / "fifo.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "nothing")
    error = refusal(path)
    assert error.what == f"{path} is no folder and no file"
    assert "pipe" in error.fix and "link" in error.fix


def test_a_folder_without_a_run_names_one_inside_it(tmp_path):
    make_run(tmp_path / "runs" / "a", steps=3)
    assert str(tmp_path / "runs" / "a") in refusal(tmp_path / "runs", RunFolderError).fix


def test_a_damaged_run_json_is_an_error(tmp_path):
    folder = make_run(tmp_path / "a", steps=3)
    (folder / "run.json").write_text("{")
    assert "run.json" in refusal(folder, RunFolderError).what


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot read"),
        ("[1]", "not an object"),
        ("\xff", "cannot read"),
        ("{}", "no result that can be compared"),
        ('{"tuned": 1}', "tuned"),
        ('{"error": {"what": "no GPU"}}', "no GPU"),
        pytest.param(f'{{"plan": {"1" * 5000}}}', "a whole number of more than 4,300 digits", id="digits"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path, text, words):
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    assert words in refusal(path).what


def test_the_report_of_a_run_leads_to_its_folder(tmp_path):
    path = write(tmp_path / "x.json", {"report": {"run_folder": "runs/a"}, "outcome": {}, "config": {}})
    assert "runs/a" in refusal(path).fix


@pytest.mark.parametrize(
    ("document", "lost"),
    [
        (scale_document(scalings=[{"mode": "weak", "points": [{"devices": 1}]}]), "batch"),
        (scale_document(scalings=[]), "without a point"),
        (scale_document(scalings="many"), "scalings"),
        (plan_document(terms=None), "terms"),
        (plan_document(memory={}), "peak_bytes"),
        ({**verify_document(), "results": [{"case": 1}]}, "results"),
    ],
)
def test_a_result_with_a_part_missing_is_refused_with_the_place(tmp_path, document, lost):
    error = refusal(write(tmp_path / "x.json", document))
    assert lost in error.what
    assert "--json" in error.fix


def test_numbers_that_json_lacks_are_read(tmp_path):
    document = json.loads(json.dumps(plan_document()).replace("1980.0", '"nan"'))
    subject = load_subject(write(tmp_path / "plan.json", document))
    assert str(subject.case_for(2).numbers["samples_per_s"].value) == "nan"


def test_a_followed_run_is_compared_as_far_as_it_was_read(tmp_path):
    """The same numbers as from the folder, and the new ones once the library has read them."""
    live = LiveRun(tmp_path / "a")
    now_s = [0.0]
    library = Library(tmp_path, monotonic=lambda: now_s[0])
    for _ in range(30):
        live.step()
    library.read_all()
    numbers = followed_subject(library.run("a")).cases[0].numbers
    assert numbers == load_subject(tmp_path / "a").cases[0].numbers
    live.step(speed__step_s=99.0)
    now_s[0] += 60.0
    library.read_all()
    assert followed_subject(library.run("a")).cases[0].numbers["samples_per_s"] != numbers["samples_per_s"]
    library.close()
