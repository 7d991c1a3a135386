"""The processes of a run meet before JAX starts, so that one that is missing or told otherwise is named in words.

Owns: one exchange of JSON lines over TCP at the coordinator's address, which ends before JAX listens there.
Not here: who the processes are (`topology.membership`), everything after JAX's service runs (`topology.processes`).
Invariant: either all processes return, or each that can be reached raises the same error; nothing waits longer than
the time limit, whoever else talks to the port.

Why: with a process missing, a port taken or an address wrong, JAX's own start ends the process with SIGABRT or
SIGSEGV and a C++ trace that names none of them (measured on 0.10.2 and 0.12.0.1).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from paceline.base.errors import PacelineError, ProcessError, error_from
from paceline.base.units import format_count, format_duration
from paceline.topology.membership import Membership, split_address

_RETRY_S = 0.05
_LONGEST_LINE = 65536
_GREETING = "paceline"
_LINGER_S = 3.0
"""How long process 0 tells an error to those that come later: they would wait for it in vain."""
_ALONE_S = 3.0
"""How long a process with an error of its own looks for process 0, to tell it."""
_CONNECT_S = 3.0
"""How long one try to connect lasts: the kernel sends a lost first packet again after 1, 2, 4, ... seconds."""
_HEARD_S = 30.0
"""How long process 0 stays until all have read that all are here: a network that loses packets brings it late."""


class UnreachableError(ProcessError):
    """Process 0 was not reached: this process alone can say so."""


def meet(membership: Membership, *, timeout_s: float, problem: PacelineError | None = None) -> list[str]:
    """Wait for all processes; returns the machine of each, by index.

    Args:
      problem: why this process cannot go on; it is raised in all of them.
    Raises: ProcessError: a process is missing, was given another number of processes or the index of another one, or
      process 0 cannot be reached or its port is taken. The problem of this or another process.
    """
    deadline_s = time.monotonic() + timeout_s
    machine = f"{socket.gethostname()} (pid {os.getpid()})"
    hello = {"greeting": _GREETING, "index": membership.index, "count": membership.num_processes, "machine": machine}
    if problem is not None:
        problem = _of_process(problem, membership.index, machine)
        hello["problem"] = problem.as_dict()
    if membership.index == 0:
        return _Host(membership, machine, timeout_s, problem).wait(deadline_s)
    return _Visit(membership, hello, timeout_s, problem).answer(deadline_s)


def _of_process(problem: PacelineError, index: int, machine: str) -> PacelineError:
    """The same error, with the process that has it."""
    return error_from(problem.as_dict() | {"what": f"process {index} on {machine}: {problem.what}"})


@dataclass
class _Guest:
    """A connection to process 0: `said` is its hello, None until its line is whole."""

    line: socket.socket
    text: bytes = b""
    said: dict[str, Any] | None = None


@dataclass
class _Host:
    """Process 0: takes a hello of every other process, then answers all of them."""

    membership: Membership
    machine: str
    timeout_s: float
    problem: PacelineError | None
    guests: dict[int, _Guest] = field(default_factory=dict)
    told: list[_Guest] = field(default_factory=list)
    gone: dict[int, str] = field(default_factory=dict)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def wait(self, deadline_s: float) -> list[str]:
        with _listening(self.membership.coordinator) as door, self.selector:
            self.selector.register(door, selectors.EVENT_READ)
            wait_s = _LINGER_S
            try:
                self._gather(door, deadline_s)
                machines = [self.machine] + [_machine(self.guests[index]) for index in sorted(self.guests)]
                self._tell({"machines": machines})
                wait_s = _HEARD_S
                return machines
            finally:
                self._close(wait_s)

    def _gather(self, door: socket.socket, deadline_s: float) -> None:
        try:
            if self.problem is not None:
                raise self.problem
            while len(self.guests) < self.membership.num_processes - 1:
                self._turn(door, deadline_s)
                if time.monotonic() > deadline_s:
                    raise self._missing()
        except PacelineError as error:
            self._refuse(door, error)
            raise

    def _turn(self, door: socket.socket, deadline_s: float) -> None:
        """One wait for whatever comes first. All at once, so that one that says nothing keeps nobody out."""
        for key, _ in self.selector.select(max(0.0, deadline_s - time.monotonic())):
            if key.fileobj is door:
                line, _ = door.accept()
                line.setblocking(False)
                self.selector.register(line, selectors.EVENT_READ, _Guest(line))
            else:
                self._hear(key.data)

    def _hear(self, guest: _Guest) -> None:
        try:
            part = guest.line.recv(4096)
        except OSError:
            part = b""
        guest.text += part
        if not part or len(guest.text) > _LONGEST_LINE:
            self._drop(guest)
        elif guest.said is None and b"\n" in guest.text:
            guest.said = _hello(guest.text)
            if guest.said is None:  # a port scanner, or a process that is not one of ours
                self._drop(guest)
            else:
                self._admit(guest, guest.said)

    def _drop(self, guest: _Guest) -> None:
        self.selector.unregister(guest.line)
        # Reset, not closed: a side that closes first keeps the port for a minute, and JAX needs it now.
        guest.line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        guest.line.close()
        if guest.said is not None and self.guests.get(guest.said["index"]) is guest:
            self.gone[guest.said["index"]] = _machine(guest)
            del self.guests[guest.said["index"]]

    def _admit(self, guest: _Guest, said: dict[str, Any]) -> None:
        """Raises: ProcessError: it was told otherwise. The problem that it has."""
        index, count = said["index"], self.membership.num_processes
        self.told.append(guest)
        if said["count"] != count:
            raise ProcessError(
                what=f"process {index} on {_machine(guest)} was told of {format_count(said['count'], 'process')}, "
                f"process 0 on {self.machine} of {count}",
                why="some would wait for processes that nobody starts",
                fix="give all of them the same --num-processes",
            )
        if index in self.guests or not 0 < index < count:
            other = _machine(self.guests[index]) if index in self.guests else self.machine
            raise ProcessError(
                what=f"two processes have the index {index}: on {other} and on {_machine(guest)}",
                why="both would train on the same rows",
                fix="give each its own --process-index, 0 to P - 1",
            )
        self.guests[index] = guest
        if "problem" in said:
            raise error_from(said["problem"])

    def _missing(self) -> ProcessError:
        count = self.membership.num_processes
        absent = [index for index in range(1, count) if index not in self.guests]
        names = ", ".join(str(index) for index in absent)
        left = [f"process {index} on {self.gone[index]} came and ended" for index in absent if index in self.gone]
        return ProcessError(
            what=f"{'process' if len(absent) == 1 else 'processes'} {names} of {count} did not come to "
            f"{self.membership.coordinator} within {format_duration(self.timeout_s)}"
            + (f" ({'; '.join(left)})" if left else ""),
            why="the others would wait for ever",
            fix="look at the output of that process for why it did not start, or give it more time with --join-timeout",
        )

    def _refuse(self, door: socket.socket, error: PacelineError) -> None:
        """Tell the error to those that are here, and for a while to those that come."""
        end_s = time.monotonic() + _LINGER_S
        answer = {"error": error.as_dict()}
        self._tell(answer)
        while len(self.told) < self.membership.num_processes - 1 and time.monotonic() < end_s:
            known = len(self.told)
            with contextlib.suppress(PacelineError):  # one is enough
                self._turn(door, end_s)
            self._tell(answer, self.told[known:])

    def _tell(self, document: dict[str, Any], guests: list[_Guest] | None = None) -> None:
        for guest in self.told if guests is None else guests:
            try:
                guest.line.settimeout(5.0)
                _write(guest.line, document)
            except OSError:  # it died meanwhile: JAX's start will miss it
                continue

    def _close(self, wait_s: float) -> None:
        """Let go of all connections, each after its guest has closed it or `wait_s` seconds are over."""
        end_s = time.monotonic() + wait_s
        for guest in self.told:
            try:
                guest.line.settimeout(max(0.01, end_s - time.monotonic()))
                guest.line.recv(1)  # the guest closes first; see _drop
            except OSError:
                continue
        for key in list(self.selector.get_map().values()):
            if isinstance(key.data, _Guest):
                self._drop(key.data)


def _machine(guest: _Guest) -> str:
    return "unknown machine" if guest.said is None else guest.said["machine"]


def _hello(text: bytes) -> dict[str, Any] | None:
    """The hello of a process of ours, or None."""
    try:
        said = _object(text)
    except ValueError:
        return None
    kinds = {"index": int, "count": int, "machine": str}
    fits = said.get("greeting") == _GREETING and all(isinstance(said.get(key), kind) for key, kind in kinds.items())
    return said if fits else None


@dataclass(frozen=True)
class _Visit:
    """Every other process: says hello to process 0 and hears what came of it."""

    membership: Membership
    hello: dict[str, Any]
    timeout_s: float
    problem: PacelineError | None

    def answer(self, deadline_s: float) -> list[str]:
        if self.problem is not None:
            deadline_s = min(deadline_s, time.monotonic() + _ALONE_S)
        while True:
            try:
                answer = self._ask(deadline_s)
                break
            except (OSError, ValueError) as error:
                if time.monotonic() > deadline_s:
                    raise (self.problem or self._unreachable(error)) from error
                time.sleep(_RETRY_S)
        if "error" in answer:
            raise error_from(answer["error"])
        return answer["machines"]

    def _ask(self, deadline_s: float) -> dict[str, Any]:
        """Raises: OSError: nobody answers; ValueError: somebody else does."""
        address = split_address(self.membership.coordinator)
        timeout_s = min(_CONNECT_S, max(0.05, deadline_s - time.monotonic()))
        with socket.create_connection(address, timeout=timeout_s) as line:
            _write(line, self.hello)
            # Longer than process 0 waits: it knows best who is missing.
            answer = _read(line, end_s=deadline_s + 5.0)
        if not isinstance(answer.get("error", answer.get("machines")), dict | list):
            raise ValueError("something else answers there")
        return answer

    def _unreachable(self, error: Exception) -> ProcessError:
        index, coordinator = self.membership.index, self.membership.coordinator
        if isinstance(error, socket.gaierror):
            return UnreachableError(
                what=f"process {index}: the host of coordinator {coordinator} has no address: {error.strerror}",
                why="the processes of a run meet there",
                fix="check the name, or give an IP address with --coordinator",
            )
        return UnreachableError(
            what=f"process {index} on {socket.gethostname()} cannot reach process 0 at {coordinator}: no answer "
            f"within {format_duration(self.timeout_s)} ({error})",
            why="the processes of a run meet there",
            fix="start process 0, check the address of --coordinator and that no firewall blocks its port, or wait "
            "longer with --join-timeout",
        )


def wait_for_listener(coordinator: str, *, timeout_s: float) -> None:
    """Return once something listens there: a first call that is refused costs JAX's client a second of waiting."""
    host, port = split_address(coordinator)
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            return
        time.sleep(_RETRY_S / 5)


def _listening(coordinator: str) -> socket.socket:
    """All interfaces, as JAX's service after it. Raises: ProcessError: the port is taken."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(
            ("", split_address(coordinator)[1]),
            family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024, reuse_port=False,
        )  # fmt: skip
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise ProcessError(
            what=f"process 0 cannot listen at {coordinator}: "
            + ("the port is taken" if taken else error.strerror or str(error)),
            why="the processes of a run meet there",
            fix="choose another port with --coordinator HOST:PORT"
            + (", or stop what listens there, such as a second process 0" if taken else ""),
        ) from error


def _write(line: socket.socket, document: dict[str, Any]) -> None:
    line.sendall(json.dumps(document).encode() + b"\n")


def _read(line: socket.socket, *, end_s: float) -> dict[str, Any]:
    """One JSON object. Raises: ValueError: something else; OSError: nothing in time."""
    text = b""
    while not text.endswith(b"\n"):
        line.settimeout(max(0.05, end_s - time.monotonic()))
        part = line.recv(4096)
        if not part or len(text) > _LONGEST_LINE:
            raise ValueError("something else answers there" if text else "the connection was closed")
        text += part
    return _object(text)


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError("something else answers there") from error
    if not isinstance(found, dict):
        raise ValueError("something else answers there")
    return found
