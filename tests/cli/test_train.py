"""`paceline train`: what it prints and writes, and how it refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import re

import jax
import pytest

from paceline.cli.train import RunOptions
from paceline.engine.parallel import Parallel
from paceline.telemetry.reader import read_run
from paceline.train.report import Report

SHORT = ("train", "linear", "--devices", "4", "--steps", "3")
QUIET = (*SHORT, "--progress", "none")


def test_a_run_prints_its_report_and_leaves_its_folder(paceline, tmp_path):
    """768 rows in 3 steps of 256; the folder runs/linear-TIME holds 3 files and what was asked for."""
    ran = paceline(*QUIET)
    assert (ran.code, ran.err) == (0, "")
    for words in ("linear, scheme global_view on 4 devices", "256 rows = 4 x 64", "768 seen, 0 dropped", "outcome"):
        assert words in ran.out
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"linear-\d{8}-\d{6}", folder.name)
    assert f"run folder  runs/{folder.name}" in ran.out
    record = read_run(folder)
    assert record.report["steps"] == 3
    assert record.run["config"]["target"] == "linear"
    assert record.run["config"]["options"]["steps"] == 3
    assert record.run["config"]["recipe"] == {"points": 4096, "noise": 0.1, "learning_rate": 0.1}


def test_json_holds_the_report_the_outcome_and_the_config(paceline, tmp_path):
    """One object with three keys; the report has the fields of `Report`, the outcome w and b."""
    assert paceline(*QUIET, "--json", "out.json", "--seed", "5").code == 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert content.keys() == {"report", "outcome", "config"}
    assert content["report"].keys() == {field.name for field in dataclasses.fields(Report)}
    assert content["outcome"].keys() == {"w", "b"}
    assert content["config"]["options"]["seed"] == 5
    assert content["report"]["rows_seen"] == 768


def test_a_whole_run_finds_the_line(paceline, tmp_path):
    """The defaults: w within 0.02 of 3, b within 0.02 of 1; 10 epochs of 16 steps."""
    assert paceline("train", "linear", "--devices", "2", "--progress", "none", "--json", "out.json").code == 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert abs(content["outcome"]["w"] - 3) < 0.02 and abs(content["outcome"]["b"] - 1) < 0.02
    assert (content["report"]["steps"], content["report"]["epochs"]) == (160, 10)


def test_options_reach_the_engine(paceline, tmp_path):
    """Every field of `Parallel` but `donate` is a flag; those given are in run.json."""
    flags = ("--scheme", "per_device", "--accumulation", "2", "--precision", "bfloat16", "--reduce-dtype", "bfloat16")
    flags += ("--clip-norm", "1.5", "--nonfinite", "skip", "--dropout", "shared", "--ema-decay", "0.9")
    flags += ("--batch-norm", "local", "--no-shuffle", "--run", "run")
    ran = paceline(*QUIET, *flags)
    assert ran.code == 0, ran.err
    run = read_run(tmp_path / "run").run
    expected = Parallel("per_device", 2, "bfloat16", "bfloat16", 1.5, "skip", "shared", "local", 0.9)
    assert run["parallel"] == dataclasses.asdict(expected)
    assert run["data"]["shuffle"] is False
    assert "in 2 microbatches" in ran.out


def test_audits_are_asked_for_by_flag(paceline, tmp_path):
    """Every 2 of 3 steps: at 0, 2 and 3; what was asked for and what was found are recorded."""
    ran = paceline(*QUIET, "--audit-every", "2", "--on-divergence", "repair", "--run", "run")
    assert ran.code == 0, ran.err
    record = read_run(tmp_path / "run")
    assert record.run["audit"] == {"every": 2, "on_divergence": "repair"}
    assert record.report["audit"]["audits"] == 3
    assert re.search(r"replicas    3 audits of \d+ leaves on 4 devices: equal, bit for bit", ran.out)


def test_every_field_of_parallel_has_a_flag_with_its_default():
    """A new field of the engine cannot be forgotten here."""
    assert RunOptions().parallel() == Parallel()


def test_plain_progress_has_no_control_characters(paceline):
    """Not a terminal: header, compile time and steps as lines on standard error; the report on standard output."""
    ran = paceline(*SHORT)
    assert ran.code == 0
    assert not re.search(r"[^\n -~µ]", ran.out + ran.err)
    lines = ran.err.splitlines()
    assert lines[0] == "linear: 2 parameters, float32, scheme global_view on 4 x cpu"
    assert lines[1] == "batch 256 = 4 x 64 rows; 3 steps, 16 an epoch"
    assert lines[2].startswith("step compiled in")
    assert lines[-1].startswith("step 3/3  loss ")
    assert "step 3/3" not in ran.out


def test_rows_that_are_dropped_are_announced(paceline):
    """4096 rows in batches of 1000 leave 96: in the header, and in the report of an epoch."""
    ran = paceline("train", "linear", "--devices", "4", "--batch", "1000", "--epochs", "1")
    assert "with 96 rows dropped" in ran.err
    assert "4,000 seen, 96 dropped" in ran.out


REFUSED = {
    "an unknown recipe": (("train", "linaer"), "'linaer' is neither a recipe nor a Python file, perhaps 'linear'"),
    "a file that is not there": (("train", "my_task.py"), "'my_task.py' is neither a recipe nor a Python file"),
    "a misspelled option": ((*QUIET, "--bacth", "4"), "unknown option --bacth, perhaps 'batch'"),
    "a misspelled option of the recipe": ((*QUIET, "--nosie", "1"), "unknown option --nosie, perhaps 'noise'"),
    "an option of another recipe": ((*QUIET, "--widths", "4"), "unknown option --widths"),
    "a word for a number": ((*QUIET, "--batch", "many"), "--batch"),
    "an option without its value": ((*QUIET, "--batch"), "--batch"),
    "a stray word": ((*QUIET, "extra"), "extra"),
    "an unknown choice": ((*QUIET, "--scheme", "pmpa"), "pmpa"),
    "steps and epochs": ((*QUIET, "--epochs", "2"), "--steps 3 and --epochs 2"),
    "no step": (("train", "linear", "--steps", "0"), "--steps 0"),
    "a negative batch": ((*QUIET, "--batch", "-4"), "--batch -4"),
    "no evaluation": ((*QUIET, "--evaluate-every", "0"), "--evaluate-every 0"),
    "a negative interval of audits": ((*QUIET, "--audit-every", "-1"), "audit_every=-1"),
    "an unknown answer to a difference": ((*QUIET, "--on-divergence", "panic"), "panic"),
    "a batch that does not split": ((*QUIET, "--batch", "102"), "102 rows, which do not split over 4 devices"),
    "a batch above the rows": ((*QUIET, "--batch", "8192"), "more than the 4,096 rows"),
    "rows left over": ((*QUIET, "--batch", "1000", "--remainder", "refuse"), "leave 96 over"),
    "too many devices": (("train", "linear", "--devices", "9"), "9 devices asked for, 8 cpu devices visible"),
    "no device": (("train", "linear", "--devices", "0"), "0 devices asked for"),
    "simulated devices too late": (("train", "linear", "--simulate", "9"), "simulate_devices(9) came too late"),
    "no simulated device": (("train", "linear", "--simulate", "-1"), "-1 simulated devices"),
    "options that do not go together": ((*QUIET, "--dropout", "shared"), "dropout='shared' with scheme='global_view'"),
    "a negative seed": ((*QUIET, "--seed", "-1"), "seed"),
    "no room to prefetch": ((*QUIET, "--prefetch", "0"), "depth of 0"),
    "an average out of range": ((*QUIET, "--ema-decay", "1.5"), "ema_decay=1.5"),
    "a report in no folder": ((*QUIET, "--json", "nowhere/out.json"), "--json nowhere/out.json"),
    "a report in place of a folder": ((*QUIET, "--json", "."), "--json .: the file cannot be written"),
    "a compilation cache in no folder": (
        (*QUIET, "--compilation-cache", "/proc/nowhere/cache"),
        "--compilation-cache /proc/nowhere/cache",
    ),
    "a run in no folder": ((*QUIET, "--run", "/proc/nowhere/run"), "cannot be written"),
}


@pytest.mark.parametrize(("arguments", "what"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_refused(refused, tmp_path, arguments, what):
    """Exit code 2; what, why and fix on standard error without a traceback; nothing trained, nothing written."""
    assert what in refused(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ((*QUIET, "--batch", "102"), ("--batch", "104")),
        ((*QUIET, "--batch", "102"), ("--batch", "100")),
        ((*QUIET, "--batch", "102"), ("--batch", "102", "--remainder", "pad")),
        (("train", "linear", "--steps", "3", "--devices", "9"), ("--devices", "8")),
        ((*QUIET, "--batch", "8192"), ("--batch", "4096")),
    ],
    ids=lambda value: " ".join(value[-4:]),
)
def test_the_fix_that_an_error_names_works(paceline, arguments, fix):
    """The command with the fix instead of the mistake ends with exit code 0, and the error had named it."""
    told = paceline(*arguments).err
    assert fix[-1] in told.partition("fix:")[2]
    assert paceline(*arguments, *fix).code == 0


def test_a_run_folder_in_use_is_refused_and_left_alone(refused, tmp_path):
    """Its file stays as it was; the fix names a free folder beside it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    told = refused(*QUIET, "--run", "run")
    assert "'run' exists and is not empty" in told and "'run-2'" in told
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_run_folder_that_is_not_ours_is_refused(refused, tmp_path):
    """A folder without write permission."""
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "cannot be written" in refused(*QUIET, "--run", "locked/run")


def test_an_error_is_written_to_json_too(refused, tmp_path):
    """Kind, what, why and fix as on the terminal, so that a script need not read words."""
    told = refused(*QUIET, "--batch", "102", "--json", "out.json")
    error = json.loads((tmp_path / "out.json").read_text())["error"]
    assert error.keys() == {"kind", "what", "why", "fix"}
    assert error["kind"] == "BatchSizeError"
    assert told == f"error: {error['what']}\n  why: {error['why']}\n  fix: {error['fix']}\n"


def test_a_misspelled_option_is_written_to_json_too(refused, tmp_path):
    """Also what the parser refuses."""
    refused(*QUIET, "--scheme", "pmpa", "--json", "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["error"]["kind"] == "OptionError"


def test_traceback_shows_where_an_error_was_raised(paceline):
    """Python's traceback above the same words, with the same exit code; without the flag there is none."""
    bare = paceline(*QUIET, "--batch", "102")
    full = paceline(*QUIET, "--batch", "102", "--traceback")
    assert bare.code == full.code == 2
    assert full.err.startswith("Traceback (most recent call last):") and "plan_batches" in full.err
    assert full.err.endswith(bare.err)
    assert "Traceback" not in bare.err


def test_simulated_devices_that_are_there_already_are_fine(paceline):
    """8 are simulated here: --simulate 8 changes nothing, --devices picks among them."""
    assert paceline(*QUIET, "--simulate", "8").code == 0


def test_the_compilation_cache_is_set(paceline, tmp_path, monkeypatch):
    """JAX is told the folder, and to keep programs however quickly they compiled."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    try:
        assert paceline(*QUIET, "--compilation-cache", str(tmp_path / "cache")).code == 0
        assert [getattr(jax.config, name) for name in names] == [str(tmp_path / "cache"), 0.0]
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
