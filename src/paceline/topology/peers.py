"""Processes watch each other: one that is not heard from any more is named, on both sides, and the run ends.

Owns: a heartbeat of each process in the coordination service, and two threads that send and listen.
Not here: a process that is alive but does not advance (`launch.watchdog`).
Invariant: within `timeout_s` (and a second) of the last heartbeat of a peer, or the last answer of process 0, this
process says who was lost and ends with exit code 75, even while its main thread waits in a collective.

Why: a collective over a network that broke waits for ever, and JAX's own heartbeat ends the process with SIGABRT and
a C++ trace.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from paceline.base.errors import PeerError
from paceline.base.exits import LOST_PEER
from paceline.base.units import format_duration

_BEAT_S = 0.5
_ENDED = "ended"


class PeerMonitor:
    """The heartbeat of this process and its watch over the others.

    Args:
      client: of JAX's coordination service.
      index: of this process.
      machines: where each process runs.
      timeout_s: silence that is taken for a loss.
      on_lost: called once with the error; the default prints it and ends the process.
    """

    def __init__(
        self, client: Any, index: int, *, machines: Sequence[str], timeout_s: float,
        on_lost: Callable[[PeerError], None] | None = None,
    ) -> None:  # fmt: skip
        self.where: Callable[[], str] = lambda: ""
        """Words on what this process is doing, such as ``step 41 (input)``; its heartbeat carries them."""
        self._client = client
        self._index = index
        self._machines = list(machines)
        self._timeout_s = timeout_s
        self._on_lost = on_lost or _end
        self._stopped = threading.Event()
        self._answered_s = time.monotonic()
        self._heard: dict[int, tuple[str, float]] = {}
        self._watched = range(1, len(machines)) if index == 0 else (0,)

    def start(self) -> None:
        """Begin to send and to listen."""
        self._answered_s = time.monotonic()
        for target in (self._beat, self._watch):
            threading.Thread(target=target, name="paceline-peers", daemon=True).start()

    def stop(self) -> None:
        """This process ends as planned: the others need not miss it."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # process 0 ended before: nobody is left to be told
            self._client.key_value_set(self._key(self._index), _ENDED, True)

    def _key(self, index: int) -> str:
        return f"paceline/alive/{index}"

    def _beat(self) -> None:
        number = 0
        while not self._stopped.wait(_BEAT_S):
            number += 1
            try:
                # Any of these calls may hang with the network: `_watch` counts the time since the last that came back.
                self._client.key_value_set(self._key(self._index), f"{number} {self.where()}", True)
                for peer in self._watched:
                    self._hear(peer)
                self._answered_s = time.monotonic()
            except jax.errors.JaxRuntimeError:
                continue

    def _hear(self, peer: int) -> None:
        try:
            said = self._client.key_value_try_get(self._key(peer))
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            said = ""  # it has not begun to beat
        known = self._heard.get(peer)
        if known is None or known[0] != said:
            self._heard[peer] = (said, time.monotonic())

    def _watch(self) -> None:
        while not self._stopped.wait(_BEAT_S / 2):
            now_s = time.monotonic()
            if self._index and now_s - self._answered_s > self._timeout_s:
                self._lose(0, now_s - self._answered_s, said="")
                return
            for peer, (said, heard_s) in list(self._heard.items()):
                if said != _ENDED and now_s - heard_s > self._timeout_s:
                    self._lose(peer, now_s - heard_s, said=said)
                    return

    def _lose(self, peer: int, silent_s: float, *, said: str) -> None:
        if self._stopped.is_set():
            return
        last = said.partition(" ")[2]
        own = self.where()
        self._on_lost(
            PeerError(
                what=f"process {self._index} on {socket.gethostname()} has not heard from process {peer} "
                f"({self._machines[peer]}) for {format_duration(silent_s)}"
                + (f"; it was last at {last}" if last else "")
                + (f"; this process is at {own}" if own else ""),
                why="it is stopped or the network between the two is broken, and a step needs both",
                fix="check that machine and the network; the run goes on from its last checkpoint with --resume "
                "(paceline "
                "launch --max-restarts does so by itself)",
            )
        )


def _end(error: PeerError) -> None:
    print(f"error: {error}", file=sys.stderr, flush=True)
    os._exit(LOST_PEER)
