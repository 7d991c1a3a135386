"""Which process of a run this one is, and where process 0 listens.

Owns: explicit values, the environment of Paceline's supervisor, Slurm, OpenMPI and Kubernetes (the latter three by
JAX's own detection), the share of GPUs that a process takes, a free port.
Not here: meeting the others (`topology.rendezvous`), starting JAX's service (`topology.processes`).
Invariant: values that contradict each other are an error; nothing falls back to a run of one process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.base import launched
from paceline.base.errors import PacelineError, ProcessError
from paceline.base.gpus import gpu_count

_SCHEDULERS = {"SlurmCluster": "Slurm", "OmpiCluster": "OpenMPI", "K8sCluster": "Kubernetes"}
_COUNTS = {"OMPI_COMM_WORLD_SIZE": "OpenMPI", "PMI_SIZE": "MPI", "SLURM_STEP_NUM_TASKS": "Slurm"}
"""Where starters of processes say how many they started."""
_POD_INDEX = "JOB_COMPLETION_INDEX"


@dataclass(frozen=True)
class Membership:
    """What a process must know to join the others.

    Args:
      coordinator: ``host:port`` of process 0.
      num_processes: P.
      index: of this process, 0 to P - 1.
      local_index: of this process on its machine, or None if nothing tells.
      devices_per_process: D asked for, or None.
      origin: who said so, for messages.
    """

    coordinator: str
    num_processes: int
    index: int
    local_index: int | None = None
    devices_per_process: int | None = None
    origin: str = "arguments"

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.num_processes:
            raise ProcessError(
                what=f"process {self.index} of {self.num_processes} (from {self.origin})",
                why="processes are numbered from 0",
                fix=f"use 0 to {self.num_processes - 1}",
            )
        split_address(self.coordinator, self.origin)

    def gpus(self, visible: int) -> list[int] | None:
        """The GPUs of this process among `visible` ones of its machine; None takes all.

        Raises: ProcessError: not so many GPUs.
        """
        wanted, place = self.devices_per_process, self.local_index
        if wanted is None and (place is None or self.origin not in ("Slurm", "OpenMPI")):
            return None
        wanted, place = wanted or 1, place or 0
        if visible in (0, wanted):  # the scheduler has bound the right ones to the task already
            return None
        if visible < (place + 1) * wanted:
            raise ProcessError(
                what=f"as number {place} on its machine it takes the GPUs {place * wanted} to "
                f"{(place + 1) * wanted - 1}, but {visible} are visible",
                why="two processes would share a GPU",
                fix="start fewer processes on a machine, or use --devices-per-process with a smaller number",
            )
        return list(range(place * wanted, (place + 1) * wanted))


def find_membership(
    *,
    coordinator: str | None = None,
    num_processes: int | None = None,
    index: int | None = None,
    devices_per_process: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Membership | None:
    """What the arguments, else the environment, else the scheduler say; None for a run of one process.

    Raises: ProcessError: some of the three values without the others, a value that is no number, a coordinator without
      port, several processes without a way to learn the rest.
    """
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_index": index}
    if any(value is not None for value in given.values()):
        return _complete(given, origin="arguments", local_index=None, devices_per_process=devices_per_process)
    if launched.NUM_PROCESSES in environment:
        return _from_environment(environment, devices_per_process)
    return _from_scheduler(devices_per_process)


def _from_environment(environment: Mapping[str, str], devices_per_process: int | None) -> Membership | None:
    given = {
        "coordinator": environment.get(launched.COORDINATOR),
        "num_processes": _number(environment, launched.NUM_PROCESSES),
        "process_index": _number(environment, launched.PROCESS_INDEX),
    }
    return _complete(
        given,
        origin="environment",
        local_index=_number(environment, launched.LOCAL_INDEX),
        devices_per_process=devices_per_process or _number(environment, launched.DEVICES_PER_PROCESS),
    )


def _complete(
    given: Mapping[str, object], *, origin: str, local_index: int | None, devices_per_process: int | None
) -> Membership | None:
    if given["num_processes"] == 1 and not given["process_index"]:
        return None
    missing = [name for name, value in given.items() if value is None]
    if missing:
        names = ("--coordinator HOST:PORT", "--num-processes P", "--process-index I")
        variables = (launched.COORDINATOR, launched.NUM_PROCESSES, launched.PROCESS_INDEX)
        raise ProcessError(
            what=f"the {origin} do not say {', '.join(missing)}".replace("environment do", "environment does"),
            why="a process joins the others by all three: where process 0 is, how many there are, which one it is",
            fix="give " + ", ".join(variables if origin == "environment" else names),
        )
    return Membership(
        str(given["coordinator"]), int(str(given["num_processes"])), int(str(given["process_index"])),
        local_index, devices_per_process, origin,
    )  # fmt: skip


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not text.strip().isdigit():
        raise ProcessError(
            what=f"{name}={text!r} is no number",
            why="it says which of the processes this one is, and how many there are",
            fix=f"set it to a whole number, or unset {name}",
        )
    return int(text)


def _from_scheduler(devices_per_process: int | None) -> Membership | None:
    """What JAX's own detection finds: its classes are asked for the values only, so that the meeting is ours."""
    from jax._src import clusters  # its public form, jax.distributed.initialize, does not tell what it found

    name = "the scheduler"
    try:
        known = [kind for kind in clusters.ClusterEnv._cluster_types if _is_known(kind)]
        found = next((kind for kind in known if kind.is_env_present()), None)
        if found is None:
            return _refuse_unknown(os.environ)
        name = _SCHEDULERS[found.__name__]
        if found.get_process_count() == 1:
            return None
        address = found.get_coordinator_address(
            timeout_secs=60, override_coordinator_port=os.environ.get("JAX_COORDINATOR_PORT")
        )
        return Membership(
            address, found.get_process_count(), found.get_process_id(), found.get_local_process_id(),
            devices_per_process, name,
        )  # fmt: skip
    except PacelineError:
        raise
    except Exception as error:
        raise ProcessError(
            what=f"{name} started several processes, but not all of what they need can be read: {error}",
            why="each would train alone, on all of the data",
            fix="give --coordinator HOST:PORT, --num-processes P and --process-index I yourself",
        ) from error


def _is_known(kind: type) -> bool:
    """Whether JAX's class is asked. Any pod of Kubernetes may hold a run of one process; an indexed job says more."""
    return kind.__name__ in _SCHEDULERS and (kind.__name__ != "K8sCluster" or _POD_INDEX in os.environ)


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """Raises: ProcessError: one of several processes, whose scheduler JAX does not know or cannot ask."""
    for variable, name in _COUNTS.items():
        if environment.get(variable, "1") not in ("", "0", "1"):
            what = f"{name} started {environment[variable]} processes ({variable}), but JAX cannot tell where they meet"
            break
    else:
        if _POD_INDEX not in environment or "KUBERNETES_SERVICE_HOST" not in environment:
            return
        what = (
            f"this is a pod of an indexed job ({_POD_INDEX}), and Python's package kubernetes is not there to ask for"
        )
        what += " the others"
    raise ProcessError(
        what=what,
        why="each would train alone, on all of the data",
        fix="give --coordinator HOST:PORT, --num-processes P and --process-index I, or --num-processes 1 for a run of "
        "its own; paceline launch does it for you",
    )


def split_address(address: str, origin: str = "arguments") -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``. Raises: ProcessError: it has another form."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ProcessError(
            what=f"coordinator {address!r} (from {origin}) is no host:port",
            why="the processes of a run meet there",
            fix="give the address of the machine of process 0 and a free port, such as 10.0.0.1:29500",
        )
    return host.strip("[]"), int(port)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def visible_gpus() -> int:
    """NVIDIA GPUs that this process may use, without starting a driver; 0 if there are none or JAX is to use CPUs."""
    return gpu_count()
