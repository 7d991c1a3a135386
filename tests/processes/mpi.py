"""Open MPI on this machine.

Owns: `Mpi.run`, one `mpirun` to its end.
Not here: Slurm, the network; when to skip beyond Open MPI itself.
Invariant: after `run` returns or raises, none of its processes is left.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping, Sequence

from tests.processes.need import require_own_name, require_tools
from tests.processes.run import child_environment, finish


@dataclasses.dataclass(frozen=True)
class Mpi:
    """`mpirun` of this machine."""

    mpirun: str

    def run(
        self,
        command: Sequence[str],
        *,
        processes: int,
        env: Mapping[str, str | None] | None = None,
        timeout_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """`mpirun -n P COMMAND`, over the loopback interface, as any user.

        Args:
          env: changes to this process's environment; None removes a variable.
        Raises:
          subprocess.TimeoutExpired: not over within `timeout_s`; every process was stopped.
        """
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "oob_tcp_if_include", "lo"]
        # One machine: nothing is started over ssh, which a small image does not have.
        options += ["--mca", "plm", "isolated", "-n", str(processes)]
        return finish([self.mpirun, *options, *command], env=child_environment(env), timeout_s=timeout_s)


def open_mpi() -> Mpi:
    """Open MPI, or a skip that names what is absent."""
    paths = require_tools({"mpirun": "openmpi-bin"})
    require_own_name()
    return Mpi(paths["mpirun"])
