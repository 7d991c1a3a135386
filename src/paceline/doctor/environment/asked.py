"""What the command line says of devices and processes, as far as the environment checks need it.

Imports no jax.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """The options of a run that its environment has to match; None where nothing is asked.

    Args:
      devices: number of devices (default: all that are visible).
      simulate: simulate so many CPU devices on this machine.
      processes: of a run on this machine.
      coordinator: host:port of process 0.
      num_processes: how many processes train together.
      process_index: which of them this one is.
      devices_per_process: GPUs of a process.
      compilation_cache: folder that keeps compiled programs between runs.
    """

    devices: int | None = None
    simulate: int | None = None
    processes: int | None = None
    coordinator: str | None = None
    num_processes: int | None = None
    process_index: int | None = None
    devices_per_process: int | None = None
    compilation_cache: str | None = None

    @property
    def own_processes(self) -> int | None:
        """P as the command line says it."""
        return self.num_processes if self.num_processes is not None else self.processes
