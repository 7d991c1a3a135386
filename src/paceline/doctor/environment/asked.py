"""What the command line says of devices and processes, as far as the environment checks need it.

Imports no jax.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """The options of a run that its environment has to match; None where nothing is asked.

    Args:
      devices: K.
      simulate: simulated CPU devices.
      processes: started on this machine by Paceline.
      coordinator, num_processes, process_index, devices_per_process: as for `paceline.initialize`.
      compilation_cache: folder.
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
