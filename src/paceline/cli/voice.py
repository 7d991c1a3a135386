"""Of several processes, who speaks for all, and how each of them ends.

Owns: which process writes what all have in common, who prints an error that all have, the end of a process whose
peers may wait for it.
This module imports no jax: before the processes are joined it reads what their starter says in the environment.
"""

from __future__ import annotations

import os
import sys

from paceline.base import launched
from paceline.base.errors import PacelineError, PeerError
from paceline.topology.rendezvous import UnreachableError


def is_first() -> bool:
    """Whether this is process 0, which writes what all have in common."""
    team = sys.modules.get("paceline.topology.processes")
    if team is not None and team.processes().several:
        return team.processes().index == 0
    return os.environ.get(launched.PROCESS_INDEX, "0") == "0" and not _is_later_task()


def speaks(error: PacelineError) -> bool:
    """Whether this process is to print the error: all of them do, unless they end with the same one.

    Under a supervisor of ours each prints into a log of its own, and the supervisor shows what is the same once.
    """
    team = sys.modules.get("paceline.topology.processes")
    if isinstance(error, UnreachableError | PeerError):  # what it says, this process alone knows
        return True
    if team is None or not team.processes().several:
        return not _is_later_task()
    own = team.processes()
    return not own.same_everywhere(error) or own.index == 0 or launched.LAUNCH_FOLDER in os.environ


def _is_later_task() -> bool:
    """Before the join: a further task of a scheduler that started several. A supervisor of ours merges their errors
    itself."""
    if launched.NUM_PROCESSES in os.environ:
        return False
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    slurm = tasks.isdigit() and int(tasks) > 1 and os.environ.get("SLURM_PROCID", "0") != "0"
    return slurm or os.environ.get("OMPI_COMM_WORLD_RANK", "0") != "0"


def leave(code: int, *, at_once: bool = False) -> int:
    """The end of this process; see `topology.processes.leave`."""
    team = sys.modules.get("paceline.topology.processes")
    if team is None:
        return code
    if at_once and team.processes().several:
        team.exit_now(code)
    return team.leave(code)
