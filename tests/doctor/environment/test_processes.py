"""Variables of starters that contradict each other, the command line or the GPUs."""

from __future__ import annotations

import pytest

from paceline.base import launched
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.processes import process_findings, several_expected
from tests.doctor.environment.machines import gpu_machine, levels, machine, only

JOB = {"SLURM_JOB_ID": "4100", "SLURM_NTASKS": "8", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
STEP = JOB | {"SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
OMPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
OURS = {launched.NUM_PROCESSES: "2", launched.PROCESS_INDEX: "1", launched.COORDINATOR: "node1:29500"}


@pytest.fixture(autouse=True)
def set_here(monkeypatch):
    """JAX's own detection reads this process's variables: none here, and those of a test on request."""
    for name in (*STEP, *OMPI, *launched.ALL, "SLURM_GPUS_ON_NODE", "PMI_SIZE", "JOB_COMPLETION_INDEX",
                 "KUBERNETES_SERVICE_HOST", "JAX_COORDINATOR_PORT", "OMPI_MCA_orte_hnp_uri"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)

    def put(values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        return values

    return put


def test_a_run_of_one_process_needs_nothing(tmp_path):
    assert only(process_findings(machine(tmp_path), Asked()), "ok").what == "a run of one process"


@pytest.mark.parametrize(
    ("environment", "asked", "told"),
    [
        (STEP, Asked(num_processes=4), "--num-processes 4, SLURM_NTASKS=8 (Slurm)"),
        (OURS | STEP, Asked(), f"{launched.NUM_PROCESSES}=2 (Paceline's launcher), SLURM_NTASKS=8 (Slurm)"),
        (STEP | OMPI, Asked(), "OMPI_COMM_WORLD_SIZE=2 (Open MPI), SLURM_NTASKS=8 (Slurm)"),
    ],
)
def test_different_numbers_of_processes_are_an_error(tmp_path, environment, asked, told):
    """All of them, with who says so; what the run would heed comes first."""
    found = only(process_findings(machine(tmp_path, environment=environment), asked))
    assert f"told differently: {told}" in found.what
    assert f"make them agree: the run would heed {told.split(', ')[0]}" in (found.fix or "")


def test_one_process_that_starts_the_others_contradicts_nobody(tmp_path):
    """A batch script of one task with paceline launch inside."""
    environment = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    assert levels(process_findings(machine(tmp_path, environment=environment), Asked(processes=4))) == {"ok"}


def test_processes_inside_processes_are_an_error(tmp_path):
    found = only(process_findings(machine(tmp_path, environment=STEP), Asked(processes=8)))
    assert "--processes 8 in each of several" in found.what and "leave --processes out" in (found.fix or "")


def test_a_slurm_script_without_srun_would_train_alone(tmp_path):
    found = only(process_findings(machine(tmp_path, environment=JOB), Asked()), "warning")
    assert "the Slurm job has 8 tasks" in found.what and found.fix == "write srun in front of the command"


def test_a_step_smaller_than_its_job_would_wait_for_ever(tmp_path):
    """JAX reads SLURM_NTASKS, which is the job's where srun is given a number of its own."""
    environment = STEP | {"SLURM_STEP_NUM_TASKS": "2"}
    found = only(process_findings(machine(tmp_path, environment=environment), Asked()))
    assert "srun started 2 tasks, but SLURM_NTASKS=8" in found.what and "srun --ntasks=8" in (found.fix or "")


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "four", "SLURM_PROCID": "0"}, "SLURM_NTASKS='four'"),
        (JOB | {"SLURM_PROCID": "-1"}, "SLURM_PROCID='-1'"),
        (OMPI | {"OMPI_COMM_WORLD_SIZE": "2.5"}, "OMPI_COMM_WORLD_SIZE='2.5'"),
    ],
)
def test_a_number_that_is_none_is_named(tmp_path, environment, name):
    """Passed over, the run would train alone."""
    found = only(process_findings(machine(tmp_path, environment=environment), Asked()))
    assert f"{name} is no number" in found.what and "set it to a whole number, or unset" in (found.fix or "")


def test_an_index_beyond_the_number_is_an_error(tmp_path):
    found = only(process_findings(machine(tmp_path, environment=OURS | {launched.PROCESS_INDEX: "2"}), Asked()))
    assert "process 2 of 2" in found.what and "0 to 1" in (found.fix or "")


@pytest.mark.parametrize(
    ("gpus", "environment", "level", "what", "fix"),
    [
        (8, STEP, "warning", "4 of 8 GPUs of this machine stay idle", "--devices-per-process 2"),
        (8, STEP | {"SLURM_STEP_TASKS_PER_NODE": "3"}, "warning", "5 of 8 GPUs", "--ntasks-per-node=8"),
        (4, STEP | {"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "1"}, None, "", ""),
        (4, STEP | {"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, "warning",
         "1 of 4 GPUs of this machine stay idle: Slurm runs 3 processes here", "--ntasks-per-node=4"),
        (4, STEP | {"SLURM_STEP_TASKS_PER_NODE": "8,2", "SLURM_NODEID": "0"}, "error", "runs 8 processes",
         "--ntasks-per-node=4"),
        (4, STEP | {"SLURM_STEP_TASKS_PER_NODE": "8,2", "SLURM_NODEID": "1"}, "warning", "2 of 4 GPUs", ""),
        (4, STEP | {"SLURM_STEP_TASKS_PER_NODE": "8,2"}, None, "", ""),
        (4, STEP | {"SLURM_STEP_TASKS_PER_NODE": "some"}, None, "", ""),
        (4, STEP | {"SLURM_STEP_TASKS_PER_NODE": "3(x99999999)"}, "warning", "1 of 4 GPUs", ""),
        (2, STEP, "error", "runs 4 processes on this machine, which take 1 GPU each, but there are 2 GPUs",
         "--ntasks-per-node=2"),
        (1, STEP | {"SLURM_GPUS_ON_NODE": "1"}, "error", "but there is 1 GPU", "--ntasks-per-node=1"),
        (1, OMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0"}, None, "", ""),
        (4, STEP, None, "", ""),
        (1, STEP | {"SLURM_GPUS_ON_NODE": "4"}, None, "", ""),
        (0, STEP, None, "", ""),
    ],
)  # fmt: skip
def test_one_gpu_a_process_leaves_none_idle_and_shares_none(
    tmp_path, set_here, monkeypatch, gpus, environment, level, what, fix
):
    """Four tasks on a machine. One visible GPU each of four given is what Slurm's binding makes."""
    monkeypatch.setattr("paceline.doctor.environment.processes.find_membership", lambda **_: None)
    found = process_findings(gpu_machine(tmp_path, gpus, environment=environment), Asked())
    if level is None:
        assert levels(found) == {"ok"}
        return
    chosen = only(found, level)
    assert what in chosen.what and fix in (chosen.fix or "")


def test_the_coordinator_of_jax_is_not_read(tmp_path):
    """Paceline has its own variable; where both are set and differ, that is said too."""
    theirs = {"JAX_COORDINATOR_ADDRESS": "node2:1234"}
    found = only(process_findings(machine(tmp_path, environment=theirs), Asked()), "warning")
    assert "not by Paceline" in found.what and launched.COORDINATOR in (found.fix or "")
    found = only(process_findings(machine(tmp_path, environment=theirs | OURS), Asked()), "warning")
    assert "differ" in found.what and found.fix == "unset JAX_COORDINATOR_ADDRESS"


def test_what_a_run_would_refuse_is_an_error_in_its_words(tmp_path):
    """An index without the rest."""
    found = only(process_findings(machine(tmp_path), Asked(process_index=1)))
    assert "do not say coordinator" in found.what and "--coordinator HOST:PORT" in (found.fix or "")


def test_what_a_run_would_take_is_told(tmp_path):
    found = only(process_findings(machine(tmp_path, environment=OURS), Asked()), "ok")
    assert found.what == "process 1 of 2 (from environment), which meet at node1:29500"
    found = only(process_findings(machine(tmp_path), Asked(processes=2)), "ok")
    assert found.what == "2 processes, which Paceline starts on this machine"


@pytest.mark.parametrize(
    ("environment", "asked", "several"),
    [({}, Asked(), False), (STEP, Asked(), True), (OURS, Asked(), True), ({}, Asked(num_processes=2), True),
     ({}, Asked(processes=1), False)],
)  # fmt: skip
def test_several_processes_are_expected_where_anything_says_so(tmp_path, environment, asked, several):
    assert several_expected(machine(tmp_path, environment=environment), asked) is several
