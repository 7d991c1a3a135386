"""The second half of `paceline doctor`: here, and in processes of their own where JAX would end this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from paceline.cli import doctor, examining
from paceline.cli.asked import asked_of
from paceline.doctor.environment.asked import Asked
from paceline.doctor.finding import Finding
from tests.doctor.environment.machines import BARE_ORDER

SCRIPT = "import os\nimport jax\njax.devices()\nos.environ['XLA_FLAGS'] = '--xla_cpu_enable_fast_math=true'\n"


def alone(*arguments, folder, **environment):
    """The doctor in a process of its own."""
    command = [sys.executable, "-m", "paceline.cli.main", "doctor", *arguments]
    return subprocess.run(
        command, env=os.environ | environment, cwd=folder, capture_output=True, text=True, timeout=120
    )


def order(findings) -> list[str]:
    return list(dict.fromkeys(finding["check"] for finding in findings))


@pytest.fixture
def report(paceline, tmp_path):
    """`report(*arguments)` runs the doctor here and returns what it ran as, and its JSON."""

    def run(*arguments):
        ran = paceline("doctor", *arguments, "--json", "out.json")
        return ran, json.loads((tmp_path / "out.json").read_text())

    return run


def test_without_a_target_the_environment_is_examined_alone(report):
    """Every check in order, none of a run; exit code 0, with sums on the eight devices that are here."""
    ran, content = report()
    assert (ran.code, ran.err, content["ok"]) == (0, "", True)
    assert order(content["findings"]) == BARE_ORDER
    assert "give exact sums on 8 devices" in ran.out


def test_devices_asked_for_without_a_target_are_those_examined(report):
    """Two of eight; nine are an error of the environment, exit code 1."""
    ran, _ = report("--devices", "2")
    assert "devices: 2 of 8 devices" in ran.out and "exact sums on 2 devices" in ran.out
    ran, content = report("--devices", "9", "--no-measure")
    assert (ran.code, content["ok"]) == (1, False) and "9 devices asked for, 8 cpu devices visible" in ran.out


def test_the_input_of_a_recipe_is_measured_against_its_step(report, monkeypatch):
    """Shortened; what is slower is this machine's matter."""
    whole = examining.rate_findings
    monkeypatch.setattr(examining, "rate_findings", lambda subject: whole(subject, input_s=0.2, steps_s=0.2))
    ran, content = report("linear", "--devices", "2")
    assert ran.code == 0 and order(content["findings"])[-3:] == ["collectives", "input", "cache"]
    assert "rows/s against" in ran.out


def test_what_is_not_measured_is_listed_with_the_reason(report):
    """--no-measure; and a run that has an error is not run for its rates."""
    ran, _ = report("linear", "--devices", "2", "--no-measure")
    assert ran.out.count("not run: --no-measure") == 2
    ran, _ = report("linear", "--devices", "4", "--batch", "18")
    assert ran.code == 1 and "warning  input: not run: no step can be made of this run" in ran.out


def test_a_mistyped_flag_is_found_before_it_ends_the_doctor(tmp_path):
    """Case jax#13148, in a process that XLA would have ended; the source of a file is read all the same (jax#6887)."""
    (tmp_path / "old.py").write_text(SCRIPT, encoding="utf-8")
    ran = alone("old.py", "--json", "out.json", folder=tmp_path, XLA_FLAGS="--xla_gpu_autotune_levl=2",
                JAX_COMPILATION_CACHE_DIR=str(tmp_path / "programs"))  # fmt: skip
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "did you mean --xla_gpu_autotune_level=2?" in ran.stdout
    assert "load: not run: XLA would end this process" in ran.stdout
    assert "old.py:4: XLA_FLAGS is set after jax.devices in line 3" in ran.stdout
    assert f"compilation cache {tmp_path / 'programs'}: not there yet" in ran.stdout, "as JAX would use it"
    content = json.loads((tmp_path / "out.json").read_text())
    assert order(content["findings"]) == ["load", "source", *BARE_ORDER[:-1], "input", "cache"]


def test_a_jax_that_cannot_be_imported_is_a_finding(tmp_path):
    """A truth value that is none ends every import of jax; the doctor still says it, and all that needs no jax."""
    ran = alone(folder=tmp_path, JAX_ENABLE_X64="maybe")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "error    variables: JAX_ENABLE_X64=maybe is why jax cannot be imported: ValueError" in ran.stdout
    assert "fix: set it to true or false, or unset JAX_ENABLE_X64" in ran.stdout and "pip install" not in ran.stdout
    assert "ok       limits" in ran.stdout or "warning  limits" in ran.stdout


def test_a_platform_that_is_not_there_is_a_finding(tmp_path):
    """JAX raises at the first use of a device: no traceback, the variable named with the nearest platform."""
    ran = alone("linear", folder=tmp_path, JAX_PLATFORMS="cudda")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "JAX cannot use a device: Unable to initialize backend 'cudda'" in ran.stdout
    assert "did you mean cuda?" in ran.stdout and "load: not run: JAX cannot use a device" in ran.stdout


def test_help_says_that_no_target_is_needed(paceline, capsys):
    with pytest.raises(SystemExit):
        paceline("doctor", "--help")
    assert "Without a recipe or file" in capsys.readouterr().out


def test_what_is_asked_is_read_from_flags_and_the_configuration_file(tmp_path):
    """Flags come first; what is no number is the parser's to refuse."""
    (tmp_path / "c.toml").write_text('devices = 4\ncompilation_cache = "x"\n', encoding="utf-8")
    config = ["--config", str(tmp_path / "c.toml")]
    assert asked_of(["linear", *config]) == Asked(devices=4, compilation_cache="x")
    assert asked_of(["--devices=2", *config, "--num-processes", "3"]).devices == 2
    assert asked_of(["--devices", "two", "--coordinator", "a:1"]) == Asked(coordinator="a:1")


def test_a_first_use_of_a_device_that_hangs_ends_the_doctor_all_the_same(paceline, monkeypatch):
    """All that needs no device is said, nothing is measured, and the process ends without waiting for the thread."""
    registered, hangs = [], Finding("devices", "error", "JAX hangs at its first use of a device", "look at the driver")
    monkeypatch.setattr(doctor.atexit, "register", lambda *call: registered.append(call))
    monkeypatch.setattr(examining, "start_devices", lambda: hangs)
    monkeypatch.setattr(examining, "start_hangs", lambda: True)
    ran = paceline("doctor")
    assert ran.code == 1 and "error    devices: JAX hangs" in ran.out and "limits" in ran.out
    assert "collectives: not run: JAX cannot use a device" in ran.out
    assert registered == [(doctor._end, 1)]


def test_a_check_that_hangs_does_not_keep_the_process(paceline, monkeypatch):
    """An end without waiting for its thread is registered, with the exit code of the report."""
    registered = []
    monkeypatch.setattr(doctor.atexit, "register", lambda *call: registered.append(call))
    whole = examining.examine
    monkeypatch.setattr(examining, "examine", lambda arguments, first: (whole(arguments, first)[0], True))
    assert paceline("doctor", "--no-measure").code == 0
    assert registered == [(doctor._end, 0)]
