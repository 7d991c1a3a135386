"""``program.json``: what the compiled step does, for a run of four devices; and that nothing in it ends a run."""

from __future__ import annotations

import json
import math

import numpy as np
import optax
import pytest

from paceline.base.errors import DeviceError, TaskError
from paceline.telemetry.reader import read_run
from paceline.topology.processes import Processes
from paceline.train import machine as machine_module
from paceline.train import program as program_module
from paceline.train.machine import hosts, machine_of, rough_cpu
from tests.train.linear import SCHEMES, line, trainer_of, zeros

KEYS = {
    "compile_s", "read_s", "memory", "collectives", "wire_bytes", "blocking_collectives", "flops", "traffic_bytes",
    "stages", "stages_basis", "communication_s", "step_s", "notes", "error",
}  # fmt: skip
TOTALS_BYTES = 2 * 4
"""Loss and weight of the batch, summed beside the gradients: two float32."""


def wide_error(params, batch):
    return ((batch["x"][:, None] * params["hidden"]) @ params["out"] - batch["y"]) ** 2


def wide():
    return {"hidden": np.ones((1, 96), np.float32), "out": np.ones(96, np.float32)}


@pytest.fixture
def program(tmp_path):
    """`program(...)` trains on four devices and gives program.json."""

    def told(*, loss=wide_error, params=None, **parallel):
        trainer = trainer_of(loss, optimizer=optax.sgd(1e-3), **parallel)
        state = trainer.init(params or wide())
        trainer.fit(state, line(), batch=16, steps=2, run=tmp_path / "run", prefetch=2)
        return read_run(tmp_path / "run").program

    return told


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_of_four_devices_names_one_all_reduce_of_all_gradients(scheme, program):
    """192 parameters of 4 bytes and the totals, over 4 devices, once a step; CPU collectives block."""
    found = program(scheme=scheme)
    assert found.keys() == KEYS and found["error"] is None
    (reduction,) = found["collectives"]
    assert reduction["bytes"] == found["wire_bytes"] == 192 * 4 + TOTALS_BYTES
    assert (reduction["kind"], reduction["dtype"], reduction["devices"]) == ("all-reduce", "float32", 4)
    assert sorted(reduction["leaves"]) == ["params.hidden", "params.out"]
    assert (reduction["times"], reduction["blocking"], found["blocking_collectives"]) == (1, True, 1)
    assert reduction["exposed_s"] == found["communication_s"] > 0


@pytest.mark.parametrize("parallel", [{}, {"scheme": "per_device", "accumulation": 2}, {"placement": "fsdp"}])
def test_the_stages_of_a_step_sum_to_one(parallel, program):
    """Each of the three takes a part, to 1e-12 of the whole; the file says how they were told apart."""
    found = program(**parallel)
    assert list(found["stages"]) == ["forward_backward", "all_reduce", "update"]
    assert all(0 < share < 1 for share in found["stages"].values())
    assert math.isclose(sum(found["stages"].values()), 1.0, rel_tol=1e-12)
    assert found["stages"]["all_reduce"] * found["step_s"] == pytest.approx(found["communication_s"], rel=1e-12)
    assert found["stages_basis"].startswith("modelled: ") and "differentiation" in found["stages_basis"]


def test_the_parts_of_the_memory_sum_to_its_peak(program):
    """The parameters among them: 192 of 4 bytes on each device; two batches ahead, of 4 rows of 9 bytes."""
    memory = program()["memory"]
    assert memory["peak_bytes"] == sum(memory["parts_bytes"].values())
    assert memory["parts_bytes"]["parameters"] == 192 * 4
    assert memory["parts_bytes"]["batches ahead"] == 2 * 4 * (2 * 4 + 1)


def test_one_device_sends_nothing(tmp_path):
    """No collective, no communication, and the stages all the same: all of forward, backward and update."""
    trainer = trainer_of(wide_error, devices=1, optimizer=optax.sgd(1e-3))
    trainer.fit(trainer.init(wide()), line(), batch=16, steps=2, run=tmp_path / "run")
    found = read_run(tmp_path / "run").program
    assert (found["collectives"], found["wire_bytes"], found["communication_s"]) == ([], 0, 0.0)
    assert found["stages"]["all_reduce"] == 0 and found["stages"]["update"] > 0


@pytest.mark.parametrize(
    ("raised", "words"),
    [(RuntimeError("no such opcode"), "RuntimeError: no such opcode"),
     (TaskError(what="no text", why="it is empty", fix="none"), "no text: it is empty"),
     (AssertionError(), "AssertionError")],
    ids=["a bug", "an error with words", "without words"],
)  # fmt: skip
def test_a_program_that_cannot_be_read_costs_the_run_nothing(raised, words, program, monkeypatch):
    """Both steps are made; the file has every key, the error in words, and the time of the compilation."""

    def failing(*_, **__):
        raise raised

    monkeypatch.setattr(program_module, "read_program", failing)
    found = program()
    assert found.keys() == KEYS
    assert found["error"] == words and found["compile_s"] > 0
    assert found["stages"] is None and found["collectives"] == []


def test_a_program_without_known_rates_is_read_without_stages(program, monkeypatch):
    """As on a device that no table has: bytes and memory are there, the note says what is missing."""

    def unknown(devices):
        raise TaskError(what="no rates are known of 'abacus'", why="", fix="")

    monkeypatch.setattr(program_module, "machine_of", unknown)
    found = program()
    assert found["error"] is None and found["wire_bytes"] > 0 and found["memory"]["peak_bytes"] > 0
    assert (found["stages"], found["communication_s"], found["step_s"]) == (None, None, None)
    assert found["collectives"][0]["exposed_s"] is None
    assert "stages are not modelled: no rates are known of 'abacus'" in found["notes"]


def test_a_text_too_long_to_wait_for_is_not_read(program, monkeypatch):
    """Above the limit only the memory is told, which takes no reading."""
    monkeypatch.setattr(program_module, "LONGEST_BYTES", 1000)
    found = program()
    assert found["error"].startswith("not read: its text is ") and found["memory"]["peak_bytes"] > 0
    assert found["collectives"] == []


def test_a_disk_that_refuses_the_file_costs_the_run_nothing(tmp_path, monkeypatch):
    """The run goes on without program.json."""

    def full(path, content):
        if path.name == "program.json":
            raise OSError(28, "No space left on device")
        path.write_text(json.dumps({"counts": {}}))

    monkeypatch.setattr("paceline.telemetry.folder.write_document", full)
    trainer = trainer_of()
    _, report = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=3, run=tmp_path / "run")
    assert report.steps == 3 and not (tmp_path / "run" / "program.json").exists()


def test_without_a_run_folder_no_program_is_read(monkeypatch):
    """Nobody could look at it."""

    def never(*_, **__):
        raise AssertionError("read")

    monkeypatch.setattr(program_module, "program_document", never)
    trainer = trainer_of()
    _, report = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=2)
    assert report.steps == 2


def test_processes_of_one_machine_are_one_node(monkeypatch):
    """Two of them on "a" and two on "b": two nodes, told by name without the process ids. A CPU has no usual network
    between nodes, so the machine of a run over both is unknown, and on one of them it is one node."""
    several = Processes(count=2, machines=("a (pid 7)", "a (pid 8)"))
    monkeypatch.setattr(machine_module, "processes", lambda: several)
    devices = list(trainer_of().mesh.devices.flat)
    assert hosts() == ["a", "a"] and machine_of(devices)[0].nodes == 1
    several.machines = ("a (pid 7)", "b (pid 7)")
    with pytest.raises(DeviceError, match="network"):
        machine_of(devices)


def test_simulated_devices_share_one_cpu():
    """Four of them: a quarter of its arithmetic, of its memory and of its bandwidth for each."""
    trainer = trainer_of()
    machine, how = machine_of(list(trainer.mesh.devices.flat))
    whole = rough_cpu()
    assert (machine.num_devices, machine.nodes) == (4, 1)
    assert machine.device.peak_flops_per_s["float32"] == whole.peak_flops_per_s["float32"] / 4
    assert machine.device.memory_bytes_per_s == whole.memory_bytes_per_s / 4
    assert "measured" in how and 1e8 < whole.peak_flops_per_s["float32"] < 1e14
