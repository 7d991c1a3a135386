"""Processes that would not train one model end within seconds with one error that names process and field.

Owns: everything that two processes may differ in, on two real ones. Not here: what each of them then does with its end
(`test_endings`).
Invariant: every process raises the same words.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.processes.environment import CHILD, TRAIN
from tests.processes.run import run, start

SCRIPT = str(Path(__file__).with_name("disagreeing.py"))


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> dict[str, dict]:
    """What both processes say, by case."""
    folder = tmp_path_factory.mktemp("disagreeing")
    ended = run([SCRIPT, str(folder)], processes=2, env=CHILD, timeout_s=200)
    assert [process.returncode for process in ended] == [0, 0], ended
    first, second = (
        {line["case"]: line for line in map(json.loads, filter(_is_json, process.stdout.splitlines()))}
        for process in ended
    )
    assert {name: line["text"] for name, line in first.items()} == {n: line["text"] for n, line in second.items()}
    return first


def _is_json(line: str) -> bool:
    return line.startswith("{")


SAME = "start every process from the same files, with the same command, packages and environment"
PROGRAM = "the step's program (host values in it, such as a learning rate, differ) is "
CONTENT = "content of the first, middle and last row of the "


@pytest.mark.parametrize(
    ("case", "error", "what", "fix"),
    [
        ("rows", "ProcessError", "run.rows is 96 in process 0, 94 in process 1", SAME),
        ("content", "ProcessError", CONTENT + "data, leaf x is ", SAME),
        ("learning_rate", "ProcessError", PROGRAM, SAME),
        ("host_value_in_the_loss", "ProcessError", PROGRAM, SAME),
        ("made_parameters", "ProcessError", "begin with different states: params.", "from the seed"),
        ("given_parameters", "ProcessError", "begin with different states: params.out.b", "from the same files"),
        ("seed_of_the_state", "ProcessError", "random key is [0, 0] in process 0, [0, 1] in process 1", SAME),
        ("seed_of_the_order", "ProcessError", "run.seed is 0 in process 0, 1 in process 1", SAME),
        ("batch_size", "ProcessError", "run.batch is 16 in process 0, 32 in process 1", SAME),
        ("scheme", "ProcessError", 'parallel.scheme is "global_view" in process 0, "per_device" in process 1', SAME),
        ("evaluation", "ProcessError", "evaluation data.rows is 32 in process 0, 64 in process 1", SAME),
        ("evaluation_content", "ProcessError", CONTENT + "evaluation data, leaf y is ", SAME),
        ("xla_flags", "ProcessError", 'XLA_FLAGS is "" in process 0, "--xla_cpu_enable_fast_math=true" in', SAME),
        ("setting", "ProcessError", 'jax_default_matmul_precision is "float32" in process 0, "highest" in', SAME),
        ("versions", "ProcessError", '"0.9.9" in process 1', SAME),
        ("code", "ProcessError", "code of copied.py is ", SAME),
        ("number_of_batches", "DataError", "process 1 ended after 2 batches, but process 0 has more", "pass steps="),
        ("rows_of_a_batch", "DataError", "batch 0 has different rows: 4 in process 0, 2 in process 1", "one size"),
        ("same_rows", "DataError", "processes 0 and 1 were given the same rows in batch 0", "jax.process_index()"),
    ],
)
def test_a_difference_is_named(said, case, error, what, fix):
    """The field, both values and the processes that have them; a user's mistake, with its fix."""
    line = said[case]
    assert (line["error"], line["code"]) == (error, 2), line
    assert what in line["text"], line["text"]
    assert "process" in line["text"] and fix in line["text"].partition("fix: ")[2]
    assert line["seconds"] < 60


def test_processes_that_agree_train(said):
    """Batches of each process's own rows are in order."""
    assert said["nothing"]["error"] == ""


TASK = """\
import os
from tests.processes import mlp
import dataclasses, optax

def task():
    rate = 0.1 * (1 + int(os.environ["PACELINE_PROCESS_INDEX"]))
    return dataclasses.replace(mlp.task(), optimizer=optax.sgd(rate))
"""


def test_the_command_line_tells_a_difference_once(tmp_path):
    """A task file whose learning rate depends on the process: exit code 2 in both, one of them says why."""
    file = tmp_path / "own.py"
    file.write_text(TASK)
    start_s = time.monotonic()
    options = ["--batch", "16", "--steps", "4", "--run", str(tmp_path / "run")]
    ended = run([*TRAIN[1:], str(file), *options], processes=2, env=CHILD, timeout_s=100)
    assert time.monotonic() - start_s < 60
    assert [process.returncode for process in ended] == [2, 2], ended
    assert PROGRAM in ended[0].stderr and "process 1" in ended[0].stderr
    assert "error:" not in ended[1].stderr and "Traceback" not in ended[0].stderr + ended[1].stderr
    assert not (tmp_path / "run").exists()


def test_other_numbers_of_processes_are_told_by_both(tmp_path):
    """`--num-processes` 2 here and 3 there: both end at once, before anything is trained."""
    options = ["--batch", "16", "--steps", "4", "--run", str(tmp_path / "run")]
    with start(
        [*TRAIN[1:], "linear", *options], env=CHILD,
        command=lambda index, command: ["env", f"PACELINE_NUM_PROCESSES={2 + index}", *command],
    ) as running:  # fmt: skip
        ended = running.wait(60)
    assert [process.returncode for process in ended] == [2, 2], ended
    for process in ended:
        assert "was told of 3 processes, process 0 on " in process.stderr
        assert "the same --num-processes" in process.stderr and "Traceback" not in process.stderr
