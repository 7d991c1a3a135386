"""Connections that ask for nothing, or take nothing, are closed.

Owns: the time that a request may take to arrive, and a response to be taken; whose connection gives way when there are
too many; what the server says below HTTP's routes.
Not here: the bounds of a request (`serve.security`), the streams' own bound (`serve.app`).
Invariant: a connection without a request under way holds no place that another one needs; a response that goes on, such
as a stream, has no limit of time as long as its reader takes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from paceline.dashboard.serve.security import Refusal, with_headers

REQUEST_S = 10.0
"""From the first to the last byte of a request's line and headers; or without any byte."""
TAKE_S = 30.0
"""In which the reader of a response must take a part of it."""


class Patient(H11Protocol):
    """One connection. uvicorn has a limit for the time between two requests, and none for that of one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._timer: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._since_s = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Somebody came: if that is one too many, the one that was idle longest goes."""
        super().connection_made(transport)
        self._watch()
        if self._most is None:
            return
        others = [one for one in self._others() if not one.transport.is_closing()]
        if len(others) >= self._most:
            idle = min((one for one in others if one.is_idle), key=lambda one: one._since_s, default=None)
            if idle is None:
                self.app = _busy
            else:
                idle.transport.abort()

    def data_received(self, data: bytes) -> None:
        """A part of a request, or several requests."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """The next request may come."""
        super().on_response_complete()
        self._since_s = time.monotonic()
        self._unset("_timer")
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """They went, or were sent away."""
        super().connection_lost(exc)
        self._unset("_timer")
        self._unset("_taking")

    def pause_writing(self) -> None:
        """More is to be sent than the reader takes."""
        super().pause_writing()
        self._expect(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The reader has taken most of it."""
        super().resume_writing()
        self._unset("_taking")

    def send_400_response(self, msg: str) -> None:
        """What was sent is no request."""
        self._refuse(_NO_REQUEST)

    def _others(self) -> Iterator[Patient]:
        return (one for one in self.connections if isinstance(one, Patient) and one is not self)

    def _watch(self) -> None:
        """The time runs while no request is being answered, whatever comes in between."""
        if not self.is_idle or self.transport.is_closing():
            self._unset("_timer")
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self._late)

    def _late(self) -> None:
        self._timer = None
        if self.is_idle and self.conn.trailing_data[0]:
            self._refuse(_LATE)
        elif self.is_idle:
            self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        response = refusal.response()
        headers = [*with_headers(response.raw_headers), (b"connection", b"close")]
        try:
            parts = (
                h11.Response(status_code=refusal.status, headers=headers),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(self.conn.send(part) or b"" for part in parts))
        except h11.LocalProtocolError:  # in the middle of an answer: there is no way to say it
            pass
        self.transport.close()

    def _expect(self, before_bytes: int) -> None:
        self._unset("_taking")
        self._taking = self.loop.call_later(TAKE_S, self._untaken, before_bytes)

    def _untaken(self, before_bytes: int) -> None:
        left_bytes = self.transport.get_write_buffer_size()
        if left_bytes < before_bytes:
            self._expect(left_bytes)
        else:
            self.transport.abort()

    def _unset(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    response = _BUSY.response()
    response.raw_headers = [*with_headers(response.raw_headers), (b"connection", b"close")]
    await response(scope, receive, send)


_NO_REQUEST = Refusal(
    status=400,
    what="this is no request that can be read",
    why="its form is not that of HTTP, or its headers are very large",
    fix="open the page in a browser, or see docs/watch-api.md",
)
_LATE = Refusal(
    status=408,
    what=f"the request was not whole within {REQUEST_S:.0f} s",
    why="a connection that asks for nothing takes the place of another one",
    fix="send it again",
)
_BUSY = Refusal(
    status=503,
    what="too many connections are open",
    why="each costs memory",
    fix="close a page, or end programs that keep connections open",
)
