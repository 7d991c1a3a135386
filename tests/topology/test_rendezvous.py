"""The meeting before JAX starts: who is missing, told otherwise, or somebody else, is said in words to all.

Each process is a thread here; the messages are those of the command line.
"""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.base.errors import DeviceError, PacelineError, ProcessError
from paceline.topology import rendezvous
from paceline.topology.membership import Membership, free_port
from paceline.topology.rendezvous import UnreachableError, meet


def member(index, count=2, *, coordinator):
    return Membership(coordinator, count, index)


def outcome(membership, *, timeout_s=5.0, problem=None):
    """What `meet` returns or raises."""
    try:
        return meet(membership, timeout_s=timeout_s, problem=problem)
    except PacelineError as error:
        return error


def together(*members, timeout_s=5.0, problems=None):
    """The outcome of each, all at once."""
    problems = problems or {}
    with ThreadPoolExecutor(len(members)) as pool:
        calls = [
            pool.submit(outcome, member, timeout_s=timeout_s, problem=problems.get(number))
            for number, member in enumerate(members)
        ]
        return [call.result(30) for call in calls]


@pytest.fixture
def coordinator():
    return f"127.0.0.1:{free_port()}"


def connected(coordinator):
    """A connection to process 0, once it listens."""
    host, _, port = coordinator.rpartition(":")
    end_s = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=5)
        except OSError:
            assert time.monotonic() < end_s
            time.sleep(0.01)


def test_all_learn_where_the_others_are(coordinator):
    """Five processes get the same five machines, and the port is free again at once."""
    found = together(*(member(index, 5, coordinator=coordinator) for index in range(5)))
    assert all(machines == found[0] for machines in found)
    assert len(found[0]) == 5 and all(socket.gethostname() in machine for machine in found[0])
    with socket.create_server(("", int(coordinator.rpartition(":")[2]))):
        pass


def test_an_ipv6_address_is_met_at():
    """``[::1]:port`` works where the machine has IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
            port = probe.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6 address ::1")
    first, second = together(*(member(index, coordinator=f"[::1]:{port}") for index in (0, 1)))
    assert isinstance(first, list) and first == second


def test_a_missing_process_is_named_to_those_that_came(monkeypatch, coordinator):
    """Process 2 of 4 does not come: the other three say so, once the time is over."""
    monkeypatch.setattr(rendezvous, "_LINGER_S", 0.1)
    found = together(*(member(index, 4, coordinator=coordinator) for index in (0, 1, 3)), timeout_s=0.5)
    for error in found:
        assert isinstance(error, ProcessError)
        assert error.what == f"process 2 of 4 did not come to {coordinator} within 500 ms"
        assert "--join-timeout" in error.fix


@pytest.mark.clock(reason="ends within its limit")
def test_an_unreachable_coordinator_is_named(coordinator):
    """Nobody listens: process 1 says where it tried, within its time, and that it is this process alone that knows."""
    start_s = time.monotonic()
    error = outcome(member(1, coordinator=coordinator), timeout_s=0.3)
    assert isinstance(error, UnreachableError) and time.monotonic() - start_s < 2
    assert f"cannot reach process 0 at {coordinator}" in error.what
    assert "start process 0" in error.fix and "firewall" in error.fix


def test_a_host_without_an_address_is_named(monkeypatch):
    """A misspelled host name is told from one that does not answer."""

    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    error = outcome(member(1, coordinator="nowhere.invalid:29500"), timeout_s=0.1)
    assert isinstance(error, UnreachableError)
    assert "nowhere.invalid:29500 has no address: Name or service not known" in error.what
    assert "check the name" in error.fix


def test_a_taken_port_is_named(coordinator):
    """Process 0 does not start a service on a port that something else has."""
    with socket.create_server(("", int(coordinator.rpartition(":")[2]))):
        error = outcome(member(0, coordinator=coordinator))
    assert isinstance(error, ProcessError)
    assert "the port is taken" in error.what
    assert "another port" in error.fix and "a second process 0" in error.fix


def test_something_else_that_answers_is_named(coordinator):
    """Process 1 reaches a web server: it does not take its words for an answer."""
    with socket.create_server(("", int(coordinator.rpartition(":")[2]))) as server:

        def serve():
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                with line:
                    line.recv(4096)
                    line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        error = outcome(member(1, coordinator=coordinator), timeout_s=0.3)
        server.shutdown(socket.SHUT_RDWR)
    assert isinstance(error, UnreachableError)
    assert "something else answers there" in error.what


@pytest.mark.parametrize("index", [1, 7])
def test_two_processes_of_one_index_are_named(coordinator, index):
    """The second one with an index, or one that cannot be, ends all of them."""
    others = [member(1, 3, coordinator=coordinator), Membership(coordinator, 8, index)]
    object.__setattr__(others[1], "num_processes", 3)
    found = together(member(0, 3, coordinator=coordinator), *others)
    for error in found:
        assert isinstance(error, ProcessError), found
        assert f"two processes have the index {index}: on " in error.what
        assert "--process-index" in error.fix


def test_processes_told_of_different_numbers_are_named(coordinator):
    """Both numbers and both processes."""
    for error in together(member(0, 2, coordinator=coordinator), member(1, 3, coordinator=coordinator)):
        assert isinstance(error, ProcessError)
        assert "process 1 on " in error.what and "was told of 3 processes, process 0 on " in error.what
        assert error.what.endswith("of 2")
        assert "the same --num-processes" in error.fix


@pytest.mark.clock(reason="nobody waits for a stranger")
@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b'{"greeting": "paceline", "index"',
        b'{"greeting": "paceline"}\n',
        b'{"greeting": "paceline", "index": "1", "count": 2, "machine": "here"}\n',
        b"[1]\n",
        b"",
    ],
)
def test_strangers_keep_nobody_out(coordinator, junk):
    """A scanner, a half line, a line of something else: the processes meet while its connection stays open."""
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(outcome, member(0, coordinator=coordinator))
        with connected(coordinator) as stranger:
            stranger.sendall(junk)
            time.sleep(0.05)
            start_s = time.monotonic()
            guest = pool.submit(outcome, member(1, coordinator=coordinator))
            assert isinstance(host.result(10), list)
            assert host.result() == guest.result(10)
            assert time.monotonic() - start_s < 2
    with socket.socket() as later:  # nothing of the stranger keeps the port, which JAX takes next
        later.bind(("127.0.0.1", int(coordinator.rpartition(":")[2])))


def test_a_process_that_comes_and_dies_is_missing(monkeypatch, coordinator):
    """It said hello and ended: the others are not told that all are there, and it is named with its machine."""
    monkeypatch.setattr(rendezvous, "_LINGER_S", 0.1)
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(outcome, member(0, 3, coordinator=coordinator), timeout_s=1.0)
        with connected(coordinator) as line:
            line.sendall(b'{"greeting": "paceline", "index": 1, "count": 3, "machine": "over there"}\n')
        guest = pool.submit(outcome, member(2, 3, coordinator=coordinator), timeout_s=1.0)
        for error in (host.result(10), guest.result(10)):
            assert isinstance(error, ProcessError)
            assert "process 1 of 3 did not come" in error.what
            assert "process 1 on over there came and ended" in error.what


def test_a_process_that_died_may_come_again(coordinator):
    """A second start of process 1 takes the place of the first."""
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(outcome, member(0, 3, coordinator=coordinator))]
        with connected(coordinator) as line:
            line.sendall(b'{"greeting": "paceline", "index": 1, "count": 3, "machine": "over there"}\n')
        calls += [pool.submit(outcome, member(index, 3, coordinator=coordinator)) for index in (1, 2)]
        found = [call.result(10) for call in calls]
    assert isinstance(found[0], list) and found[0] == found[1] == found[2]


@pytest.mark.parametrize("of", [0, 1])
def test_the_problem_of_one_ends_all(coordinator, of):
    """A process that cannot join says why to all, and the error keeps its kind."""
    problem = DeviceError(what="a device was used", why="too early", fix="move line 3")
    members = [member(index, 3, coordinator=coordinator) for index in range(3)]
    for error in together(*members, problems={of: problem}):
        assert type(error) is DeviceError
        assert error.what.startswith(f"process {of} on {socket.gethostname()} (pid ")
        assert error.what.endswith("a device was used") and error.fix == "move line 3"


def test_a_process_that_comes_after_the_error_hears_it_too(coordinator):
    """Process 2 is a moment late: it does not wait for a process 0 that has given up."""
    problem = DeviceError(what="a device was used", why="too early", fix="move line 3")
    with ThreadPoolExecutor(3) as pool:
        host = pool.submit(outcome, member(0, 3, coordinator=coordinator))
        first = pool.submit(outcome, member(1, 3, coordinator=coordinator), problem=problem)
        assert type(first.result(10)) is DeviceError
        late = pool.submit(outcome, member(2, 3, coordinator=coordinator))
        assert type(late.result(10)) is DeviceError
        assert type(host.result(10)) is DeviceError


@pytest.mark.clock(reason="ends within its limit")
def test_a_problem_is_not_kept_for_a_process_0_that_is_not_there(monkeypatch, coordinator):
    """A process with an error of its own does not wait for the whole time."""
    monkeypatch.setattr(rendezvous, "_ALONE_S", 0.2)
    problem = DeviceError(what="a device was used", why="too early", fix="move line 3")
    start_s = time.monotonic()
    assert type(outcome(member(1, coordinator=coordinator), timeout_s=60.0, problem=problem)) is DeviceError
    assert time.monotonic() - start_s < 3
