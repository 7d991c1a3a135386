"""`paceline compare`: what it prints and writes, its exit codes, what it refuses and what it then leaves."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from paceline.dashboard.compare import figure as figure_module
from paceline.dashboard.compare import page as page_module
from tests.dashboard.compare.made_results import plan_document, scale_document, verify_document, write
from tests.dashboard.made_runs import LiveRun, make_run


@pytest.fixture
def made(tmp_path):
    """Two runs and three results in the current folder."""
    make_run(tmp_path / "runs" / "a", steps=120)
    make_run(tmp_path / "runs" / "b", steps=120, step_s=0.01)
    for kind, content in (("scale", scale_document()), ("plan", plan_document()), ("verify", verify_document())):
        write(tmp_path / f"{kind}.json", content)
    return tmp_path


def test_runs_and_results_stand_side_by_side(paceline, made):
    ran = paceline("compare", "runs/a", "runs/b", "scale.json", "plan.json", "verify.json")
    assert (ran.code, ran.err) == (0, "")
    for part in (
        f"a: {made}/runs/a",
        f"b: {made}/runs/b",
        "What differs",
        "Predicted against measured",
        "3 of 3 programs compute",
    ):
        assert part in ran.out
    assert "plan.json says 10.0 % more than scale.json" in ran.out


def test_numbers_that_are_not_known_are_named(paceline, made):
    """The first of them where there are many."""
    ran = paceline("compare", "runs/a", "plan.json")
    [line] = [one for one in ran.out.splitlines() if one.endswith(": a plan does not predict it")]
    assert line == (
        "  plan.json: 95 % step latency, waiting for batches, timed steps, training loss at the end, best training "
        "loss of a step, steps made and 1 more: a plan does not predict it"
    )


def test_one_alone_is_a_report(paceline, made):
    ran = paceline("compare", "runs/a")
    assert ran.code == 0
    assert ran.out.startswith("image: 1 run\n")


def test_files_are_written_with_flags_on_either_side(paceline, made):
    ran = paceline("compare", "--png=x.png", "runs/a", "--html", "x.html", "runs/b", "--json", "x.json")
    assert ran.code == 0
    assert ran.out.endswith("page: x.html\npicture: x.png\n")
    assert (made / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (made / "x.html").read_text().startswith("<!doctype html>")
    written = json.loads((made / "x.json").read_text())
    assert [one["label"] for one in written["subjects"]] == ["a", "b"]


def test_a_comparison_is_the_same_from_its_json(paceline, made):
    """Written twice, the same bytes: nothing in it depends on the hour."""
    for name in ("x.json", "y.json"):
        assert paceline("compare", "runs/a", "scale.json", "--json", name).code == 0
    assert (made / "x.json").read_bytes() == (made / "y.json").read_bytes()


def test_losses_that_no_axis_holds_are_said_and_all_is_written(paceline, made):
    """Near the ends of a float, with both signs: what lies between them is no float."""
    live = LiveRun(made / "runs" / "huge")
    for step in range(30):
        live.step(train__loss=1e308 if step % 2 else -1e308)
    ran = paceline("compare", "runs/a", "runs/huge", "--png", "x.png", "--html", "x.html", "--json", "x.json")
    assert (ran.code, ran.err) == (0, "")
    assert (made / "x.png").exists()
    assert "30 values beyond 1e+100, not drawn" in (made / "x.html").read_text()
    assert "rows" in json.loads((made / "x.json").read_text())


def test_a_drawing_that_fails_takes_nothing_else_away(paceline, made, monkeypatch):
    """Not the page, nor the numbers of --json: neither is written after it, or replaced by its error."""
    monkeypatch.setattr(figure_module, "figure", lambda *_: 1 / 0)
    ran = paceline("compare", "runs/a", "--png", "x.png", "--html", "x.html", "--json", "x.json")
    assert ran.code == 2
    assert "x.png could not be drawn: ZeroDivisionError" in ran.err
    assert ran.out.endswith("page: x.html\n")
    assert (made / "x.html").exists() and not (made / "x.png").exists()
    assert "rows" in json.loads((made / "x.json").read_text())


def test_each_drawing_that_fails_is_named(paceline, made, monkeypatch):
    monkeypatch.setattr(figure_module, "figure", lambda *_: 1 / 0)
    monkeypatch.setattr(page_module, "page", lambda *_: 1 / 0)
    ran = paceline("compare", "runs/a", "--png", "x.png", "--html", "x.html")
    assert "x.html could not be drawn" in ran.err and "x.png could not be drawn" in ran.err


def test_nothing_to_compare_is_refused(refused):
    assert "paceline compare runs/a runs/b" in refused("compare")


def test_a_wrong_name_gets_the_nearest_and_nothing_is_written(refused, made):
    before = sorted(made.iterdir())
    error = refused("compare", "runs/a", "runs/bb", "--png", "x.png", "--html", "x.html")
    assert "runs/bb is not there, perhaps 'runs/b'" in error
    assert sorted(made.iterdir()) == before


def test_what_is_no_result_is_refused_and_the_json_has_the_error(refused, made):
    write(made / "other.json", {"tuned": 1})
    error = refused("compare", "runs/a", "other.json", "--json", "x.json")
    assert "other.json is no result that can be compared" in error
    assert json.loads((made / "x.json").read_text())["error"]["kind"] == "SubjectError"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--png", "x.gif"), ".png"), (("--html", "no/x.html"), "cannot be written"), (("--pngg", "x.png"), "png"),
     (("--png",), "png"), (("--png",), "the command would do something other than you meant")],
)  # fmt: skip
def test_options_that_cannot_work_are_refused_before_anything_is_read(refused, made, arguments, words):
    assert words in refused("compare", "runs/gone", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs/a", "--json", "runs/a/run.json"), "lies in the run"),
        (("runs/b", "--json", "runs/a/new.json"), "lies in the run"),
        (("runs/a", "--png", "runs/a/checkpoints/x.png"), "lies in the run"),
        (("runs/a", "--html=runs/a/x.html"), "lies in the run"),
        (("plan.json", "--json", "plan.json"), "would replace plan.json"),
        (("plan.json", "--json", "runs/../plan.json"), "would replace plan.json"),
        (("plan.json", "--json", "link.json"), "would replace plan.json"),
        (("plan.json", "nonsense", "--json=plan.json"), "would replace plan.json"),
        (("plan.json", "--html", "x.html", "--json", "x.html"), "--html names the same file"),
    ],
)
def test_a_file_that_must_stay_is_not_replaced_and_nothing_is_written(refused, made, arguments, words):
    """Not with the comparison, nor with the error."""
    (made / "runs" / "a" / "checkpoints").mkdir(exist_ok=True)
    (made / "link.json").symlink_to("plan.json")
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert words in refused("compare", *arguments)
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


def test_the_command_needs_no_jax(made):
    """From the arguments to the files, in a fresh interpreter."""
    code = (
        "import sys\nfrom paceline.cli.main import main\n"
        "code = main(['compare', 'runs/a', 'scale.json', '--png', 'x.png', '--html', 'x.html'])\n"
        "sys.exit(code or ('jax' in sys.modules) or ('jaxlib' in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=made, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert (made / "x.html").exists()
