"""A TOML or YAML file under the flags: an entry takes effect or is refused."""

from __future__ import annotations

import json

import pytest

from paceline.base.errors import OptionError
from paceline.cli.options import apply_config, read_config
from paceline.cli.run_options import RunOptions
from paceline.telemetry.exporters.exporter import exporter_names
from paceline.telemetry.reader import read_run

QUIET = ("train", "linear", "--devices", "4", "--progress", "none", "--run", "run")

TOML = """\
batch = 128
steps = 2
scheme = "per_device"
clip-norm = 1
learning-rate = 0.05
points = 512
"""
YAML = """\
batch: 128
steps: 2
scheme: per_device
clip_norm: 1
learning_rate: 0.05
points: 512
"""


def asked(tmp_path):
    """What run.json says was asked for: (options of the run, options of the recipe)."""
    config = read_run(tmp_path / "run").run["config"]
    return config["options"], config["recipe"]


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML)])
def test_entries_take_effect(paceline, tmp_path, name, text):
    """Options of the run and of the recipe, with dashes or underscores; an integer where a number is meant."""
    (tmp_path / name).write_text(text)
    ran = paceline(*QUIET, "--config", name)
    assert ran.code == 0, ran.err
    options, recipe = asked(tmp_path)
    names = ("batch", "steps", "scheme", "clip_norm", "config")
    assert [options[key] for key in names] == [128, 2, "per_device", 1.0, name]
    assert recipe == {"points": 512, "noise": 0.1, "learning_rate": 0.05}


@pytest.mark.parametrize("entry", ['"tensorboard"', '"tensorboard,wandb"', '["tensorboard", "wandb"]'])
def test_an_option_that_takes_several_takes_one_string_too(tmp_path, entry):
    """As on the command line; a number is still refused."""
    (tmp_path / "a.toml").write_text(f"log-to = {entry}\n")
    (options,) = apply_config(read_config(str(tmp_path / "a.toml")), "a.toml", defaults=[RunOptions()])
    assert exporter_names(options.log_to) == (("tensorboard", "wandb") if "wandb" in entry else ("tensorboard",))
    with pytest.raises(OptionError, match="log_to"):
        apply_config({"log_to": 3}, "a.toml", defaults=[RunOptions()])


def test_a_flag_comes_before_the_file(paceline, tmp_path):
    """The batch and the rate of the flags, the rest of the file, the order of the arguments whatever."""
    (tmp_path / "a.toml").write_text(TOML)
    assert paceline(*QUIET, "--batch", "64", "--config", "a.toml", "--learning-rate", "0.2").code == 0
    options, recipe = asked(tmp_path)
    assert (options["batch"], options["steps"], recipe["learning_rate"], recipe["points"]) == (64, 2, 0.2, 512)


def test_a_flag_for_steps_comes_before_epochs_in_the_file(paceline, tmp_path):
    """Both say how long: the flag is meant."""
    (tmp_path / "a.toml").write_text("epochs = 7\n")
    ran = paceline(*QUIET, "--config", "a.toml", "--steps", "2")
    assert ran.code == 0, ran.err
    assert read_run(tmp_path / "run").report["steps"] == 2


def test_the_report_file_may_stand_in_the_file(paceline, tmp_path):
    """`json` in the file is written as with --json, after an error too."""
    (tmp_path / "a.toml").write_text('json = "out.json"\nsteps = 2\n')
    assert paceline(*QUIET, "--config", "a.toml").code == 0
    assert json.loads((tmp_path / "out.json").read_text())["report"]["steps"] == 2
    assert paceline(*QUIET, "--config", "a.toml", "--batch", "3").code == 2
    assert json.loads((tmp_path / "out.json").read_text())["error"]["kind"] == "BatchSizeError"


def test_simulated_devices_may_stand_in_the_file(refused, tmp_path):
    """`simulate = 9` comes too late here, so it was read."""
    (tmp_path / "a.toml").write_text("simulate = 9\n")
    assert "simulate_devices(9) came too late" in refused("train", "linear", "--config=a.toml")


BAD = {
    "an unknown entry": ("a.toml", "bacth = 3", "a.toml: unknown option 'bacth', perhaps 'batch'"),
    "an entry of another recipe": ("a.yaml", "widths: [4]", "unknown option 'widths'"),
    "a word for a number": ("a.toml", 'batch = "many"', "a.toml: Expected `int | null`, got `str`"),
    "a broken number": ("a.toml", "steps = 1.5", "a.toml: Expected `int | null`, got `float`"),
    "an unknown choice": ("a.yaml", "scheme: pmpa", "a.yaml: Invalid enum value 'pmpa'"),
    "a value of the wrong type for the recipe": ("a.toml", 'noise = "loud"', "a.toml: Expected `float`, got `str`"),
    "bad TOML": ("a.toml", "batch = = 3", "a.toml: Invalid value (at line 1"),
    "bad YAML": ("a.yaml", "batch: [3", "a.yaml: while parsing"),
    "no text": ("a.toml", b"\xff\xfe", "a.toml: 'utf-8' codec"),
    "an empty file": ("a.yaml", "", "a.yaml holds no entries such as batch = 256"),
    "a list": ("a.yaml", "- 3", "a.yaml holds no table"),
    "another ending": ("a.json", "{}", "'a.json' ends in neither .toml, .yaml nor .yml"),
    "a further file": ("a.toml", 'config = "b.toml"', "a.toml: 'config' stands in a configuration file"),
    "the traceback": ("a.toml", "traceback = true", "a.toml: 'traceback' stands in a configuration file"),
}


@pytest.mark.parametrize(("name", "content", "what"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_followed_is_refused(refused, tmp_path, name, content, what):
    """Named with the file and the entry; nothing is trained or written."""
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    told = refused(*QUIET, "--config", name)
    assert what in told
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_entry_of_a_wrong_type_is_named(refused, tmp_path):
    """`batch`, beside the type that it should have."""
    (tmp_path / "a.toml").write_text('steps = 2\nbatch = "many"\n')
    assert "`batch`" in refused(*QUIET, "--config", "a.toml")


def test_a_file_that_is_not_there_is_refused(refused):
    """Its name and the system's words."""
    told = refused(*QUIET, "--config", "nowhere.toml")
    assert "cannot read the configuration file 'nowhere.toml': No such file" in told
