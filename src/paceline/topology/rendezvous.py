"""The processes of a run meet before JAX starts, so that one that is missing or told otherwise is named in words.

Owns: one exchange of JSON lines over TCP at the coordinator's address, which ends before JAX listens there.
Not here: who the processes are (`topology.membership`), everything after JAX's service runs (`topology.processes`).
Invariant: either all processes return, or each that can be reached raises the same ProcessError; nothing waits longer
than the time limit.

Why: with a process missing, a port taken or an address wrong, JAX's own start ends the process with SIGABRT or
SIGSEGV and a C++ trace that names none of them (measured on 0.10.2 and 0.12.0.1).
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from paceline.base.errors import ProcessError
from paceline.base.units import format_count, format_duration
from paceline.topology.membership import Membership, split_address

_RETRY_S = 0.05
_LONGEST_LINE = 65536
_GREETING = "paceline"


def meet(membership: Membership, *, timeout_s: float) -> list[str]:
    """Wait for all processes; returns the machine of each, by index.

    Raises: ProcessError: a process is missing, was given another number of processes or the index of another one, or
      process 0 cannot be reached or its port is taken.
    """
    deadline_s = time.monotonic() + timeout_s
    machine = f"{socket.gethostname()} (pid {os.getpid()})"
    hello = {"greeting": _GREETING, "index": membership.index, "count": membership.num_processes, "machine": machine}
    if membership.index == 0:
        return _Host(membership, hello, timeout_s).wait(deadline_s)
    return _visit(membership, hello, deadline_s=deadline_s, timeout_s=timeout_s)


@dataclass
class _Host:
    """Process 0: takes a hello of every other process, then answers all of them."""

    membership: Membership
    hello: dict[str, Any]
    timeout_s: float
    guests: dict[int, tuple[socket.socket, str]] = field(default_factory=dict)

    def wait(self, deadline_s: float) -> list[str]:
        port = split_address(self.membership.coordinator)[1]
        with _listening(self.membership.coordinator, port) as door:
            try:
                while len(self.guests) < self.membership.num_processes - 1:
                    self._welcome(door, deadline_s)
            except ProcessError as error:
                self._answer({"error": error.as_dict()})
                raise
            machines = [self.hello["machine"]] + [self.guests[index][1] for index in sorted(self.guests)]
            self._answer({"machines": machines})
            return machines

    def _welcome(self, door: socket.socket, deadline_s: float) -> None:
        door.settimeout(max(0.01, deadline_s - time.monotonic()))
        try:
            guest, _ = door.accept()
        except TimeoutError as error:
            raise self._missing() from error
        guest.settimeout(5.0)
        try:
            said = _read(guest)
        except (OSError, ValueError):
            guest.close()  # a port scanner, or a process that died: not one of ours
            return
        if said.get("greeting") != _GREETING or not isinstance(said.get("index"), int):
            guest.close()
            return
        index = said["index"]
        taken = self.guests.get(index)
        self.guests[index if taken is None else -1] = (guest, said["machine"])
        if said["count"] != self.membership.num_processes:
            raise ProcessError(
                what=f"process {index} on {said['machine']} was told of {format_count(said['count'], 'process')}, "
                "process 0 on "
                f"{self.hello['machine']} of {self.membership.num_processes}",
                why="some would wait for processes that nobody starts",
                fix="give all of them the same --num-processes",
            )
        if taken is not None or not 0 < index < self.membership.num_processes:
            other = self.hello["machine"] if taken is None else taken[1]
            raise ProcessError(
                what=f"two processes have the index {index}: on {other} and on {said['machine']}",
                why="both would train on the same rows",
                fix="give each its own --process-index, 0 to P - 1",
            )

    def _missing(self) -> ProcessError:
        count = self.membership.num_processes
        absent = [index for index in range(1, count) if index not in self.guests]
        names = ", ".join(str(index) for index in absent)
        return ProcessError(
            what=f"{'process' if len(absent) == 1 else 'processes'} {names} of {count} did not come to "
            f"{self.membership.coordinator} within {format_duration(self.timeout_s)}",
            why="the others would wait for ever",
            fix="look at the output of that process for why it did not start, or give it more time with --join-timeout",
        )

    def _answer(self, document: dict[str, Any]) -> None:
        for guest, _ in self.guests.values():
            try:
                _write(guest, document)
                guest.shutdown(socket.SHUT_WR)
                guest.recv(1)  # the guest closes first: a closed side keeps the port for a minute, and JAX needs it now
            except OSError:  # it died meanwhile: JAX's start will miss it
                pass
            finally:
                guest.close()


def _visit(membership: Membership, hello: dict[str, Any], *, deadline_s: float, timeout_s: float) -> list[str]:
    host, port = split_address(membership.coordinator)
    answer = None
    while answer is None:
        try:
            with socket.create_connection((host, port), timeout=max(0.05, deadline_s - time.monotonic())) as line:
                _write(line, hello)
                line.settimeout(max(0.05, deadline_s + 5.0 - time.monotonic()))  # process 0 knows best who is missing
                answer = _read(line)
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline_s:
                raise _unreachable(membership, error, timeout_s=timeout_s) from error
            time.sleep(_RETRY_S)
    if "error" in answer:
        told = answer["error"]
        raise ProcessError(what=told["what"], why=told["why"], fix=told["fix"])
    return answer["machines"]


def _unreachable(membership: Membership, error: Exception, *, timeout_s: float) -> ProcessError:
    if isinstance(error, socket.gaierror):
        return ProcessError(
            what=f"process {membership.index}: the host of coordinator {membership.coordinator} has no address: "
            f"{error.strerror}",
            why="the processes of a run meet there",
            fix="check the name, or give an IP address with --coordinator",
        )
    return ProcessError(
        what=f"process {membership.index} on {socket.gethostname()} cannot reach process 0 at "
        f"{membership.coordinator}: no answer "
        f"within {format_duration(timeout_s)} ({error})",
        why="the processes of a run meet there",
        fix="start process 0, check the address of --coordinator and that no firewall blocks its port, or wait "
        "longer with "
        "--join-timeout",
    )


def _listening(coordinator: str, port: int) -> socket.socket:
    """All interfaces, as JAX's service after it. Raises: ProcessError: the port is taken."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(
            ("", port), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024, reuse_port=False
        )
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise ProcessError(
            what=f"process 0 cannot listen at {coordinator}: "
            + ("the port is taken" if taken else error.strerror or str(error)),
            why="the processes of a run meet there",
            fix="choose another port with --coordinator HOST:PORT" + (", or stop what listens there" if taken else ""),
        ) from error


def _write(line: socket.socket, document: dict[str, Any]) -> None:
    line.sendall(json.dumps(document).encode() + b"\n")


def _read(line: socket.socket) -> dict[str, Any]:
    """One JSON object. Raises: ValueError: something else; OSError: nothing in time."""
    text = b""
    while not text.endswith(b"\n"):
        part = line.recv(4096)
        if not part or len(text) > _LONGEST_LINE:
            raise ValueError("the line ended early")
        text += part
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found
