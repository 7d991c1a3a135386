"""Starts several local processes of one Python program and collects what they print.

Owns: `start` and `run` (P processes of this machine), `finish` (one command), free ports, waiting, their end.
Not here: clusters (`slurm`, `mpi`) and namespaces (`network`), which build on this module; what the processes compute.
Invariant: nothing that was started here outlives its `with` block, nor what it started in its own session.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.base import launched

ROOT = Path(__file__).parents[2]

# What a cluster or a launcher around the tests may have set: a child would take itself for a part of that run.
_FOREIGN = ("PACELINE_", "SLURM", "SRUN_", "SBATCH_", "OMPI_", "PMIX_", "PMI_", "JAX_COORDINATOR_", "JAX_LOCAL_DEVICE")


def child_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment for a child: no variables of a cluster, unbuffered, able to import `tests`.

    Args:
      changes: set on top; None removes a variable.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    modules = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    env |= {
        "PYTHONPATH": os.pathsep.join(modules),
        "PYTHONUNBUFFERED": "1",
        # Daemons and network tools are in the last two, which a user's PATH often leaves out.
        "PATH": os.pathsep.join([env.get("PATH", os.defpath), "/usr/sbin", "/sbin"]),
    }
    changed = env | dict(changes or {})
    return {name: value for name, value in changed.items() if value is not None}


def free_port() -> int:
    """A TCP port that nobody listens on now, on any address."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def until(condition: Callable[[], object], *, timeout_s: float, what: str) -> None:
    """Polls until `condition()` is true.

    Raises:
      TimeoutError: it was not within `timeout_s`; says `what` was waited for.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout_s:g} s for: {what}")
        time.sleep(0.02)


def end_session(process: subprocess.Popen, *, grace_s: float = 0.0) -> None:
    """Ends a process that leads a session, with all that it started there: SIGTERM, then SIGKILL after `grace_s`."""
    if grace_s and process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    # The group outlives its leader while others are in it; a group without members is gone.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def finish(
    command: Sequence[str], *, env: Mapping[str, str], timeout_s: float, grace_s: float = 3.0
) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end; on a timeout it is told to end its own children before it is killed.

    Raises:
      subprocess.TimeoutExpired: holds what was printed until then.
    """
    # Files, not pipes: a grandchild that keeps a pipe open would make the reader wait for it.
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            end_session(process, grace_s=grace_s)
            raise subprocess.TimeoutExpired(command, timeout_s, _text(stdout), _text(stderr)) from None
        finally:
            end_session(process)
        return subprocess.CompletedProcess(command, process.returncode, _text(stdout), _text(stderr))


def _text(file) -> str:
    file.seek(0)
    return file.read()


@dataclasses.dataclass(frozen=True)
class Ended:
    """A process that ended: exit code (minus the signal that killed it) and all that it printed."""

    index: int
    returncode: int
    stdout: str
    stderr: str


@dataclasses.dataclass(frozen=True)
class Processes:
    """P running processes; what they print goes to files, so none ever waits for a reader."""

    popens: list[subprocess.Popen]
    folder: Path

    def stdout(self, index: int) -> str:
        """What process `index` printed so far."""
        return (self.folder / f"stdout-{index}").read_text()

    def stderr(self, index: int) -> str:
        """What process `index` wrote to stderr so far."""
        return (self.folder / f"stderr-{index}").read_text()

    def printed(self, text: str, *, timeout_s: float = 60.0, only: Sequence[int] | None = None) -> None:
        """Waits until each process (or those in `only`) has printed `text`.

        Raises:
          TimeoutError: one has not; shows what all printed.
          AssertionError: one ended without it, which is known at once.
        """
        for index in range(len(self.popens)) if only is None else only:
            self._await(index, text=text, timeout_s=timeout_s)

    def _await(self, index: int, *, text: str, timeout_s: float) -> None:
        try:
            until(
                lambda: text in self.stdout(index) or index not in self.running(),
                timeout_s=timeout_s,
                what=f"{text!r} from process {index}",
            )
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self._all_output()}") from None
        # Read again: it may have printed that as its last words.
        assert text in self.stdout(index), f"process {index} ended without {text!r}\n{self._all_output()}"

    def signal(self, index: int, number: signal.Signals) -> None:
        """Sends a signal to process `index` alone."""
        self.popens[index].send_signal(number)

    def wait(self, timeout_s: float) -> list[Ended]:
        """Waits until all have ended.

        Raises:
          TimeoutError: some had not; names them and shows what all printed. They are killed when the block ends.
        """
        try:
            until(lambda: not self.running(), timeout_s=timeout_s, what="the end of every process")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; still running: {self.running()}\n{self._all_output()}") from None
        return [
            Ended(index, popen.returncode, self.stdout(index), self.stderr(index))
            for index, popen in enumerate(self.popens)
        ]

    def running(self) -> list[int]:
        """Indices of the processes that have not ended."""
        return [index for index, popen in enumerate(self.popens) if popen.poll() is None]

    def _all_output(self) -> str:
        parts = []
        for index, popen in enumerate(self.popens):
            parts.append(f"--- process {index} (exit code {popen.poll()})")
            parts.append((self.stdout(index) + self.stderr(index))[-4000:])
        return "\n".join(parts)


@contextmanager
def start(
    arguments: Sequence[str | Path],
    *,
    processes: int = 2,
    devices_per_process: int = 1,
    env: Mapping[str, str | None] | None = None,
    coordinator: str | None = None,
    command: Callable[[int, list[str]], list[str]] = lambda index, command: command,
) -> Iterator[Processes]:
    """Starts P processes of this Python, told of each other as a supervisor would (`paceline.base.launched`).

    Args:
      arguments: what follows the interpreter: a script and its arguments, or `["-m", module, ...]`.
      env: changes to the environment of all; None removes a variable.
      coordinator: `host:port` of process 0; a free port of this machine if None.
      command: makes the command of process `index` from the plain one; `network.command` puts it on one side.
    """
    where = coordinator or f"127.0.0.1:{free_port()}"
    shared = {
        launched.COORDINATOR: where,
        launched.NUM_PROCESSES: str(processes),
        launched.DEVICES_PER_PROCESS: str(devices_per_process),
    }
    with tempfile.TemporaryDirectory(prefix="paceline-processes-") as name:
        running = Processes([], Path(name))
        try:
            for index in range(processes):
                own = {launched.PROCESS_INDEX: str(index), launched.LOCAL_INDEX: str(index)}
                running.popens.append(
                    _start_one(
                        command(index, [sys.executable, *map(str, arguments)]),
                        index=index,
                        folder=running.folder,
                        env=child_environment(shared | own | dict(env or {})),
                    )
                )
            yield running
        finally:
            for popen in running.popens:
                end_session(popen)


def _start_one(command: list[str], *, index: int, folder: Path, env: Mapping[str, str]) -> subprocess.Popen:
    with (folder / f"stdout-{index}").open("w") as stdout, (folder / f"stderr-{index}").open("w") as stderr:
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )


def run(arguments: Sequence[str | Path], *, timeout_s: float, **options) -> list[Ended]:
    """Starts P processes (options of `start`) and waits for their end; whatever is left after `timeout_s` is killed.

    Raises:
      TimeoutError: some had not ended in time; shows what all printed.
    """
    with start(arguments, **options) as running:
        return running.wait(timeout_s)
