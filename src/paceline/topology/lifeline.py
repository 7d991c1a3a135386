"""A connection of each process to process 0 that the kernel closes when the process dies.

Owns: the sockets, who was cut off and when.
Not here: what follows from it (`topology.peers`).
Invariant: it only ever makes a death known earlier. Where a firewall forbids these connections, heartbeats must do.

Why: a collective over several devices a process may wait for ever on a process that was killed, and heartbeats notice
only after their time limit. The kernel of the dead process's machine closes its connections at once.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time

_CONNECT_S = 5.0
_LOOK_S = 0.25


class Lifelines:
    """The ends of process 0."""

    def __init__(self) -> None:
        self.cut: dict[int, float] = {}
        """Processes whose connection was closed, with the time of it (`time.monotonic`)."""
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self._door = socket.create_server(
            ("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024
        )  # fmt: skip
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="paceline-lifelines", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where the others connect."""
        return self._door.getsockname()[1]

    def close(self) -> None:
        """Watch no more."""
        self._stopped.set()
        self._thread.join(2.0)

    def _watch(self) -> None:
        known: dict[socket.socket, int | None] = {}
        with selectors.DefaultSelector() as ready, self._door:
            ready.register(self._door, selectors.EVENT_READ)
            while not self._stopped.is_set():
                for key, _ in ready.select(_LOOK_S):
                    if key.fileobj is self._door:
                        line, _ = self._door.accept()
                        line.setblocking(False)
                        known[line] = None
                        ready.register(line, selectors.EVENT_READ)
                        continue
                    line = next(entry for entry in known if entry is key.fileobj)
                    if not self._read(line, known):
                        ready.unregister(line)
                        known.pop(line)
                        line.close()
        for line in known:
            line.close()

    def _read(self, line: socket.socket, known: dict[socket.socket, int | None]) -> bool:
        """Take the index that a process says first; False if the connection is over."""
        try:
            said = line.recv(64)
        except BlockingIOError:
            return True
        except OSError:
            said = b""
        if said and known[line] is None and said.strip().isdigit():
            known[line] = int(said)
            return True
        index = known[line]
        if index is not None and not said:
            self.cut[index] = time.monotonic()
        return bool(said) and index is not None


def hold(host: str, port: int, *, index: int) -> socket.socket | None:
    """The end of another process, to be kept open as long as it lives; None if process 0 cannot be reached there."""
    with contextlib.suppress(OSError):
        line = socket.create_connection((host, port), timeout=_CONNECT_S)
        line.sendall(f"{index}\n".encode())
        return line
    return None
