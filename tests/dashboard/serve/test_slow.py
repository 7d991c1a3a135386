"""Connections that hold a place and ask for nothing; limits are short here."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import anyio
import pytest
import uvicorn

from paceline.dashboard.follow.library import Library
from paceline.dashboard.serve import app, server, slow
from paceline.dashboard.serve.app import make_app
from paceline.dashboard.serve.security import HEADERS
from tests.dashboard.made_runs import LiveRun, make_run

DEADLINE_S = 20.0
LIMIT_S = 0.3
REQUEST = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """`serving(most=4)`: the port of a server with so many connections, in a thread."""
    monkeypatch.setattr(slow, "REQUEST_S", LIMIT_S)
    make_run(tmp_path / "a", steps=3)
    with contextlib.ExitStack() as stack:

        def start(most=256):
            monkeypatch.setattr(server, "_MAX_CONNECTIONS", most)
            listener = stack.enter_context(contextlib.closing(server.listen("127.0.0.1", 0)))
            one = uvicorn.Server(server._config(make_app(Library(tmp_path))))
            thread = threading.Thread(target=one.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            stack.callback(thread.join, DEADLINE_S)
            stack.callback(setattr, one, "should_exit", True)
            until(lambda: one.started)
            return listener.getsockname()[1]

        yield start


def until(condition):
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def connection(port, content=b""):
    one = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    one.sendall(content)
    return one


def rest(one):
    """All that comes until the other side closes."""
    content = b""
    with contextlib.suppress(ConnectionError):
        while piece := one.recv(65536):
            content += piece
    return content


def answer(one):
    """Status, headers and document of a response whose length is told."""
    content = b""
    while b"\r\n\r\n" not in content:
        piece = one.recv(65536)
        assert piece, content
        content += piece
    head, _, body = content.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
    while len(body) < int(headers["content-length"]):
        body += one.recv(65536)
    return int(head.split()[1]), headers, json.loads(body)


def is_guarded(headers):
    return all(headers.get(name) == value.lower() for name, value in HEADERS.items())


@pytest.mark.clock(reason="closed after 0.3 s")
def test_a_connection_that_asks_for_nothing_is_closed(serving):
    """Without a word: nobody is there."""
    begin_s = time.monotonic()
    assert rest(connection(serving())) == b""
    assert time.monotonic() - begin_s < DEADLINE_S / 2


def test_a_request_that_never_ends_is_told_and_closed(serving):
    """Byte by byte, which keeps a connection busy but is no request."""
    one = connection(serving(), b"GET / HTTP/1.1\r\n")
    begin_s = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - begin_s < 4 * LIMIT_S:
            one.sendall(b"X")
            time.sleep(LIMIT_S / 10)
    one.settimeout(DEADLINE_S)
    content = rest(one)
    assert content == b"" or content.startswith(b"HTTP/1.1 408")
    with pytest.raises(ConnectionError):
        for _ in range(100):
            one.sendall(b"X")
            time.sleep(0.01)


def test_a_torn_request_is_answered_with_the_reason(serving):
    """And with the headers of every response."""
    one = connection(serving(), b"GET /api/runs HTTP/1.1\r\nHost: loc")
    status, headers, document = answer(one)
    assert (status, headers["connection"]) == (408, "close")
    assert is_guarded(headers)
    assert document["error"].keys() == {"what", "why", "fix"}
    assert rest(one) == b""


def test_what_is_no_request_is_answered_with_the_reason(serving):
    """Not in the words of the framework."""
    status, headers, document = answer(connection(serving(), b"\x16\x03\x01 hello\r\n\r\n"))
    assert status == 400 and is_guarded(headers)
    assert "no request" in document["error"]["what"]


@pytest.mark.clock(reason="a request has 0.3 s")
def test_a_connection_may_ask_again_and_is_closed_when_it_does_not(serving):
    """The time runs anew after each answer."""
    one = connection(serving())
    for _ in range(3):
        one.sendall(REQUEST)
        assert answer(one)[0] == 200
    one.sendall(REQUEST[:10])
    assert rest(one).startswith(b"HTTP/1.1 408")


@pytest.mark.clock(reason="the request has 0.3 s")
def test_a_stream_outlives_every_limit_of_a_request(serving, tmp_path):
    """It is a response that goes on."""
    live = LiveRun(tmp_path / "live")
    port = serving()
    until(lambda: any(run["id"] == "live" for run in answer(connection(port, REQUEST))[2]["runs"]))
    one = connection(port, b"GET /api/stream?run=live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    content = one.recv(65536)
    end_s = time.monotonic() + 4 * LIMIT_S
    while time.monotonic() < end_s:
        live.step()
        time.sleep(LIMIT_S / 4)
    live.step()
    while f'"step":{live.last},'.encode() not in content:
        piece = one.recv(65536)
        assert piece
        content += piece


def test_connections_that_ask_for_nothing_shut_nobody_out(serving, monkeypatch):
    """The one that is idle longest gives way."""
    monkeypatch.setattr(slow, "REQUEST_S", DEADLINE_S)
    port = serving(most=8)
    idle = [connection(port) for _ in range(30)]
    assert answer(connection(port, REQUEST))[0] == 200
    assert rest(idle[0]) == b""


def test_more_requests_than_the_server_answers_at_once_are_told_so(serving, tmp_path):
    """With the headers of every response; when one ends there is room again."""
    port = serving(most=3)
    streams = [connection(port, b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(3)]
    for one in streams:
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
    status, headers, document = answer(connection(port, REQUEST))
    assert status == 503 and is_guarded(headers)
    assert document["error"]["what"] == "too many connections are open"
    streams[0].close()
    until(lambda: answer(connection(port, REQUEST))[0] == 200)


@pytest.mark.clock(reason="one that reads slowly has 0.3 s for each piece")
def test_a_reader_that_takes_nothing_is_cut_off_and_nothing_is_printed(serving, monkeypatch, capfd):
    """Its place is free; one that takes little at a time goes on."""
    monkeypatch.setattr(slow, "TAKE_S", LIMIT_S)
    ended = []

    async def endless(*_, **__):
        try:
            while True:
                await anyio.sleep(0)
                yield b"data: " + b"x" * 65536 + b"\n\n"
        finally:
            ended.append(time.monotonic())

    monkeypatch.setattr(app, "messages", endless)
    port = serving()
    asked = b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
    takes = connection(port, asked)
    until_s = time.monotonic() + 4 * LIMIT_S
    while time.monotonic() < until_s:
        for _ in range(20):
            assert takes.recv(65536)
        time.sleep(LIMIT_S / 10)
    assert not ended
    until(lambda: ended)  # now it takes nothing
    takes.close()
    assert capfd.readouterr().err == ""
