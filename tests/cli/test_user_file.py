"""`paceline train my_task.py`: the user's own file, complete examples and every way in which it can be wrong."""

from __future__ import annotations

import json
import textwrap

import pytest

from paceline.telemetry.reader import read_run

QUIET = ("--devices", "4", "--progress", "none", "--run", "run")

TASK = """\
    import jax.numpy as jnp
    import numpy as np
    import optax

    import paceline

    RATE = 0.1


    def loss(params, batch):
        prediction = batch["x"] * params["w"] + params["b"]
        return (prediction - batch["y"]) ** 2, {"large": abs(batch["y"]) > 1}


    def task():
        x = np.random.default_rng(0).normal(size=512).astype(np.float32)
        data = {"x": x, "y": 3 * x + 1}
        return paceline.Job(
            task=paceline.task(loss, init=lambda rng: {"w": jnp.zeros(()), "b": jnp.zeros(())}),
            optimizer=optax.sgd(RATE),
            data=paceline.rows(data),
            evaluation=paceline.rows(data),
            schedule=optax.constant_schedule(RATE),
            outcome=lambda state: {"w": float(state.params["w"])},
        )
"""

RECIPE = """\
    from dataclasses import dataclass

    import jax.numpy as jnp
    import numpy as np
    import optax

    import paceline


    @dataclass(frozen=True)
    class Options:
        \"\"\"Options of this recipe.

        Args:
          rows: number of points.
          rate: learning rate for a batch of 64; scaled with the batch.
          widths: shown in the help.
        \"\"\"

        rows: int = 128
        rate: float = 0.1
        widths: tuple[int, ...] = (1, 2)


    def loss(params, batch):
        return (params["w"] - batch["x"]) ** 2


    def build(options, shape):
        assert shape.steps == 4 and shape.seed == 3
        rate = options.rate * shape.batch / 64
        return paceline.Job(
            task=paceline.task(loss, init=lambda rng: {"w": jnp.zeros(())}),
            optimizer=optax.sgd(rate),
            data={"x": np.full(options.rows, sum(options.widths), np.float32)},
            schedule=optax.constant_schedule(rate),
            outcome=lambda state: {"w": float(state.params["w"])},
        )


    recipe = paceline.Recipe(build=build, options=Options, batch=32, epochs=2, name="points", summary="Points.")
"""


@pytest.fixture
def write(tmp_path):
    """`write(name, source)`: a file in the current folder; returns its name."""

    def write(name, source):
        (tmp_path / name).write_text(textwrap.dedent(source))
        return name

    return write


def test_a_file_with_a_task_trains_from_the_command_line(paceline, write, tmp_path):
    """8 epochs of 8 batches of 64: w within 0.05 of 3; metrics, evaluation and outcome are reported."""
    ran = paceline("train", write("line.py", TASK), *QUIET, "--epochs", "8", "--json", "out.json")
    assert ran.code == 0, ran.err
    content = json.loads((tmp_path / "out.json").read_text())
    assert abs(content["outcome"]["w"] - 3) < 0.05
    assert content["report"]["steps"] == 64 and content["report"]["task"] == "loss"
    assert content["report"]["final"]["train/learning_rate"] == pytest.approx(0.1)
    assert content["report"]["evaluation"]["evaluate/rows"] == 512
    assert 0 < content["report"]["evaluation"]["evaluate/large"] < 1


def test_it_is_evaluated_once_an_epoch(paceline, write, tmp_path):
    """3 epochs of 8 steps: after 8, 16 and 24; with --evaluate-every 10 after 10, 20 and 24."""
    for number, (flags, expected) in enumerate([((), [8, 16, 24]), (("--evaluate-every", "10"), [10, 20, 24])]):
        arguments = ("--devices", "4", "--progress", "none", "--run", f"run{number}", "--epochs", "3", *flags)
        assert paceline("train", write("line.py", TASK), *arguments).code == 0
        events = read_run(tmp_path / f"run{number}").events_by_process[0]
        assert [event.step for event in events if event.kind == "evaluation"] == expected


def test_the_folder_of_a_run_has_the_name_of_the_file(paceline, write, tmp_path):
    """runs/line-TIME."""
    assert paceline("train", write("line.py", TASK), "--devices", "4", "--progress", "none", "--steps", "1").code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("line-")


def test_a_file_with_a_recipe_has_options_of_its_own(paceline, write, tmp_path):
    """From 0 towards sum(widths) = 12 at rate 0.05: w = 12 (1 - 0.9^4); batch and epochs are the recipe's defaults."""
    flags = ("--widths", "4", "8", "--rows", "64", "--steps", "4", "--seed", "3", "--json", "out.json")
    ran = paceline("train", write("points.py", RECIPE), *QUIET, *flags)
    assert ran.code == 0, ran.err
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["outcome"]["w"] == pytest.approx(12 * (1 - 0.9**4), rel=1e-5)
    assert content["report"]["global_batch"] == 32
    assert content["config"]["recipe"] == {"rows": 64, "rate": 0.1, "widths": [4, 8]}


def test_the_options_of_a_recipe_are_in_its_help(paceline, write, capsys):
    """Flag, type, default and the sentence of the docstring."""
    with pytest.raises(SystemExit):
        paceline("train", write("points.py", RECIPE), "--help")
    shown = capsys.readouterr().out
    for words in ("--rows", "number of points", "128", "--rate", "learning rate for", "Points.", "--batch"):
        assert words in shown


def test_a_misspelled_option_of_a_recipe_is_refused(refused, write):
    """--row: perhaps 'rows'."""
    assert "--row, perhaps 'rows'" in refused("train", write("points.py", RECIPE), "--row", "4")


NESTED = RECIPE.replace(
    "    @dataclass(frozen=True)\n    class Options:",
    "    @dataclass(frozen=True)\n    class Noise:\n        level: float = 0.5\n\n\n"
    "    @dataclass(frozen=True)\n    class Options:",
).replace("        rows: int = 128\n", "        rows: int = 128\n        noise: Noise = Noise()\n")


def test_options_may_be_grouped(paceline, write, tmp_path):
    """A dataclass in the dataclass: its fields are flags too, and a table in a configuration file."""
    name = write("points.py", NESTED)
    (tmp_path / "a.toml").write_text("[noise]\nlevel = 0.25\n")
    for number, (flags, level) in enumerate([(("--level", "0.75"), 0.75), (("--config", "a.toml"), 0.25)]):
        arguments = ("--devices", "4", "--progress", "none", "--run", f"run{number}", "--steps", "4", "--seed", "3")
        ran = paceline("train", name, *arguments, *flags)
        assert ran.code == 0, ran.err
        assert read_run(tmp_path / f"run{number}").run["config"]["recipe"]["noise"] == {"level": level}


def test_a_file_may_import_its_neighbours(paceline, write):
    """`from helper import rate` beside the file."""
    write("helper.py", "rate = 0.1\n")
    source = TASK.replace("RATE = 0.1", "from helper import rate as RATE")
    assert paceline("train", write("line.py", source), *QUIET, "--steps", "1").code == 0


def test_task_may_take_the_shape_of_the_run(paceline, write):
    """`def task(shape)`: batch, steps, epochs and seed."""
    source = TASK.replace("def task():", "def task(shape):\n        assert (shape.batch, shape.steps) == (32, 2)")
    ran = paceline("train", write("line.py", source), *QUIET, "--steps", "2", "--batch", "32")
    assert ran.code == 0, ran.err


def changed(old, new, source=TASK):
    assert old in source
    return source.replace(old, new)


ROWS = """\
class Rows:
        def __len__(self):
            return 512

        def __getitem__(self, index):
            raise OSError("the disk is gone")


    def task():"""

BAD = {
    "neither task nor recipe": ("x = 3\n", "bad.py defines neither recipe nor task()", "define task()"),
    "a recipe of another type": ("recipe = {}\n", "bad.py defines a recipe of type dict", "paceline.Recipe"),
    "a task that is no function": ("task = 3\n", "neither recipe nor task()", "define task()"),
    "an error at import": ("x = 1\nint('three')\n", "raised ValueError: invalid literal", "bad.py:2 in <module>"),
    "a package that is not there": ("import nowhere_at_all\n", "No module named 'nowhere_at_all'", "bad.py:1"),
    "bad syntax": ("x = 1\ndef task(:\n", "bad.py:2: invalid syntax", "correct the syntax"),
    "a task that returns nothing": ("def task():\n    pass\n", "task() in bad.py returned a NoneType", "paceline.Job"),
    "a task that raises": ("def task():\n    return {}['data']\n", "raised KeyError: 'data'", "bad.py:2 in task"),
    "a build that returns nothing": (
        changed("return paceline.Job(", "paceline.Job(", RECIPE).replace("assert shape", "shape"),
        "the build of recipe 'points' returned a NoneType",
        "return paceline.Job",
    ),
    "an option without a default": (changed("rows: int = 128", "rows: int", RECIPE), "'rows' of recipe", "default"),
    "an option of the run": (changed("rows: int", "batch: int", RECIPE), "'batch' of recipe 'points'", "rename"),
    "options that are no dataclass": (changed("options=Options", "options=dict", RECIPE), "no dataclass", "frozen"),
    "a loss that raises": (changed('batch["x"] * ', 'batch["z"] * '), "raised KeyError: 'z'", "bad.py:11 in loss"),
    "a loss of the wrong shape": (changed("** 2,", "** jnp.full((1, 1), 2),"), "shape (1, 64) for 64", "one value"),
    "a metric with a reserved name": (changed('"large"', '"gradient_norm"'), "named 'gradient_norm'", "rename"),
    "a loss of one argument": (changed("loss(params, batch)", "loss(params)"), "takes 1 positional", "f(params,"),
    "no init": (changed(', init=lambda rng: {"w": jnp.zeros(()), "b": jnp.zeros(())}', ""), "has no init", "init="),
    "an optimizer that was not made": (changed("optax.sgd(RATE)", "optax.sgd"), "optimizer is of type", "optax.sgd"),
    "no rows": (changed("size=512", "size=0"), "0 rows", "check the path"),
    "ragged rows": (changed("3 * x + 1}", "3 * x[1:] + 1}"), "'y' has 511 rows", "leading dim"),
    "text": (changed("3 * x + 1}", "x.astype(str)}"), "'y' is of type <U", "token ids"),
    "rows that cannot be read": (
        changed("def task():", ROWS).replace("data=paceline.rows(data),", "data=Rows(),"),
        "raised OSError: the disk is gone", "bad.py:20 in __getitem__",
    ),
    "an evaluation that the loss does not know": (
        changed("evaluation=paceline.rows(data)", "evaluation={'u': x}"), "raised KeyError: 'x'", "bad.py:11 in loss",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("source", "what", "fix"), BAD.values(), ids=BAD)
def test_a_file_that_is_wrong_is_refused(refused, write, source, what, fix):
    """Exit code 2, what and where; no traceback, nothing on standard output."""
    told = refused("train", write("bad.py", source), *QUIET)
    assert what in told
    assert fix in told.partition("fix:")[2]


def test_a_nan_in_the_data_is_refused_with_its_row(paceline, write):
    """Row 7: exit code 2, as the data is the user's to mend."""
    source = changed("data = {", "x[7] = np.nan\n        data = {")
    ran = paceline("train", write("line.py", source), *QUIET)
    assert ran.code == 2
    assert "batch leaf 'x' is not finite in row 7 of the data" in ran.err
    assert "Traceback" not in ran.err


def test_a_run_that_diverges_fails_with_exit_code_1(paceline, write, tmp_path):
    """A rate of 1e30: step and leaf are named; report.json and --json hold the error."""
    ran = paceline("train", write("line.py", changed("RATE = 0.1", "RATE = 1e30")), *QUIET, "--json", "out.json")
    assert ran.code == 1
    assert "step 2: " in ran.err and "not finite" in ran.err
    assert "NonFiniteError: step 2" in read_run(tmp_path / "run").report["stopped"]
    assert json.loads((tmp_path / "out.json").read_text())["error"]["kind"] == "NonFiniteError"


def test_an_error_in_a_neighbour_is_named_where_it_is(refused, write):
    """Bad syntax in helper.py, imported by the file: helper.py and its line."""
    write("neighbour_with_bad_syntax.py", "x = 1\ny = = 2\n")
    told = refused("train", write("bad.py", "import neighbour_with_bad_syntax\n"))
    assert "neighbour_with_bad_syntax.py:2: invalid syntax" in told
