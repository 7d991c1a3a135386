"""The connection that the kernel closes when a process dies."""

from __future__ import annotations

import socket
import time

import pytest

from paceline.topology.lifeline import Lifelines, hold


@pytest.fixture
def lines():
    found = Lifelines()
    yield found
    found.close()


def cut(lines: Lifelines, index: int, *, limit_s: float = 5.0) -> bool:
    end_s = time.monotonic() + limit_s
    while index not in lines.cut and time.monotonic() < end_s:
        time.sleep(0.01)
    return index in lines.cut


def test_a_process_whose_connection_closes_is_known_to_be_cut_off(lines):
    """Only that one of two, and at the time when it happened."""
    first, second = (hold("127.0.0.1", lines.port, index=index) for index in (1, 2))
    assert first is not None and second is not None
    before_s = time.monotonic()
    second.close()
    assert cut(lines, 2)
    assert before_s <= lines.cut[2] <= time.monotonic()
    assert 1 not in lines.cut
    first.close()
    assert cut(lines, 1)


def test_a_stranger_at_the_port_cuts_nobody_off(lines):
    """Connections that say no index, or something else, come and go; a process that is held stays."""
    held = hold("127.0.0.1", lines.port, index=3)
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", lines.port)) as stranger:
            stranger.sendall(words)
    assert not cut(lines, 3, limit_s=0.5) and not lines.cut
    assert held is not None
    held.close()


def test_where_process_0_cannot_be_reached_there_is_no_lifeline():
    """A firewall, or a process that has ended: heartbeats must do, and nothing is raised."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    assert hold("127.0.0.1", port, index=1) is None
