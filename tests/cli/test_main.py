"""The program around the commands: help, the list of commands, exit codes, the words of an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from paceline.base.errors import NonFiniteError
from paceline.cli import main as program
from paceline.doctor.finding import Finding


def test_help_lists_the_commands_and_shows_examples(paceline):
    """--help, -h and help alike, exit code 0; no argument at all shows the same and is a mistake."""
    shown = paceline("--help")
    assert shown.code == 0 and shown.err == ""
    for command, summary in program.COMMANDS.items():
        assert f"  {command}" in shown.out and summary in shown.out
    assert "paceline train image" in shown.out
    assert paceline("-h") == paceline("help") == shown
    assert paceline() == shown._replace(code=2)


def test_the_version_is_that_of_the_package(paceline, monkeypatch):
    """`paceline 1.2.3`, as the installed package says."""
    monkeypatch.setattr(program.importlib.metadata, "version", lambda name: {"paceline": "1.2.3"}[name])
    assert paceline("--version") == (0, "paceline 1.2.3\n", "")


def test_a_misspelled_command_is_named_with_the_nearest(refused):
    """`trian`: perhaps 'train'."""
    told = refused("trian", "linear")
    assert "'trian' is no command, perhaps 'train'" in told


def test_help_of_train_lists_the_recipes(paceline, capsys):
    """With their summaries; exit code 0."""
    with pytest.raises(SystemExit) as ended:
        paceline("train", "--help")
    shown = capsys.readouterr()
    assert not ended.value.code and shown.err == ""
    for name in ("linear", "image"):
        assert f"  {name}" in shown.out


def test_help_of_a_recipe_lists_its_options_and_those_of_a_run(paceline, capsys):
    """--learning-rate is the recipe's, --batch the run's; each with its sentence."""
    with pytest.raises(SystemExit) as ended:
        paceline("train", "linear", "--help")
    shown = capsys.readouterr().out
    assert not ended.value.code
    for words in ("--learning-rate", "--batch", "--scheme", "{global_view,per_device,pmap}", "shared by all devices"):
        assert words in shown


@pytest.mark.parametrize("first", [(), ("--batch", "4")])
def test_train_must_be_told_what(refused, first):
    """No recipe, or options in its place: both shipped recipes are named."""
    told = refused("train", *first)
    assert "linear, image" in told


def test_a_run_that_failed_has_exit_code_1(paceline, monkeypatch):
    """A loss that is not finite is no mistake of the command line."""

    def fail(arguments):
        raise NonFiniteError(what="step 3", why="because", fix="lower it")

    monkeypatch.setattr("paceline.cli.train.run", fail)
    assert paceline("train", "linear") == (1, "", "error: step 3\n  why: because\n  fix: lower it\n")


WRONG = "--xla_force_host_platform_device_cout=4"
RIGHT = "--xla_force_host_platform_device_count=4"


@pytest.fixture
def wrong_flags(monkeypatch):
    """A flag that XLA does not know, and what the trial says of it, which takes seconds."""
    finding = Finding("flags", "error", f"XLA_FLAGS: {WRONG} is no flag of this jaxlib", f"did you mean {RIGHT}?")
    monkeypatch.setenv("XLA_FLAGS", WRONG)
    monkeypatch.setattr("paceline.doctor.environment.flags.flag_findings", lambda system: [finding])


@pytest.mark.parametrize("command", ["train", "scale", "tune", "verify", "plan", "export"])
def test_a_mistyped_xla_flag_is_refused_before_xla_ends_the_command(
    refused, wrong_flags, monkeypatch, tmp_path, command
):
    """What, why and fix in place of XLA's line, and nothing of the command has run; --json has the error."""
    monkeypatch.setattr(f"paceline.cli.{command}.run", lambda arguments: pytest.fail("it ran"))
    told = refused(command, "linear", "--json", "out.json")
    assert f"{WRONG} is no flag of this jaxlib" in told and f"fix: did you mean {RIGHT}?" in told
    assert json.loads((tmp_path / "out.json").read_text())["error"]["kind"] == "FlagsError"


def test_launch_refuses_the_flags_of_its_processes_but_writes_files_for_other_machines(
    refused, paceline, wrong_flags, monkeypatch, tmp_path
):
    """Its --json keeps its form."""
    monkeypatch.setattr("paceline.cli.launch.run", lambda arguments: 0)
    own = ("--json", "out.json", "--", "paceline", "train", "linear", "--json", "other.json")
    assert f"did you mean {RIGHT}?" in refused("launch", "-n", "2", *own)
    content = json.loads((tmp_path / "out.json").read_text())
    assert (content["exit_code"], content["attempts"], (tmp_path / "other.json").exists()) == (2, [], False)
    assert paceline("launch", "-n", "2", "--write", "slurm", "a.sh", "--", "paceline", "train", "linear").code == 0


def test_a_mistyped_xla_flag_ends_a_real_run_in_words(tmp_path):
    """In a process that XLA would have ended by a signal, before jax is imported."""
    command = [sys.executable, "-m", "paceline.cli.main", "train", "linear", "--steps", "1"]
    environment = os.environ | {"XLA_FLAGS": WRONG}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and ran.stderr.startswith(f"error: XLA_FLAGS: {WRONG} is no flag")
    assert f"fix: did you mean {RIGHT}?" in ran.stderr


def test_a_value_for_which_jax_cannot_be_imported_is_refused_in_words(tmp_path):
    """In a process of its own: what, why and fix, and no traceback."""
    command = [sys.executable, "-m", "paceline.cli.main", "train", "linear"]
    environment = os.environ | {"JAX_ENABLE_X64": "maybe"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and ran.stderr.startswith("error: JAX_ENABLE_X64=maybe is why jax cannot be imported")
    assert ran.stderr.endswith("fix: set it to true or false, or unset JAX_ENABLE_X64\n")


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("train", "--help"), ("doctor",), ("watch", "runs"), ("compare", "a"), ("log", "a")],
)
def test_what_uses_no_device_tries_no_flags(paceline, monkeypatch, arguments):
    """Help is shown with any flags; the doctor has a finding of its own."""
    monkeypatch.setenv("XLA_FLAGS", WRONG)
    monkeypatch.setattr(program, "_check_flags", lambda *_: pytest.fail("tried"))
    for name in ("train", "doctor", "watch", "compare", "log"):
        monkeypatch.setattr(f"paceline.cli.{name}.run", lambda arguments: 0)
    assert paceline(*arguments).code == 0


def test_ctrl_c_anywhere_has_exit_code_130(paceline, monkeypatch):
    """While devices are set up, say: one word, no traceback."""

    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.cli.train.run", interrupt)
    assert paceline("train", "linear") == (130, "", "interrupted\n")


@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_nobody_reads_ends_quietly(buffered):
    """`paceline --help` with its reader gone: 141, nothing on standard error, also of what Python keeps in a buffer."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, *([] if buffered else ["-u"]), "-m", "paceline.cli.main", "--help"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ran = subprocess.run(command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full, a file that is always full")
@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_cannot_be_written_is_an_error_in_words(buffered):
    """`paceline --help > /dev/full`, also of what Python keeps in a buffer."""
    command = [sys.executable, *([] if buffered else ["-u"]), "-m", "paceline.cli.main", "--help"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        ran = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    first, why, fix = ran.stderr.splitlines()
    assert ran.returncode == 2 and first == "error: standard output cannot be written: No space left on device"
    assert why.startswith("  why: ") and fix.startswith("  fix: ")


def test_an_error_of_the_system_elsewhere_is_not_taken_for_one_of_the_output(paceline, monkeypatch):
    def fail(arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paceline.cli.train.run", fail)
    with pytest.raises(OSError, match="No space"):
        paceline("train", "linear")


def test_output_that_was_closed_from_the_start_is_no_error():
    """`paceline --help >&-`: there is nothing to write to, as was asked."""
    command = ["sh", "-c", 'exec "$0" -m paceline.cli.main --help >&-', sys.executable]
    ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_bug_of_ours_is_not_dressed_as_a_users_mistake(paceline, monkeypatch):
    """An AssertionError goes through."""

    def fail(arguments):
        raise AssertionError("ours")

    monkeypatch.setattr("paceline.cli.train.run", fail)
    with pytest.raises(AssertionError, match="ours"):
        paceline("train", "linear")
