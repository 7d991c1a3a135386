"""One process of a run, as its supervisor holds it.

Owns: its environment (`base.launched`), its session, its log, its end, the signals that it is sent.
Not here: what its end means for the others (`launch.attempt`).
Invariant: stdout and stderr go straight to the log's descriptor, so that nothing is lost whoever dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.base import launched
from paceline.base.errors import ProcessError
from paceline.launch.sessions import members, send, state_and_session
from paceline.launch.settings import Launch, runnable
from paceline.telemetry.status import StatusRecord, read_status, stacks_path, status_path

_WORKING = ("compile", "input", "step", "checkpoint", "evaluation")

CACHE = {"JAX_COMPILATION_CACHE_DIR": "compilation-cache", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
"""JAX's own names: where compiled programs are kept, and from which compile time [s] on."""


@dataclass
class Child:
    """A process that was started.

    Args:
      index: global process index.
      process: the process, leader of a session of its own.
      folder: of logs and status.
      log: file of its output.
      log_start: bytes that the log held before this attempt.
      ended_s: `time.monotonic` when its end was seen; None while it runs.
      stopped: the supervisor told it to end.
      is_gone: so is its whole session, whose number may come to mean another one.
    """

    index: int
    process: subprocess.Popen[bytes]
    folder: Path
    log: Path
    log_start: int
    ended_s: float | None = None
    stopped: bool = False
    is_gone: bool = False

    @property
    def session(self) -> int:
        """Id of its session: that of its first process."""
        return self.process.pid

    @property
    def code(self) -> int | None:
        """Exit code, minus the number of the signal that killed it, or None while it runs."""
        return self.process.returncode

    @property
    def is_alive(self) -> bool:
        """Whether its end has not been seen."""
        return self.ended_s is None

    @property
    def has_left(self) -> bool:
        """Whether it ended with exit code 0, as if all were done, in the middle of a run: `os._exit(0)` does that."""
        if self.code != 0 or self.stopped:
            return False
        record = self.status()
        return record is not None and record.phase in _WORKING

    @property
    def has_failed(self) -> bool:
        """Whether it ended otherwise than with all its work done."""
        return self.code not in (0, None) or self.has_left

    def look(self) -> None:
        """See whether it has ended."""
        if self.ended_s is None and self.process.poll() is not None:
            self.ended_s = time.monotonic()

    def status(self) -> StatusRecord | None:
        """What it last told of itself; None if it tells nothing."""
        return read_status(status_path(self.folder, self.index))

    def trainer(self) -> int:
        """The process that trains: the one that tells its status, or the first, where a script stands before it."""
        record = self.status()
        seen = state_and_session(record.pid) if record else None
        return record.pid if record and seen and seen[1] == self.session else self.session

    def is_suspended(self) -> bool:
        """Whether it was stopped as by SIGSTOP, and so can do nothing."""
        seen = state_and_session(self.trainer())
        return seen is not None and seen[0] == "T"

    def signal(self, number: int) -> None:
        """Send a signal to the process that trains; its workers are its own affair."""
        self.look()  # what ended before the signal was not stopped by it
        if self.is_alive:
            self.stopped = self.stopped or number in (signal.SIGTERM, signal.SIGKILL)
            send([self.trainer()], number)

    def leftovers(self) -> list[int]:
        """Processes of its session that still run."""
        return members([self.session])

    def kill(self) -> None:
        """SIGKILL to its whole session."""
        self.look()
        self.stopped = self.stopped or self.is_alive
        send(self.leftovers(), signal.SIGKILL)


def start(launch: Launch, index: int, *, folder: Path, attempt: int, coordinator: str) -> Child:
    """Start one process in a session of its own.

    Args:
      launch: what to run.
      index: global process index.
      folder: for logs and status.
      attempt: 0, or one more for each restart.
      coordinator: ``host:port`` of process 0.

    Raises: ProcessError: the system refuses to start it. RunFolderError is for `settings.make_logs`, before.
    """
    for path in (status_path(folder, index), stacks_path(folder, index)):
        path.unlink(missing_ok=True)  # of an earlier attempt: its step and pid would be taken for this one's
    log = folder / f"process-{index}.log"
    environment = environment_of(launch, index, folder=folder, attempt=attempt, coordinator=coordinator)
    try:
        with open(log, "ab") as file:
            if file.tell():
                file.write(f"\npaceline launch: attempt {attempt}\n".encode())
                file.flush()
            log_start = file.tell()
            process = _popen(runnable(launch.command), environment, log=file.fileno())
    except OSError as error:
        raise ProcessError(
            what=f"process {index} cannot be started: {error.strerror or error}",
            why="a run needs all of its processes",
            fix=f"see that {launch.command[0]!r} can be run, and that {str(folder)!r} can be written",
        ) from error
    return Child(index, process, folder, log, log_start)


def environment_of(
    launch: Launch,
    index: int,
    *,
    folder: Path,
    attempt: int,
    coordinator: str,
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The environment of a process: that of the supervisor and the names of `base.launched`."""
    environment = {name: value for name, value in base.items() if name not in launched.ALL}
    environment |= {
        launched.COORDINATOR: coordinator,
        launched.NUM_PROCESSES: str(launch.nodes * launch.processes),
        launched.PROCESS_INDEX: str(index),
        launched.LOCAL_INDEX: str(index - launch.indices[0]),
        launched.LAUNCH_FOLDER: str(folder),
        launched.ATTEMPT: str(attempt),
    }
    if launch.devices_per_process is not None:
        environment[launched.DEVICES_PER_PROCESS] = str(launch.devices_per_process)
    environment.setdefault("PYTHONUNBUFFERED", "1")  # else output to a file comes late, and not at all after SIGKILL
    if launch.max_restarts and not any(name in base for name in CACHE):
        folder_name, seconds = CACHE
        environment |= {folder_name: str(folder / CACHE[folder_name]), seconds: CACHE[seconds]}
    return environment


def _popen(command: Sequence[str], environment: Mapping[str, str], *, log: int) -> subprocess.Popen[bytes]:
    """No preexec_fn: Python code between fork and exec can deadlock on a lock that another thread held."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
