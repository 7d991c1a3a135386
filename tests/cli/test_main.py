"""The program around the commands: help, the list of commands, exit codes, the words of an error."""

from __future__ import annotations

import pytest

from paceline.base.errors import NonFiniteError
from paceline.cli import main as program


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


def test_ctrl_c_anywhere_has_exit_code_130(paceline, monkeypatch):
    """While devices are set up, say: one word, no traceback."""

    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.cli.train.run", interrupt)
    assert paceline("train", "linear") == (130, "", "interrupted\n")


def test_a_bug_of_ours_is_not_dressed_as_a_users_mistake(paceline, monkeypatch):
    """An AssertionError goes through."""

    def fail(arguments):
        raise AssertionError("ours")

    monkeypatch.setattr("paceline.cli.train.run", fail)
    with pytest.raises(AssertionError, match="ours"):
        paceline("train", "linear")
