"""Which process this is: from arguments, environment or scheduler; half an answer is an error, never a run of one."""

from __future__ import annotations

import sys
import types
import warnings

import pytest

from paceline.base import launched
from paceline.base.errors import ProcessError
from paceline.base.gpus import gpu_count
from paceline.launch import machine
from paceline.topology import membership
from paceline.topology.membership import Membership, find_membership, split_address, visible_gpus

SLURM = {
    "SLURM_JOB_ID": "4100",
    "SLURM_STEP_NODELIST": "node[001-002],other",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
OPEN_MPI_4 = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    """No cluster around the tests."""
    for name in (*SLURM, *OPEN_MPI_4, *launched.ALL, "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "JOB_COMPLETION_INDEX",
                 "KUBERNETES_SERVICE_HOST", "JAX_COORDINATOR_PORT"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


def setenv(monkeypatch, values):
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_nothing_said_is_a_run_of_one_process():
    """So are one process by argument and by environment."""
    assert find_membership() is None
    assert find_membership(num_processes=1) is None
    assert find_membership(environment={launched.NUM_PROCESSES: "1", launched.PROCESS_INDEX: "0"}) is None


def test_arguments_come_before_the_environment(monkeypatch):
    """Three arguments are enough, whatever the scheduler says."""
    setenv(monkeypatch, SLURM)
    found = find_membership(coordinator="10.0.0.1:29500", num_processes=2, index=1)
    assert found == Membership("10.0.0.1:29500", 2, 1)


def test_the_supervisor_says_all():
    """Its variables give index, count, place on the machine and devices."""
    said = {
        launched.COORDINATOR: "[fe80::1]:29500",
        launched.NUM_PROCESSES: "4",
        launched.PROCESS_INDEX: "3",
        launched.LOCAL_INDEX: "1",
        launched.DEVICES_PER_PROCESS: "2",
    }
    assert find_membership(environment=said) == Membership("[fe80::1]:29500", 4, 3, 1, 2, "environment")
    assert split_address("[fe80::1]:29500") == ("fe80::1", 29500)


def test_slurm_says_all(monkeypatch):
    """The first node, a port from the job's number (61440 + 4100 % 4096 = 61444), the task's numbers."""
    setenv(monkeypatch, SLURM)
    assert find_membership() == Membership("node001:61444", 4, 3, 1, None, "Slurm")
    assert find_membership(devices_per_process=2) == Membership("node001:61444", 4, 3, 1, 2, "Slurm")


def test_open_mpi_says_all(monkeypatch):
    """mpirun's machine, a port from its number (1531576320 / 4096 = 373920; 61440 + 373920 % 4096 = 62624)."""
    setenv(monkeypatch, OPEN_MPI_4)
    assert find_membership() == Membership("10.96.0.1:62624", 2, 1, 1, None, "OpenMPI")


@pytest.mark.parametrize("scheduler", [SLURM, OPEN_MPI_4])
def test_one_task_is_a_run_of_one_process(monkeypatch, scheduler):
    """`srun -n 1` and `mpirun -n 1` need no peers."""
    setenv(monkeypatch, scheduler | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_SIZE": "1"})
    assert find_membership() is None


@pytest.mark.parametrize(
    ("given", "missing", "fix"),
    [
        ({"coordinator": "a:1"}, "num_processes, process_index", "--num-processes P, --process-index I"),
        ({"num_processes": 2}, "coordinator, process_index", "--coordinator HOST:PORT"),
        ({"index": 0}, "coordinator, num_processes", "--coordinator HOST:PORT"),
        ({"coordinator": "a:1", "num_processes": 2}, "process_index", "--process-index I"),
    ],
)
def test_half_an_answer_names_the_other_half(given, missing, fix):
    """Some of the three arguments without the others."""
    with pytest.raises(ProcessError) as error:
        find_membership(**given)
    assert error.value.what == f"the arguments do not say {missing}"
    assert fix in error.value.fix


def test_half_an_environment_names_its_variables():
    """The fix speaks of variables where they were used."""
    with pytest.raises(ProcessError) as error:
        find_membership(environment={launched.NUM_PROCESSES: "2"})
    assert error.value.what == "the environment does not say coordinator, process_index"
    assert launched.COORDINATOR in error.value.fix and "--" not in error.value.fix


@pytest.mark.parametrize("name", [launched.NUM_PROCESSES, launched.PROCESS_INDEX, launched.LOCAL_INDEX])
@pytest.mark.parametrize("text", ["two", "", "-1", "1.5"])
def test_a_value_that_is_no_number_is_named(name, text):
    """The variable, its text and the way out."""
    said = {launched.COORDINATOR: "a:1", launched.NUM_PROCESSES: "2", launched.PROCESS_INDEX: "1", name: text}
    with pytest.raises(ProcessError) as error:
        find_membership(environment=said)
    assert error.value.what == f"{name}={text!r} is no number"
    assert f"unset {name}" in error.value.fix


@pytest.mark.parametrize("index", [2, -1])
def test_an_index_beyond_the_processes_is_refused(index):
    """The numbers that would do are named."""
    with pytest.raises(ProcessError, match=f"process {index} of 2") as error:
        find_membership(coordinator="a:1", num_processes=2, index=index)
    assert error.value.fix == "use 0 to 1"


@pytest.mark.parametrize("address", ["10.0.0.1", "host:", ":29500", "host:port", "host:0", "host:65536"])
def test_an_address_without_host_or_port_is_refused(address):
    """The fix shows the form."""
    with pytest.raises(ProcessError) as error:
        find_membership(coordinator=address, num_processes=2, index=0)
    assert address in error.value.what and "such as 10.0.0.1:29500" in error.value.fix


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "MPI"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "MPI started 2 processes"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, "Slurm started 2 processes"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETION_INDEX"),
    ],
)
def test_several_processes_never_train_alone(monkeypatch, said, named):
    """A starter that JAX cannot ask (Open MPI 5, MPICH, a pod without the client library) is an error, not P runs."""
    setenv(monkeypatch, said)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ProcessError) as error, warnings.catch_warnings(action="ignore"):  # of JAX, about that library
        find_membership()
    assert named in str(error.value)
    assert "--coordinator HOST:PORT" in error.value.fix
    assert find_membership(coordinator="a:1", num_processes=2, index=0) == Membership("a:1", 2, 0)


def test_any_other_pod_is_a_run_of_one_process(monkeypatch):
    """A pod that is not of an indexed job is not asked for its peers, so it needs no rights to see them."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setitem(sys.modules, "kubernetes", types.ModuleType("kubernetes"))
    assert find_membership() is None


def test_a_scheduler_that_cannot_be_read_is_named(monkeypatch):
    """A variable that Slurm always sets is nonsense."""
    setenv(monkeypatch, SLURM | {"SLURM_PROCID": "three"})
    with pytest.raises(ProcessError, match="Slurm started several processes") as error:
        find_membership()
    assert "--process-index I" in error.value.fix


def gpus(visible, *, place=None, wanted=None, origin="environment"):
    return Membership("a:1", 8, 0, place, wanted, origin).gpus(visible)


def test_each_process_takes_its_own_gpus():
    """Place l with D each takes l * D to l * D + D - 1."""
    assert gpus(8, place=0, wanted=2) == [0, 1]
    assert gpus(8, place=3, wanted=2) == [6, 7]
    assert gpus(8, place=5, origin="Slurm") == [5]
    assert gpus(2, place=1, origin="OpenMPI") == [1]


def test_gpus_that_the_scheduler_has_bound_are_all_taken():
    """As many visible as wanted: they are this task's; nothing asked for outside a scheduler takes all."""
    assert gpus(1, place=5, origin="Slurm") is None
    assert gpus(2, place=1, wanted=2) is None
    assert gpus(0, place=1, wanted=1) is None
    assert gpus(8) is None
    assert gpus(8, place=3) is None


@pytest.mark.parametrize(("visible", "place", "wanted", "taken"), [(3, 1, 2, "2 to 3"), (4, 4, None, "4 to 4")])
def test_more_processes_than_gpus_is_refused(visible, place, wanted, taken):
    """Which it would take, how many there are, and two ways out."""
    with pytest.raises(ProcessError) as error:
        gpus(visible, place=place, wanted=wanted, origin="Slurm")
    assert f"takes the GPUs {taken}, but {visible} are visible" in error.value.what
    assert "fewer processes" in error.value.fix and "--devices-per-process" in error.value.fix


def test_visible_gpus_are_counted_as_the_launcher_counts_them():
    """One count for the supervisor and for the processes that it starts: JAX_PLATFORMS and wrong entries included."""
    assert visible_gpus() == gpu_count()
    assert membership.gpu_count is gpu_count and machine.gpu_count is gpu_count


def test_a_free_port_can_be_listened_on():
    """A number that a server may take."""
    assert 0 < membership.free_port() < 65536
