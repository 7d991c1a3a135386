"""Which process of how many is this: variables of starters that contradict each other or the command line.

Owns: Slurm, Open MPI, Paceline's and JAX's own variables side by side; one GPU a process.
Not here: what a run makes of them (`topology.membership`, which this asks).
Invariant: only reads; nobody is waited for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.base import launched
from paceline.base.errors import PacelineError
from paceline.base.gpus import gpu_count
from paceline.base.units import format_count
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.system import System
from paceline.doctor.finding import Finding, error_finding
from paceline.topology.membership import find_membership

CHECK = "processes"

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_ADDRESS = "JAX_COORDINATOR_ADDRESS"
_SLURM_NUMBERS = ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
_OMPI_NUMBERS = (
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
)  # fmt: skip


@dataclass(frozen=True)
class Starter:
    """Who started this process, and as which of how many.

    Args:
      name: for messages.
      count_from: the variable that says how many.
      count: P.
      index: of this process; None if it is not said.
      local_index, local_count: on its machine.
    """

    name: str
    count_from: str
    count: int
    index: int | None
    local_index: int | None = None
    local_count: int | None = None


def starters(system: System) -> list[Starter]:
    """Everyone whose variables are set, in the order in which a run heeds them."""
    found = []
    if (count := system.number(launched.NUM_PROCESSES)) is not None:
        index, local = system.number(launched.PROCESS_INDEX), system.number(launched.LOCAL_INDEX)
        found.append(Starter("Paceline's launcher", launched.NUM_PROCESSES, count, index, local))
    if (count := system.number("OMPI_COMM_WORLD_SIZE")) is not None:
        found.append(
            Starter("Open MPI", "OMPI_COMM_WORLD_SIZE", count, system.number("OMPI_COMM_WORLD_RANK"),
                    system.number("OMPI_COMM_WORLD_LOCAL_RANK"), system.number("OMPI_COMM_WORLD_LOCAL_SIZE"))
        )  # fmt: skip
    if (count := system.number("SLURM_NTASKS")) is not None and system.variable("SLURM_JOB_ID"):
        found.append(
            Starter("Slurm", "SLURM_NTASKS", count, system.number("SLURM_PROCID"), system.number("SLURM_LOCALID"),
                    _tasks_here(system))
        )  # fmt: skip
    return found


def _tasks_here(system: System) -> int | None:
    """Tasks of the Slurm step on this machine; None if the variables do not tell.

    ``4(x2),3`` means 4 on each of the first two machines, 3 on the third. Source: Slurm, manual of srun, output
    environment variables.
    """
    text = system.variable("SLURM_STEP_TASKS_PER_NODE") or system.variable("SLURM_NTASKS_PER_NODE")
    found = [_TASKS.fullmatch(part.strip()) for part in text.split(",")]
    groups = [(int(group[1]), int(group[2] or 1)) for group in found if group is not None]
    if len(groups) < len(found):
        return None
    if len({tasks for tasks, _ in groups}) == 1:  # on every machine as many: which one this is does not matter
        return groups[0][0]
    place = system.number("SLURM_NODEID")
    if place is None:
        return None
    for tasks, machines in groups:
        if place < machines:
            return tasks
        place -= machines
    return None


def process_findings(system: System, asked: Asked) -> list[Finding]:
    """Contradictions, then what the run would take from all that."""
    found = [
        *_unreadable(system),
        *_counts(system, asked),
        *_slurm(system),
        *_indexes(system),
        *_shares(system, asked),
        *_coordinator(system),
    ]
    if any(finding.level == "error" for finding in found):
        return found
    try:
        membership = find_membership(
            coordinator=asked.coordinator, num_processes=asked.num_processes, index=asked.process_index,
            devices_per_process=asked.devices_per_process, environment=system.environment,
        )  # fmt: skip
    except PacelineError as error:
        return [*found, error_finding(CHECK, error)]
    if membership is not None:
        text = f"process {membership.index} of {membership.num_processes} (from {membership.origin}), "
        return [*found, Finding(CHECK, "ok", f"{text}which meet at {membership.coordinator}")]
    if asked.processes is not None and asked.processes > 1:
        return [*found, Finding(CHECK, "ok", f"{asked.processes} processes, which Paceline starts on this machine")]
    return [*found, Finding(CHECK, "ok", "a run of one process")]


def _unreadable(system: System) -> Iterator[Finding]:
    """Numbers that are none. Paceline's own are refused by `find_membership`, in the words of the run."""
    slurm = _SLURM_NUMBERS if system.variable("SLURM_JOB_ID") else ()
    for name in (*slurm, *_OMPI_NUMBERS):
        text = system.variable(name)
        if text and system.number(name) is None:
            what = f"{name}={text!r} is no number, so it is not known which of how many processes this one is"
            yield Finding(CHECK, "error", what, f"set it to a whole number, or unset {name}")


def several_expected(system: System, asked: Asked) -> bool:
    """Whether anything says that more than one process takes part."""
    return max([starter.count for starter in starters(system)] + [asked.own_processes or 1]) > 1


def _counts(system: System, asked: Asked) -> Iterator[Finding]:
    """Different numbers of processes. One is harmless: a batch script may start one that starts the others."""
    told = [(f"{starter.count_from}={starter.count} ({starter.name})", starter.count) for starter in starters(system)]
    if asked.own_processes is not None:
        flag = "--num-processes" if asked.num_processes is not None else "--processes"
        told.insert(0, (f"{flag} {asked.own_processes}", asked.own_processes))
    told = [entry for entry in told if entry[1] > 1]
    if len({count for _, count in told}) > 1:
        what = f"the number of processes is told differently: {', '.join(text for text, _ in told)}"
        fix = f"make them agree: the run would heed {told[0][0]}, and wait for that many"
        yield Finding(CHECK, "error", what, fix)
    if asked.processes is not None and asked.processes > 1 and any(s.count > 1 for s in starters(system)):
        what = f"--processes {asked.processes} in each of several processes that a scheduler started already"
        yield Finding(CHECK, "error", what, "leave --processes out: the scheduler's processes are the run's")


def _slurm(system: System) -> Iterator[Finding]:
    count = system.number("SLURM_NTASKS")
    if count is None or not system.variable("SLURM_JOB_ID"):
        return
    step = system.number("SLURM_STEP_NUM_TASKS")
    in_step = bool(system.variable("SLURM_STEP_NODELIST"))
    if count > 1 and not in_step:
        what = f"the Slurm job has {count} tasks, but this process is its script and no task: it would train alone"
        yield Finding(CHECK, "warning", what, "write srun in front of the command")
    elif in_step and step is not None and step != count:
        what = f"srun started {format_count(step, 'task')}, but SLURM_NTASKS={count}: JAX would wait for {count}"
        yield Finding(
            CHECK, "error", what, f"srun --ntasks={count}, or set SLURM_NTASKS={step} in front of the command"
        )


def _indexes(system: System) -> Iterator[Finding]:
    for starter in starters(system):
        if starter.index is not None and starter.index >= starter.count:
            what = f"{starter.name} says that this is process {starter.index} of {starter.count}"
            yield Finding(CHECK, "error", what, f"correct its variables: processes are 0 to {starter.count - 1}")


def _shares(system: System, asked: Asked) -> Iterator[Finding]:
    """One GPU a process under Slurm and Open MPI, or D where asked: too few, or some that nobody takes."""
    starter = next((starter for starter in starters(system) if starter.count > 1), None)
    if starter is None or starter.name not in ("Slurm", "Open MPI"):
        return
    each = asked.devices_per_process or system.number(launched.DEVICES_PER_PROCESS) or 1
    there = _gpus_here(system, starter, each=each)
    if there is None:
        return
    here, local = starter.local_count, starter.local_index or 0
    wanted = (here if here is not None else local + 1) * each
    gpus = format_count(there, "GPU")
    if wanted > there:
        what = f"{starter.name} runs {format_count(wanted // each, 'process')} on this machine, "
        what += f"which take {format_count(each, 'GPU')} each, but there {'is' if there == 1 else 'are'} {gpus}"
        most = max(1, there // each)
        fix = f"start {most} on a machine (srun --ntasks-per-node={most}, mpirun --npernode {most})"
        yield Finding(CHECK, "error", what, fix)
    elif here is not None and wanted < there:
        what = f"{there - wanted} of {gpus} of this machine stay idle: {starter.name} runs "
        what += f"{format_count(here, 'process')} here, and each takes {format_count(each, 'GPU')}"
        fix = f"start {there // each} on a machine (srun --ntasks-per-node={there // each})"
        fix += f", or use --devices-per-process {there // here}" if there % here == 0 else ""
        yield Finding(CHECK, "warning", what, fix)


def _gpus_here(system: System, starter: Starter, *, each: int) -> int | None:
    """GPUs that the processes on this machine share; None where there are none, or each was given its own."""
    listing, nodes = system.path("/proc/driver/nvidia/gpus"), system.path("/dev")
    visible = gpu_count(system.environment, listing=listing, nodes=nodes)
    given = system.number("SLURM_GPUS_ON_NODE") if starter.name == "Slurm" else None
    if visible == each and (given is None or given == (starter.local_count or 0) * each):
        return None
    return max(visible, given or 0) or None


def _coordinator(system: System) -> Iterator[Finding]:
    """JAX's own variable, which a Paceline run does not read, or another address than Paceline's."""
    theirs, ours = system.variable(_ADDRESS), system.variable(launched.COORDINATOR)
    if theirs and not ours:
        what = f"{_ADDRESS}={theirs} is read by jax.distributed.initialize() only, not by Paceline"
        fix = (
            f"set {launched.COORDINATOR}, {launched.NUM_PROCESSES} and {launched.PROCESS_INDEX}, or give --coordinator"
        )
        yield Finding(CHECK, "warning", what, fix)
    elif theirs and theirs != ours:
        what = f"{_ADDRESS}={theirs} and {launched.COORDINATOR}={ours} differ: Paceline heeds its own"
        yield Finding(CHECK, "warning", what, f"unset {_ADDRESS}")
