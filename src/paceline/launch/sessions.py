"""Sessions of processes: who is in one, and ending them all, also when the supervisor itself is killed.

Owns: finding the processes of a session, the guard that outlives a supervisor.
Not here: starting and waiting (`launch.child`).
Invariant: every process that a supervisor started, and what those started in turn, ends with it.

The guard is one small process that reads from a pipe which sessions there are. The kernel closes the pipe when the
supervisor ends, however that happens, and the guard then ends the sessions. PR_SET_PDEATHSIG would need a program of
ours between supervisor and command, would follow the thread that started it, and would reach the first process only:
not the training program behind `uv run` or a shell script.

This file is run by its path, without the package and without site-packages, so that the guard starts in 10 ms: it
imports the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

GRACE_S = 3.0
_POLL_S = 0.02
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def state_and_session(pid: int) -> tuple[str, int] | None:
    """State of a process as one letter (``T``: stopped, ``Z``: ended) and its session; None if it is not there."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may hold spaces and brackets
    except OSError:
        return None
    return fields[0].decode(), int(fields[3])


def members(sessions: Iterable[int]) -> list[int]:
    """Processes of the sessions that have not ended."""
    wanted = set(sessions)
    found = []
    for name in os.listdir("/proc") if wanted else ():
        if name.isdigit() and (seen := state_and_session(int(name))) and seen[1] in wanted and seen[0] not in "ZX":
            found.append(int(name))
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each; one that has ended meanwhile does not matter."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end(sessions: Iterable[int], *, grace_s: float = GRACE_S) -> None:
    """SIGTERM to all processes of the sessions, SIGKILL to those that are left after the grace."""
    sessions = tuple(sessions)
    send(members(sessions), signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while members(sessions) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    send(members(sessions), signal.SIGKILL)


class Guard:
    """The supervisor's side: tells a guard process which sessions to end if the supervisor dies."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, start_new_session=True
        )

    def add(self, session: int) -> None:
        """From now on the session ends with the supervisor."""
        self._tell(f"+{session}\n")

    def remove(self, session: int) -> None:
        """The session has ended; its number may come to mean another one."""
        self._tell(f"-{session}\n")

    def close(self) -> None:
        """The guard ends, together with the sessions that are left."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # somebody killed the guard: the run goes on without
            if self._process.stdin is not None:
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()


def guard() -> None:
    """The guard process: reads sessions until the pipe closes, then ends those that are left."""
    for number in _IGNORED:  # meant for the supervisor, where they reach a whole group or job step
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
    end(sessions)


if __name__ == "__main__":
    guard()
