"""`paceline verify`: what it prints and writes, its exit codes, steps written by hand, and what it refuses."""

from __future__ import annotations

import json
import sys

import pytest

from paceline.check.parity.cases import PLACEMENTS, SCHEMES
from paceline.cli import verify as command
from paceline.cli.verify import VerifyOptions

TASK = """\
import jax
import jax.numpy as jnp
import numpy as np
import optax
import paceline

def error(params, batch):
    return (batch["x"] * params["w"] - batch["y"]) ** 2

def loss(params, batch):
    return {loss}

def task():
    x = np.arange(64, dtype="float32") / 64
    return paceline.Job(
        task=paceline.task(loss, init=lambda rng: {{"w": jnp.zeros(())}}),
        optimizer=optax.sgd(0.1),
        data=paceline.rows({{"x": x, "y": 2 * x}}),
    )
"""
RIGHT = TASK.format(loss="error(params, batch)")
SUM = TASK.format(loss="error(params, batch).sum()")
STEPS = """\
import jax
import optax
from my_task import error

def updated(params, opt_state, batch, reduce):
    mean = lambda params, batch: error(params, batch).mean()
    value, gradients = jax.value_and_grad(mean)(params, batch)
    changes, opt_state = optax.sgd(0.1).update(reduce(gradients, "i"), opt_state, params)
    return optax.apply_updates(params, changes), opt_state, jax.lax.pmean(value, "i")

def right(params, opt_state, batch):
    return updated(params, opt_state, batch, jax.lax.pmean)

def summed(params, opt_state, batch):
    return updated(params, opt_state, batch, jax.lax.psum)

def whole(state, batch):
    params, opt_state, loss = updated(state["params"], state["opt_state"], batch, jax.lax.pmean)
    return {"params": params, "opt_state": opt_state}, loss

def make_state(params, opt_state):
    return {"params": params, "opt_state": opt_state}

def misnamed(weights, batch):
    return weights

def two_axes(params, opt_state, batch):
    return updated(params, opt_state, batch, lambda gradients, axis: jax.lax.pmean(gradients, "elsewhere"))

other_axis = jax.pmap(two_axes, axis_name="i")

number = 3
"""
FEW = ("--devices", "2", "--accumulation", "1", "--schemes", "per_device", "--placements", "replicated",
       "--updates", "1")  # fmt: skip
"""Two programs."""


@pytest.fixture
def here(paceline, tmp_path, monkeypatch):
    """The folder of a run, with `my_task.py` and `steps_by_hand.py`, whose modules are forgotten afterwards."""
    (tmp_path / "my_task.py").write_text(RIGHT)
    (tmp_path / "steps_by_hand.py").write_text(STEPS)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name in ("my_task", "steps_by_hand") or name.endswith("by_hand"):
            del sys.modules[name]


@pytest.fixture
def verify(paceline, here):
    """`verify(*options)`: the task file of the folder, in two programs."""
    return lambda *options: paceline("verify", "my_task.py", *FEW, *options)


def test_a_right_task_ends_with_exit_code_0_and_its_table(verify, here):
    """The table of two precisions, the conclusion, nothing on standard error; the JSON says the same and how."""
    ran = verify("--json", "out.json", "--seed", "3")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("loss: one device against 2 (cpu); 1 updates of 4 rows, one of them with 3\n")
    assert "verified: 2 of 2 programs compute what one device would" in ran.out
    content = json.loads((here / "out.json").read_text())
    assert content.keys() == {"ok", "subject", "setting", "results", "skipped", "causes", "seconds", "config"}
    assert content["ok"] is True
    assert [(entry["precision"], entry["verdict"]) for entry in content["results"]] == [
        ("float64", "equal"),
        ("float32", "equal"),
    ]
    assert content["config"]["target"] == "my_task.py"
    assert (content["config"]["options"]["devices"], content["config"]["options"]["seed"]) == ([2], 3)


def test_a_wrong_task_ends_with_exit_code_1_and_its_cause(verify, here):
    """A sum: what, why and fix on standard output, in the JSON too; it is no user error of the command."""
    (here / "my_task.py").write_text(SUM)
    ran = verify("--json", "out.json")
    assert (ran.code, ran.err) == (1, "")
    assert "cause: loss that is not a mean over rows" in ran.out
    assert "  fix: return one loss a row" in ran.out
    assert "NOT VERIFIED" in ran.out.splitlines()[-1]
    content = json.loads((here / "out.json").read_text())
    assert content["ok"] is False
    assert [cause["cause"] for cause in content["causes"]] == ["loss that is not a mean over rows"]


def test_nothing_run_ends_with_exit_code_1(verify):
    """16 devices of 8: this process has too few and cannot get more."""
    ran = verify("--devices", "16")
    assert ran.code == 1
    assert "not run: K = 16: there are 8 devices; --simulate 16" in ran.out
    assert ran.out.endswith("NOT VERIFIED: nothing was run\n")


@pytest.mark.parametrize("name", ["steps_by_hand:right", "steps_by_hand.py:right"])
def test_a_right_step_is_verified_by_module_or_file(verify, name):
    """Its name is the case; exit code 0."""
    ran = verify("--step", name)
    assert (ran.code, ran.err) == (0, "")
    assert "right" in ran.out
    assert "verified: 2 of 2 programs" in ran.out


def test_a_step_in_a_folder_of_its_own_is_found(verify, here):
    """`steps/file.py` from the current folder."""
    (here / "steps").mkdir()
    (here / "steps" / "more_by_hand.py").write_text(STEPS)
    assert verify("--step", "steps/more_by_hand.py:right").code == 0


def test_a_wrong_step_ends_with_exit_code_1_and_its_cause(verify):
    """psum of per-device mean gradients: K times too large."""
    ran = verify("--step", "steps_by_hand:summed")
    assert ran.code == 1
    assert "cause: gradient K times too large" in ran.out


def test_a_step_with_one_state_is_given_the_one_that_the_user_makes(verify):
    """--state names the function; exit code 0."""
    ran = verify("--step", "steps_by_hand:whole", "--state", "steps_by_hand:make_state")
    assert (ran.code, ran.err) == (0, "")
    assert "verified: 2 of 2 programs" in ran.out


REFUSED = {
    "a step without its state": (("--step", "steps_by_hand:whole"), "takes one argument for its whole state"),
    "no function in the name": (("--step", "steps_by_hand"), "--step 'steps_by_hand'"),
    "nothing behind the colon": (("--step", "steps_by_hand:"), "--step 'steps_by_hand:'"),
    "nothing before the colon": (("--step", ":right"), "--step ':right'"),
    "no such module": (("--step", "nowhere_by_hand:right"), "no module 'nowhere_by_hand'"),
    "no such file": (("--step", "nowhere_by_hand.py:right"), "no module 'nowhere_by_hand'"),
    "no such function": (("--step", "steps_by_hand:wrong"), "has no function 'wrong'"),
    "no function": (("--step", "steps_by_hand:number"), "has no function 'number'"),
    "no such state": (
        ("--step", "steps_by_hand:whole", "--state", "steps_by_hand:none"),
        "--state steps_by_hand:none: module 'steps_by_hand' has no function 'none'",
    ),
    "a parameter with another name": (("--step", "steps_by_hand:misnamed"), "has a parameter 'weights'"),
    "an axis that is not there": (
        ("--step", "steps_by_hand:other_axis"),
        "names a device axis 'elsewhere', over which it is not",
    ),
    "a batch that does not split": (("--batch", "3"), "a batch of 3 rows does not split into 2 equal parts"),
    "no updates": (("--updates", "0"), "--updates 0"),
    "no devices": (("--devices", "0"), "devices 0"),
    "one device": (("--devices", "1"), "devices 1 to verify"),
    "less than no time": (("--seconds", "-1"), "seconds=-1"),
    "no number": (("--devices", "two"), "two"),
    "no values": (("--schemes",), "no schemes to verify"),
    "an unknown scheme": (("--schemes", "pmpa"), "pmpa"),
    "an unknown flag": (("--device", "2"), "unknown option --device, perhaps 'devices'"),
    "a file that cannot be written": (("--json", "no/out.json"), "--json no/out.json: the file cannot be written"),
    "a negative clip norm": (("--clip-norm", "-1"), "clip_norm"),
}


@pytest.mark.parametrize(("options", "what"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_on_the_command_line_ends_with_exit_code_2(refused, here, options, what):
    """What, why and fix on standard error, and nothing on standard output."""
    assert what in refused("verify", "my_task.py", *FEW, *options)


def test_a_step_that_names_two_axes_is_refused_in_words_for_a_step(refused, here):
    """Both names, and no advice for a task of Paceline."""
    told = refused("verify", "my_task.py", *FEW, "--step", "steps_by_hand:two_axes")
    assert "'i'" in told and "'elsewhere'" in told
    assert "batch_norm" not in told


def test_the_functions_of_a_module_are_offered(refused, here):
    """The public ones, by name."""
    told = refused("verify", "my_task.py", *FEW, "--step", "steps_by_hand:wrong")
    assert "right, summed, whole" in told


BAD_TASKS = {
    "a loss that does not trace": (TASK.format(loss='batch["pixels"]'), "'pixels'"),
    "an axis name that is not there": (TASK.format(loss='jax.lax.pmean(error(params, batch), "model")'), "'model'"),
    "a loss of the wrong shape": (TASK.format(loss="error(params, batch)[:, None]"), "loss"),
    "a loss that is not finite": (TASK.format(loss="error(params, batch) + jnp.inf"), "is not finite at update 1"),
    "no rows": (RIGHT.replace("np.arange(64", "np.arange(0"), "no rows"),
    "no task": ("x = 3\n", "my_task.py"),
    "a file that raises": ("import nothing_of_that_name\n", "nothing_of_that_name"),
    "an init that raises": (RIGHT.replace('{"w": jnp.zeros(())}', '{"w": jnp.zeros(-3)}'), "init"),
    "too large": (RIGHT.replace("jnp.zeros(())", "jnp.zeros(2**50)"), "27,021.6 TB in float64"),
}


@pytest.mark.parametrize(("source", "what"), BAD_TASKS.values(), ids=BAD_TASKS)
def test_a_task_that_cannot_be_run_ends_with_exit_code_2(refused, here, source, what):
    """Named with the user's words; the JSON holds the error."""
    (here / "my_task.py").write_text(source)
    assert what in refused("verify", "my_task.py", *FEW, "--json", "out.json")
    assert json.loads((here / "out.json").read_text())["error"].keys() >= {"kind", "what", "why", "fix"}


def test_a_loss_that_is_a_text_is_refused(refused, here):
    """As training refuses it."""
    (here / "my_task.py").write_text(TASK.format(loss='"three"'))
    assert "the loss is of type str" in refused("verify", "my_task.py", *FEW)


def test_a_step_file_that_raises_is_named_with_its_line(refused, here):
    """Not a traceback."""
    (here / "broken_by_hand.py").write_text("x = 1\ny = x.pixels\n")
    told = refused("verify", "my_task.py", *FEW, "--step", "broken_by_hand:step")
    assert "pixels" in told
    assert "broken_by_hand.py:2" in told


def test_a_command_without_a_target_is_refused(refused):
    """With what to write."""
    assert "paceline verify was not told what to verify" in refused("verify")


def test_options_may_stand_in_a_file(paceline, here):
    """All that the flags say above; flags come before it."""
    (here / "a.toml").write_text(
        'devices = [4]\naccumulation = [1]\nschemes = ["pmap"]\nplacements = ["replicated"]\nupdates = 1\nbatch = 8\n'
    )
    ran = paceline("verify", "my_task.py", "--config", "a.toml", "--devices", "2")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("loss: one device against 2 (cpu); 1 updates of 8 rows, one of them with 6\n")
    assert "pmap" in ran.out
    assert "verified: 2 of 2 programs" in ran.out


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("device = [2]\n", "unknown option 'device', perhaps 'devices'"),
        ('devices = "two"\n', "`devices`"),
        ("devices = [0]\n", "devices 0"),
        ("devices = 2\n", "`devices`"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused(refused, here, content, what):
    """Named with the entry."""
    (here / "a.toml").write_text(content)
    assert what in refused("verify", "my_task.py", "--config", "a.toml", "--updates", "1")


@pytest.mark.parametrize(
    ("arguments", "config", "asked"),
    [
        ((), None, [2, 4, 8]),
        (("--devices", "2", "16", "--updates", "3"), None, [2, 16]),
        (("--updates", "3", "--devices", "3"), None, [3]),
        (("--devices", "two"), None, [1]),
        (("--config", "a.toml"), "devices = [4, 12]", [4, 12]),
        (("--config", "a.toml"), "updates = 1", [2, 4, 8]),
        (("--config", "a.toml", "--devices", "6"), "devices = [4, 12]", [6]),
        (("--config=a.toml",), 'devices = ["x", 5]', [5]),
    ],
)
def test_as_many_devices_are_simulated_as_are_asked_for(tmp_path, monkeypatch, arguments, config, asked):
    """By flag, by file, by default; what is no number is left to the parser."""
    monkeypatch.chdir(tmp_path)
    if config is not None:
        (tmp_path / "a.toml").write_text(config)
    assert command._asked_devices(["my_task.py", *arguments]) == asked


def test_devices_behind_an_equals_sign_are_simulated_too():
    """``--devices=16``, which the parser takes."""
    assert command._asked_devices(["my_task.py", "--devices=16"]) == [16]


def test_the_defaults_are_those_of_the_library():
    """All schemes and placements, K of 2, 4, 8, n of 1 and 4."""
    options = VerifyOptions()
    assert (options.schemes, options.placements) == (SCHEMES, PLACEMENTS)
    assert (options.devices, options.accumulation, options.updates) == ((2, 4, 8), (1, 4), 3)


@pytest.mark.parametrize("arguments", [("--help",), ("linear", "--help")])
def test_help_ends_with_exit_code_0(paceline, capsys, arguments):
    """The recipes, or every option."""
    with pytest.raises(SystemExit) as ended:
        paceline("verify", *arguments)
    told = capsys.readouterr().out
    assert ended.value.code == 0
    words = (
        ("linear", "image") if len(arguments) == 1 else [f"--{name}" for name in ("step", "state", "devices", "json")]
    )
    assert all(word in told for word in words)
