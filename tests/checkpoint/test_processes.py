"""Two real processes with two devices each: parts of one state, saved and restored together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from paceline.checkpoint import files
from paceline.checkpoint.reading import restore
from paceline.checkpoint.store import Store
from tests.checkpoint import states

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the processes work; in ``one`` a single process has saved steps 7 and 8 from 4 devices."""
    folder = tmp_path_factory.mktemp("processes")
    with Store(folder / "one", say=pytest.fail) as store:
        for step in (7, 8):
            store.save(states.placed(states.single(seed=3), devices=4, placement="fsdp"), step, meta={})
    return folder


@pytest.fixture(scope="module")
def found(folder):
    """What each process found in each task, and what it printed as errors. One start serves all tests: it takes 5 s."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "XLA_FLAGS": ""}
    if jax.config.jax_compilation_cache_dir:
        environment |= {"JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir}
    module = [sys.executable, "-m", "tests.checkpoint.two_processes", str(port)]
    started = [
        subprocess.Popen(
            [*module, str(process), str(folder)],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for process in (0, 1)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors
    found = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    return {**{task: [one[task] for one in found] for task in found[0]}, "errors": [errors for _, errors in outputs]}


def test_two_processes_save_their_parts_while_steps_with_collectives_run(found):
    """Both restore every bit of their own parts; the library that writes the files prints nothing."""
    assert found["save"] == [{"failure": None, "equal": True, "step": 2, "said": []}] * 2
    assert not any("orbax" in text.lower() for text in found["errors"])


@pytest.mark.parametrize(("devices", "placement"), [(1, "replicated"), (2, "fsdp"), (4, "zero1")])
def test_one_process_restores_what_two_saved(found, folder, devices, placement):
    """On K = 1, 2, 4 every bit is there, placed as asked."""
    like = states.placed(states.single(seed=1), devices=devices, placement=placement)
    restored = restore(folder / "saved", like=like)
    states.assert_same(restored.state, states.single(seed=3))
    states.assert_placed_like(restored.state, like)
    assert (restored.step, restored.meta) == (2, {"number": 2})


def test_two_processes_restore_what_one_saved_in_every_placement(found):
    assert found["read"] == [{"equal": [True] * 3, "steps": [8] * 3}] * 2


def test_what_one_process_finds_damaged_is_skipped_by_all(found):
    assert [(one["step"], one["equal"], len(one["said"])) for one in found["damaged"]] == [(7, True, 1)] * 2


def test_a_process_that_cannot_write_fails_the_save_of_all_and_the_next_one_works(found, folder):
    """Process 1 reports a full disk; both name it, nothing half-written stays, step 2 is complete."""
    for one in found["full"]:
        assert "the disk is full" in one["failure"], one
        assert (one["steps"], one["said"]) == ([2], 1)
    assert "process 1" in found["full"][0]["failure"]
    assert files.leftovers(folder / "full") == []


def test_a_process_that_does_not_answer_is_named_within_the_limit(found):
    """Process 1 saves nothing; process 0 names it after 1 s and leaves no half-written folder."""
    (one, _) = found["silent"]
    assert "process 1 said nothing" in one["failure"]
    assert "log of process 1" in one["failure"]
    assert one["left"] == []


def test_a_save_that_waits_for_a_dead_process_can_be_given_up(found):
    """The default limit is ten minutes; `close(give_up=True)` ends within seconds."""
    (one, _) = found["silent"]
    assert one["given_up"]["soon"]
    assert "before it was given up" in one["given_up"]["failure"]
