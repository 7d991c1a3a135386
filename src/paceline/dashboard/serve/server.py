"""Listening: an address, a port that is free, what is printed, the end at Ctrl-C.

Owns: the sockets, the words on the terminal, how the server ends.
Not here: answers (`serve.app`), options (`cli.watch`).
Invariant: nothing but loopback without a token; Ctrl-C ends the server within two seconds, whatever is open or stuck.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import socket
import threading
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette

from paceline.base.errors import OptionError
from paceline.dashboard.follow.library import Library
from paceline.dashboard.serve.app import make_app
from paceline.dashboard.serve.assets import PLOTLY, Assets
from paceline.dashboard.serve.pulse import Pulse
from paceline.dashboard.serve.security import (
    ANY_ADDRESS,
    LOOPBACK_NAMES,
    MAX_HEADER_BYTES,
    MAX_TARGET_BYTES,
    is_loopback,
    new_token,
)
from paceline.dashboard.serve.slow import Patient

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8070

_TRIED_PORTS = 20
_EVERY_ADDRESS = ("0.0.0.0", "::")
_END_S = 1
"""What a request that is under way may take when the server ends."""
_LINGER_S = 2.0
_LINGER_KILLED_S = 0.5  # no further event follows, and nobody is there to end the page
_MAX_CONNECTIONS = 256


@dataclass(frozen=True)
class Address:
    """Where the page can be reached.

    Args:
      host: as asked for.
      port: that listens.
      token: that other machines need; None on loopback.
    """

    host: str
    port: int
    token: str | None

    def url(self, run: str | None = None) -> str:
        """To open once; it holds the token.

        Args:
          run: id of the run to show first. Behind a token it cannot stand in the fragment, which is lost on the way on
            to the address without it; `security.Token` puts it there.
        """
        name = socket.gethostname() if self.host in _EVERY_ADDRESS else self.host
        shown = f"[{name}]" if ":" in name else name
        asked = {} if run is None else {"run": run}
        if self.token is not None:
            rest = f"?{urlencode({'token': self.token} | asked)}"
        else:
            rest = f"#{urlencode(asked)}" if asked else ""
        return f"http://{shown}:{self.port}/{rest}"

    @property
    def hosts(self) -> frozenset[str]:
        """Names that requests may be for."""
        if self.host in _EVERY_ADDRESS:
            return LOOPBACK_NAMES | {socket.gethostname(), socket.getfqdn(), ANY_ADDRESS}
        return LOOPBACK_NAMES | {self.host}


def serve(
    root: Path,
    *,
    host: str = DEFAULT_HOST,
    port: int | None = None,
    open_browser: bool = False,
    say: Callable[[str], None] = print,
    run: str | None = None,
    parent: int | None = None,
) -> int:
    """Serve the page until Ctrl-C or SIGTERM; returns the exit code.

    Args:
      root: folder of runs.
      host: to listen on; other than loopback needs a token, which is made and printed.
      port: to listen on, or an error; None: `DEFAULT_PORT`, or the next that is free.
      open_browser: open the page when it is there.
      say: prints a line.
      run: id of the run that the page shows first.
      parent: number of this process's parent: the server ends with it, a little later, when its last events are shown.
    Raises: OptionError: the address cannot be had, or the extra is missing.
    """
    assets = Assets()
    listener = listen(host, port)
    with contextlib.closing(listener):
        address = Address(host, listener.getsockname()[1], None if is_loopback(host) else new_token())
        app = make_app(Library(root), token=address.token, hosts=address.hosts, assets=assets)

        def started() -> None:
            for line in greeting(address, run=run, ends=parent is None):
                say(line)
            # Ready before the first browser asks: it takes a quarter of a second.
            threading.Thread(target=lambda: assets.get(PLOTLY, compress=True), daemon=True).start()
            if open_browser:
                threading.Thread(target=webbrowser.open, args=(address.url(run),), daemon=True).start()

        server = _Server(_config(app), pulse=app.state.pulse, started=started, parent=parent)
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again when all is closed
            server.run(sockets=[listener])
    return 0


def greeting(address: Address, *, run: str | None = None, ends: bool = True) -> list[str]:
    """What is printed when the page is there.

    Args:
      run: id of the run that the page shows first.
      ends: whether Ctrl-C is how it ends.
    """
    lines = [f"page        {address.url(run)}"]
    if address.token is not None:
        lines += [
            "            other machines need the token in this address; it is not shown again",
            "            what is sent is not encrypted: on a network that others use, prefer ssh -L",
        ]
    return [*lines, "            Ctrl-C ends it"] if ends else lines


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens.

    Raises: OptionError: no such address here, or the port that was asked for is taken.
    """
    try:
        family, _, _, _, where = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise _no_address(host, error) from error
    tried = range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_PORTS) if port is None else (port,)
    for candidate in (*tried, *((0,) if port is None else ())):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((where[0], candidate, *where[2:]))
            listener.listen()
            return listener
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise _no_address(host, error) from error
            if port is not None:
                raise _taken(port, error) from error
    raise _no_address(host, OSError(errno.EADDRINUSE, "no port is free"))


class _Server(uvicorn.Server):
    """uvicorn's server, which tells when it listens, and ends its streams at the first signal."""

    def __init__(
        self, config: uvicorn.Config, *, pulse: Pulse, started: Callable[[], None], parent: int | None
    ) -> None:
        super().__init__(config)
        self._pulse = pulse
        self._on_start = started
        self._parent = parent
        self._end_at_s = math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._parent is not None and sig == signal.SIGTERM and not self.should_exit:
            self._linger(_LINGER_S)
            return
        self._pulse.close()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self._parent is not None and os.getppid() != self._parent:
            self._linger(_LINGER_KILLED_S)
        if time.monotonic() >= self._end_at_s:
            self._pulse.close()
            self.should_exit = True
        return await super().on_tick(counter)

    def _linger(self, linger_s: float) -> None:
        """The run has ended: pages are yet to show how."""
        self._end_at_s = min(self._end_at_s, time.monotonic() + linger_s)


def _config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=Patient,  # on h11, the one whose bound on headers can be set
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_END_S,
        h11_max_incomplete_event_size=2 * (MAX_TARGET_BYTES + MAX_HEADER_BYTES),
    )


def _taken(port: int, error: OSError) -> OptionError:
    if error.errno == errno.EACCES:
        return OptionError(
            what=f"--port {port}: not yours to listen on",
            why="ports below 1024 belong to the system",
            fix=f"use --port {DEFAULT_PORT}, or leave --port out",
        )
    return OptionError(
        what=f"--port {port}: another program listens there",
        why="two servers cannot share a port",
        fix=f"choose another, or leave --port out: the next free one from {DEFAULT_PORT} on is taken",
    )


def _no_address(host: str, error: Exception) -> OptionError:
    reason = getattr(error, "strerror", None) or error
    return OptionError(
        what=f"--host {host}: {reason}",
        why="it is the address of this machine that the page listens on",
        fix="leave --host out for this machine alone, or use --host 0.0.0.0 for all of its addresses",
    )
