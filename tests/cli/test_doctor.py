"""`paceline doctor`: what it prints and writes, its exit codes, and what it does not run.

The environment is that of the machine the tests run on: here only what the run itself gives is counted, and nothing is
measured. `test_doctor_environment` has the second half.
"""

from __future__ import annotations

import json
import textwrap

import pytest

TASK = """\
import jax
import jax.numpy as jnp
import numpy as np
import optax
import paceline

def loss(params, batch):
    return (batch["x"] * params["w"] - batch["y"]) ** 2

def task():
    x = np.arange(64, dtype="float32")
    return paceline.Job(
        task=paceline.task(loss, init=lambda rng: {"w": jnp.zeros(())}),
        optimizer=optax.sgd(0.1),
        data=paceline.rows({"x": x, "y": 2 * x}),
    )
"""
DOCTOR = ("doctor", "my_task.py", "--devices", "4", "--no-measure")
FIRST_HALF = ("load", "batch", "shapes", "keys", "memory", "drift", "source")


@pytest.fixture
def examine(paceline, tmp_path):
    """`examine(source, *options)` runs the doctor on a file with that content."""

    def run(source: str, *options: str):
        (tmp_path / "my_task.py").write_text(textwrap.dedent(source), encoding="utf-8")
        return paceline(*DOCTOR, *options)

    return run


def checks(out: str) -> list[str]:
    """The checks of a report, each once, in order."""
    lines = [line for line in out.splitlines() if line.startswith(("ok", "warning", "error"))]
    return list(dict.fromkeys(line[9:].partition(":")[0] for line in lines))


def troubles(out: str) -> tuple[int, int]:
    """Errors and warnings of the first half, and the last line agrees with the whole report."""
    lines = [line for line in out.splitlines() if line[9:].partition(":")[0] in FIRST_HALF]
    for level, count in (("error", "error"), ("warning", "warning")):
        number = sum(line.startswith(level) for line in out.splitlines())
        assert f"{number} {count}{'' if number == 1 else 's'}" in out.splitlines()[-1]
    return sum(line.startswith("error") for line in lines), sum(line.startswith("warning") for line in lines)


@pytest.mark.parametrize("recipe", ["linear", "image"])
def test_a_shipped_recipe_is_well(paceline, recipe):
    """Exit code 0, no error, no warning, the checks in their order, the environment after the run."""
    ran = paceline("doctor", recipe, "--devices", "4", "--no-measure")
    assert (ran.code, ran.err) == (0, "")
    assert troubles(ran.out) == (0, 0)
    order = checks(ran.out)
    assert order[:6] == ["batch", "shapes", "keys", "memory", "drift", "source"]
    assert order[6] == "devices" and order[-1] == "cache" and not set(order[6:]) & set(FIRST_HALF)


def test_a_task_of_the_user_is_examined_with_the_options_of_a_run(examine, tmp_path):
    """Batch, scheme, accumulation; nothing is trained and no folder made."""
    ran = examine(TASK, "--batch", "16", "--scheme", "per_device", "--accumulation", "2")
    assert (ran.code, ran.err) == (0, "")
    assert "16 rows = 4 devices x 4 rows, in 2 microbatches of 2 rows" in ran.out
    assert "after a step the 4 devices hold the same state" in ran.out
    assert {path.name for path in tmp_path.iterdir()} <= {"my_task.py", "__pycache__"}


def test_an_error_ends_with_exit_code_1_and_its_fix_works(examine):
    """18 rows on 4 devices: 16 or 20; with 16 there is no error."""
    ran = examine(TASK, "--batch", "18")
    assert (ran.code, ran.err) == (1, "")
    assert "error    batch: a batch of 18 rows, which do not split over 4 devices" in ran.out
    assert "fix: use --batch 16 or 20" in ran.out
    assert examine(TASK, "--batch", "16").code == 0


def test_json_holds_every_finding(examine, tmp_path):
    """ok, errors, warnings, findings; one finding a line on the terminal."""
    ran = examine(TASK, "--batch", "18", "--json", "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    assert content.keys() == {"ok", "errors", "warnings", "findings"}
    assert (content["ok"], content["errors"]) == (False, 1) and content["findings"][-1]["check"] == "cache"
    assert len(content["findings"]) == sum(line.startswith(("ok", "warn", "error")) for line in ran.out.splitlines())
    assert content["findings"][0].keys() == {"check", "level", "what", "fix", "file", "line"}


def test_a_script_for_pmap_is_read_and_never_run(examine, tmp_path):
    """Case brax#671: device_put_replicated, line 3, with its replacement; the file beside would betray a run."""
    ran = examine("""\
        import jax
        open("was_run", "w").close()
        state = jax.device_put_replicated({"w": 0.0}, jax.devices())
    """)
    assert ran.code == 1
    assert "error    source: my_task.py:3: jax.device_put_replicated is gone from JAX" in ran.out
    assert "fix: use jax.device_put(x" in ran.out
    assert "not run: the file defines neither task() nor recipe" in ran.out
    assert not (tmp_path / "was_run").exists()


def test_old_spellings_of_shard_map_are_named_with_the_new_ones(examine):
    """Case flax#5058: auto=, check_rep=, the experimental module, and what becomes of the gradients."""
    ran = examine("""\
        from jax.experimental.shard_map import shard_map
        f = shard_map(g, mesh, in_specs=s, out_specs=s, check_rep=True, auto=frozenset({"model"}))
    """)
    assert ran.code == 1
    for words in ("jax.shard_map(f, mesh=mesh", "axis_names=", "check_vma=True", "K times the gradient, psum K^2"):
        assert words in ran.out


def test_a_file_that_fails_when_it_is_loaded_is_an_error_and_read_all_the_same(examine):
    """A task whose module calls what is gone: the load error, and the source check that explains it, at line 6."""
    lines = TASK.splitlines(keepends=True)
    ran = examine("".join([*lines[:5], "x = jax.device_put_replicated(1, jax.devices())\n", *lines[5:]]))
    assert ran.code == 1 and ran.err == ""
    assert "error    load: " in ran.out
    assert "error    source: my_task.py:6: jax.device_put_replicated is gone" in ran.out


def test_a_task_that_does_not_trace_is_an_error_with_its_line(examine):
    """The user's file and line; what could not run is listed."""
    ran = examine(TASK.replace('params["w"]', 'params["v"]'))
    assert ran.code == 1 and ran.err == ""
    assert "my_task.py:8: the loss of task 'loss' raised KeyError" in ran.out
    assert ran.out.count("not run: no step can be made of this task") == 3


@pytest.mark.parametrize(
    ("source", "words"),
    [("def task(:\n", "my_task.py:1: Python cannot read the file"), ("", "my_task.py: the file is empty")],
)
def test_a_file_that_is_no_python_is_one_error(examine, source, words):
    ran = examine(source)
    assert (ran.code, ran.err) == (1, "")
    assert words in ran.out and troubles(ran.out) == (1, 1)


def test_the_fix_for_a_file_that_is_no_python_is_to_correct_it(examine):
    """Not to define what may well be there."""
    ran = examine("def task(:\n")
    assert "fix: correct the syntax there" in ran.out and "define task()" not in ran.out


def test_ready_batches_are_padded_with_the_option_of_a_run(examine):
    """10 rows on 4 devices: an error without --remainder pad, none with it; --batch is no way out."""
    ready = TASK.replace('paceline.rows({"x": x, "y": 2 * x})', 'paceline.stream([{"x": x[:10], "y": x[:10]}] * 5)')
    ran = examine(ready)
    assert ran.code == 1 and "give batches of 8 or 12 rows, or use --remainder pad" in ran.out
    assert "--batch" not in ran.out
    padded = examine(ready, "--remainder", "pad")
    assert padded.code == 0 and "10 rows, padded to 12" in padded.out


def test_a_key_that_two_checks_see_is_told_once(examine):
    """The traced loss and its source both show it: one warning."""
    ran = examine(
        TASK.replace("def loss(params, batch):", "def loss(params, batch, rng):").replace(
            "** 2\n", "** 2 + jax.random.normal(rng) + jax.random.uniform(rng)\n"
        )
    )
    assert ran.code == 0 and ran.out.count("my_task.py:8") == 1
    assert troubles(ran.out) == (0, 1)


REFUSED = {
    "an option of runs without a run": (("doctor", "--batch", "4"), "unknown option --batch"),
    "a file that is not there": (("doctor", "nowhere.py"), "'nowhere.py' is neither a recipe nor a Python file"),
    "a misspelled option": (("doctor", "linear", "--bacth", "4"), "unknown option --bacth"),
    "too many devices": (("doctor", "linear", "--devices", "9"), "9 devices asked for"),
    "options that do not go together": (("doctor", "linear", "--dropout", "shared"), "dropout='shared'"),
    "a report in no folder": (("doctor", "linear", "--json", "nowhere/out.json"), "--json nowhere/out.json"),
}


@pytest.mark.parametrize(("arguments", "what"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_in_the_command_is_refused(refused, arguments, what):
    """Exit code 2, as everywhere; nothing on standard output."""
    assert what in refused(*arguments)
