"""`paceline scale`: what it prints and writes, its processes, and what it refuses."""

from __future__ import annotations

import functools
import json
import os

import jax
import pytest

from paceline.base.figures import FigureError
from paceline.cli import scale as command
from paceline.cli.scale import _with_commas_split, read_arguments
from paceline.measure.scale import station
from tests.measure.scale.results import result

pytestmark = pytest.mark.once(reason="what scale measures is tested at both ends in tests/measure; here it is called")

QUICK = ("--repeats", "3", "--seconds", "0.5")


@pytest.fixture(autouse=True)
def programs_are_kept(monkeypatch):
    """The processes that measure keep their programs where this one does."""
    folder = jax.config.jax_compilation_cache_dir
    if folder is not None:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
        monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


two_cores = pytest.mark.skipif(
    len(getattr(os, "sched_getaffinity", lambda _: {0})(0)) < 2, reason="two cores, one for each device, are needed"
)


@two_cores
def test_one_and_two_devices_are_measured_in_processes_of_their_own(paceline, tmp_path):
    """Both modes: throughput, efficiency with its interval, terms that add up, Little's law; two processes do it all.
    The JSON holds the options too."""
    ran = paceline("scale", "linear", "--devices", "2", "--batch", "64", "--mode", "both", "--json", "out.json", *QUICK)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("linear: scaling measured on simulated CPU devices, ")
    assert "one device was added: efficiency is measured against it" in ran.out
    assert "one core a device: each number of devices in a process of its own" in ran.out
    assert "weak scaling: 32 rows a device" in ran.out and "strong scaling: 64 rows shared" in ran.out
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["rounds"] == 3
    assert content["config"]["options"]["batch"] == 64 and content["config"]["target"] == "linear"
    weak, strong = content["scalings"]
    assert [(point["devices"], point["batch"]) for point in weak["points"]] == [(1, 32), (2, 64)]
    assert [(point["devices"], point["batch"]) for point in strong["points"]] == [(1, 64), (2, 64)]
    for scaling in (weak, strong):
        one, two = scaling["points"]
        assert one["efficiency"]["value"] == 1
        assert 0 < two["efficiency"]["low"] <= two["efficiency"]["value"] <= two["efficiency"]["high"]
        lost = sum(term["value"] for term in two["waterfall_percent"].values())
        assert lost == pytest.approx(100 - 100 * two["efficiency"]["value"])
        assert set(two["step_s"]) == {"local", "barrier", "step", "feed", "fit"}
        assert two["littles_law"]["rows"] > 0


def test_devices_that_share_a_core_claim_no_efficiency(paceline, monkeypatch):
    """One core: two devices get throughput only."""
    monkeypatch.setattr(command, "usable_cores", lambda: sorted(os.sched_getaffinity(0))[:1])
    ran = paceline("scale", "linear", "--devices", "1,2", "--batch", "64", *QUICK)
    assert (ran.code, ran.err) == (0, "")
    assert "2 devices: no efficiency is claimed, 2 simulated devices share 1 core" in ran.out
    assert "from 100 %" not in ran.out
    assert "simulated CPU devices, 1 core\n" in ran.out
    assert "statistical efficiency" not in ran.out, "nobody asked for it"


def test_accelerators_are_measured_in_this_process(paceline, tmp_path, monkeypatch):
    """As if the devices of this process were some: no other process is started, all stages are measured, collectives
    (of one size here) and a trace too; the predicted number stands beside. Then a mistake that only the data shows."""
    monkeypatch.setattr(command.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(command, "ProcessStation", type("NoProcess", (), {}))
    one_size = functools.partial(station.measure_network, sizes_bytes=(4096,), repeats=3)
    monkeypatch.setattr(station, "measure_network", one_size)
    curve = [{"devices": 2, "samples_per_s": 1234}]
    plan = {
        "machine": "2 x A100 SXM 80 GB",
        "rows_per_device": 32,
        "curve": curve,
        "parallel": {"precision": "bfloat16"},
    }
    (tmp_path / "plan.json").write_text(json.dumps({"plan": plan, "config": {"target": "linear"}}))
    ran = paceline("scale", "linear", "--devices", "1,2", "--batch", "64", "--json", "out.json", "--plan", "plan.json",
                   "--scheme", "per_device", "--noise-scale", "--network", "--profile", "traces", *QUICK)  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    assert "2 devices: from 100 % to " in ran.out and "one core a device" not in ran.out
    assert "1,234 samples/s" in ran.out and "busbw" in ran.out
    assert "predicted for 2 x A100 SXM 80 GB: S_K, E_K" in ran.out
    assert "precision 'bfloat16' there, 'float32' here; the devices there are others than here (cpu)" in ran.out
    assert "2 devices, device 1: compute " in ran.out
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["traces"].keys() == {"1", "2"} and content["network"] is not None
    assert content["noise"]["steps"] == 100, "of a training of its own, whatever was timed"
    assert [point["not_claimed"] for point in content["scalings"][0]["points"]] == [None, None]
    ran = paceline("scale", "linear", "--devices", "1", "--batch", "64", "--points", "32", *QUICK)
    assert ran.code == 2 and "32 rows" in ran.err
    assert "use --batch 32 or less\n" in ran.err, "--remainder is no option of scale"


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        (("--devices", "0,2"), "use --devices 1 or more"),
        (("--devices", "1,8", "--simulate", "4"), "use --devices 1"),
        (("--devices", "1,2", "--batch", "7"), "use --batch 8 or 6"),
        (("--devices", "1,2", "--repeats", "2"), "use --repeats 3 or more"),
        (("--devices", "1,2", "--seconds", "0"), "use --seconds 60"),
        (("--devices", "1,2", "--seconds", "inf"), "use --seconds 60"),
        (("--devices", "1,2", "--seconds", "nan"), "use --seconds 60"),
        (("--devices", "1,2", "--repeats", "9" * 400), "use --repeats 500 or fewer"),
        (("--devices", ","), "use --devices 1,2,4"),
        (("--devices=,",), "use --devices 1,2,4"),
        (("--devices", "two"), "use --devices 1,2,4"),
        (("--bucket-mb", "1e-9", "--scheme", "per_device"), "use a size of one byte"),
        (("--devices", "1,2", "--figure", "a.gif"), "use --figure a.png"),
        (("--devices", "1,2", "--html", "a.txt"), "use --html a.html"),
        (("--devices", "1", "--network"), "use --devices 1,2 or more"),
        (("--devices", "1,2", "--plan", "none.json"), "write it with paceline plan"),
        (("--devices", "1,2", "--reduce-dtype", "bfloat16"), "use scheme='per_device'"),
        (("--devices", "1,x"), "--help shows the type"),
        (("--prefetch", "0"), "use --prefetch 1 or more"),
        (("--devcies", "2"), "correct or remove it"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(refused, monkeypatch, options, fix):
    """No process is started for it."""
    monkeypatch.setattr(command, "ProcessStation", None)
    assert fix in refused("scale", "linear", *options)


def test_a_profile_folder_that_is_a_file_is_refused(refused, tmp_path):
    """Traces lie in a folder."""
    (tmp_path / "taken").write_text("")
    assert "choose a folder" in refused("scale", "linear", "--devices", "1,2", "--profile", "taken")


def test_the_plan_of_another_task_is_refused(refused, tmp_path):
    """Before anything is measured."""
    plan = {"machine": "2 x A100", "rows_per_device": 32, "curve": [{"devices": 2, "samples_per_s": 1234}]}
    (tmp_path / "plan.json").write_text(json.dumps({"plan": plan, "config": {"target": "image"}}))
    assert "paceline plan linear --on" in refused("scale", "linear", "--devices", "1,2", "--plan", "plan.json")


BROKEN = """\
import optax, paceline

class Rows:
    def __len__(self):
        return 256
    def __getitem__(self, row):
        raise ValueError("row is broken")

def task():
    own = paceline.task(lambda p, b: (p["w"] * b["x"]) ** 2, init=lambda rng: {"w": 1.0})
    return paceline.Job(task=own, optimizer=optax.sgd(0.1), data=Rows())
"""


def test_data_that_raise_in_a_process_are_told_with_their_line_and_no_trace(paceline, tmp_path):
    """What and where."""
    (tmp_path / "broken.py").write_text(BROKEN)
    ran = paceline("scale", "broken.py", "--devices", "1", "--batch", "8", *QUICK)
    assert ran.code == 2
    assert "raised ValueError: row is broken" in ran.err and "broken.py:7 in __getitem__" in ran.err
    assert "Traceback" not in ran.err


def test_a_figure_that_fails_costs_neither_the_report_nor_the_json_nor_the_page(paceline, tmp_path, monkeypatch):
    """Exit code 2 in the end, behind all that was found."""

    def broken(made, path):
        raise FigureError(what=f"{path} could not be drawn", why="w", fix="f")

    monkeypatch.setattr(command, "_scale", lambda asked, arguments: result())
    monkeypatch.setattr(command, "check_figure", lambda *arguments, **named: None)
    monkeypatch.setattr(command, "write_figure", broken)
    monkeypatch.setattr(command, "write_page", lambda made, path: (tmp_path / path).write_text("page"))
    ran = paceline("scale", "linear", "--json", "o.json", "--figure", "a.png", "--html", "a.html")
    assert ran.code == 2 and "a.png could not be drawn" in ran.err
    assert "2 devices: from 100 % to 88.9 %" in ran.out
    assert json.loads((tmp_path / "o.json").read_text())["rounds"] == 6
    assert (tmp_path / "a.html").read_text() == "page"


@pytest.mark.parametrize(
    ("name", "entry"), [("a.toml", 'devices = "1,2"'), ("a.toml", "devices = [1, 2]"), ("a.yaml", "devices: 2"),
                        ("a.yaml", "devices: 1,2")],
)  # fmt: skip
def test_devices_in_a_file_are_read_as_a_list_a_text_or_a_number(tmp_path, name, entry):
    """As on the command line."""
    (tmp_path / name).write_text(entry)
    devices = read_arguments(["linear", "--config", str(tmp_path / name)]).options.devices
    assert devices == ((2,) if entry.endswith(": 2") else (1, 2))
    assert read_arguments(["linear", "--config", str(tmp_path / name), "--devices", "1,4"]).options.devices == (1, 4)


def test_an_unknown_task_is_refused_with_what_there_is(refused):
    """The recipes."""
    assert "linear, image" in refused("scale", "liner")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["--devices", "1,2,4", "--batch", "8"], ["--devices", "1", "2", "4", "--batch", "8"]),
        (["--devices=1,2", "--seed", "1"], ["--devices", "1", "2", "--seed", "1"]),
        (["--devices=1,,2"], ["--devices", "1", "2"]),
        (["--devices", ","], ["--devices", ","]),
        (["--devices", "1", "2"], ["--devices", "1", "2"]),
        (["--devices", "4"], ["--devices", "4"]),
        (["--run", "a,b"], ["--run", "a,b"]),
    ],
)
def test_devices_are_read_with_commas_or_spaces(given, read):
    """`--devices 1,2,4`, `--devices=1,2`, `--devices 1 2`; other options keep their commas."""
    assert _with_commas_split(given) == read
