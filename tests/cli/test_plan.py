"""`paceline plan`: what it prints and writes, its exit codes, and what it refuses."""

from __future__ import annotations

import json

import pytest

from paceline.base.errors import BatchSizeError, DeviceError, OptionError, RecipeError
from paceline.cli import plan as command
from paceline.insight.network.curves import Curve, NetworkCurves

LINEAR = ["linear", "--on", "4xA100", "--scheme", "per_device", "--no-cache"]


@pytest.fixture(autouse=True)
def without_plugin(monkeypatch):
    """The program for CPUs stands in here, whatever is installed."""
    monkeypatch.setattr("paceline.insight.plan.place.has_cuda_compiler", lambda: False)


def test_a_plan_is_printed_and_written(capsys, tmp_path):
    """Exit code 0 where it fits; the file holds plan, options and comparison."""
    file = tmp_path / "plan.json"
    curves = NetworkCurves((Curve("all-reduce", 4, 1, (1e3,), (1e-3,)),), "NVIDIA A100-SXM4-80GB", "nccl")
    curves.save(tmp_path / "network.json")
    given = ["--rate", "50000", "--curves", str(tmp_path / "network.json")]
    assert command.run([*LINEAR, *given, "--compare", "accumulation", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "measured and used: all-reduce over 4 devices of 1 node" in printed
    assert "S_1 of the other ways: the measured rate times" in printed
    assert printed.startswith("plan for 4 x A100 SXM 80 GB: batch 256 = 4 x 64 rows")
    assert "stands in" in printed
    document = json.loads(file.read_text())
    assert document["plan"]["parallel"]["scheme"] == "per_device"
    assert document["config"]["options"]["on"] == "4xA100"
    assert [entry["plan"]["single_is_measured"] for entry in document["compare"]] == [True, False, False]
    assert document["plan"]["terms"]["exposed_s"] > 1e-3
    assert [entry["change"] for entry in document["compare"]] == ["", "--accumulation 2", "--accumulation 4"]


def test_the_published_table_needs_no_task(capsys, tmp_path):
    file = tmp_path / "table.json"
    assert command.run(["--published", "--json", str(file)]) == 0
    assert "horovod" in capsys.readouterr().out
    assert json.loads(file.read_text())


@pytest.mark.parametrize(
    ("arguments", "error", "fix"),
    [
        (["linear"], OptionError, "use --on 8xH100"),
        (["linear", "--on", "8xH900"], DeviceError, "perhaps 'H"),
        (["linear", "--on", "0xH100"], DeviceError, "use 1 or more"),
        (["linear", "--on", "8xH100", "--nodes", "0"], DeviceError, "use 1 or more"),
        (["linear", "--on", "8xH100", "--batch", "12"], BatchSizeError, "use --batch 16 or 8"),
        (["linear", "--on", "2xRTX4090", "--nodes", "2"], DeviceError, "name it with --network"),
        (["linear", "--on", "8xH100", "--compare", "sceme"], OptionError, "scheme,placement"),
        (["linear", "--on", "8xH100", "--rate", "-1"], OptionError, "leave --rate out"),
        (["linear", "--on", "8xH100", "--curves", "nowhere.json"], OptionError, "scale TASK --network --json FILE"),
        ([], RecipeError, "paceline plan NAME"),
        (["--published", "--on", "8xH100"], OptionError, "leave it out"),
    ],
)
def test_a_mistake_is_named_with_its_fix(arguments, error, fix):
    with pytest.raises(error) as caught:
        command.run(arguments)
    assert fix in caught.value.fix
