"""Processes watch each other: one that is not heard from any more is named, on both sides, and the run ends.

Owns: a heartbeat of each process in the coordination service, and two threads that send and listen.
Not here: a process that is alive but does not advance (`launch.watchdog`).
Invariant: within `timeout_s` (and a second) of the last heartbeat of a peer, or the last answer of process 0, this
process says who was lost and ends with exit code 75, even while its main thread waits in a collective. A peer that
says that it failed is not waited for. A peer that ended as planned is not missed, unless a step waits for it.

Why: a collective over a network that broke waits for ever, and JAX's own heartbeat ends the process with SIGABRT and
a C++ trace.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from paceline.base.errors import PeerError, error_from
from paceline.base.exits import LOST_PEER
from paceline.base.units import format_duration
from paceline.topology.lifeline import Lifelines, hold

_BEAT_S = 0.5
_GRACE_S = 1.0
"""After a peer said that it failed: this process may be about to end with the same error, in its own words."""
_NOTICE_S = 3.0
"""How long process 0 stays after it failed, at most, so that its peers hear why: they lose the service with it."""
_ENDED, _FAILED, _LOST, _LIFELINES = "ended", "failed", "paceline/lost", "paceline/lifelines"
_RESUME = "; the run goes on from its last checkpoint with --resume (paceline launch --max-restarts does so by itself)"


class PeerMonitor:
    """The heartbeat of this process and its watch over the others.

    Args:
      client: of JAX's coordination service.
      index: of this process.
      machines: where each process runs.
      timeout_s: silence that is taken for a loss.
      host: of process 0, for a connection that closes when a process dies; None: heartbeats alone.
      on_lost: called once with the error; the default prints it and ends the process.
    """

    def __init__(
        self, client: Any, index: int, *, machines: Sequence[str], timeout_s: float,
        host: str | None = None, on_lost: Callable[[PeerError], None] | None = None,
    ) -> None:  # fmt: skip
        self.where: Callable[[], str] = lambda: ""
        """Words on what this process is doing, such as ``step 41 (input)``, while others may wait for it in a step;
        its heartbeat carries them."""
        self._client = client
        self._index = index
        self._machines = list(machines)
        self._timeout_s = timeout_s
        self._on_lost = on_lost or self._end
        self._stopped = threading.Event()
        self._blind = threading.Event()
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._last_word = ""
        self._setting = threading.Lock()
        self._answered_s = self._advanced_s = time.monotonic()
        self._own = ""
        self._heard: dict[int, tuple[str, float]] = {}
        self._watched = range(1, len(machines)) if index == 0 else (0,)
        self._notice: str | None = None
        self._host = host
        self._lines: Lifelines | None = None
        self._line: socket.socket | None = None

    def start(self) -> None:
        """Begin to send and to listen."""
        if self._host is not None:
            self._connect(self._host)
        self._answered_s = time.monotonic()
        for target in (self._beat, self._watch):
            self._threads.append(threading.Thread(target=target, name="paceline-peers", daemon=True))
            self._threads[-1].start()

    def _connect(self, host: str) -> None:
        if self._index == 0:
            self._lines = Lifelines()
            self._client.key_value_set(_LIFELINES, str(self._lines.port), True)
            return
        port = int(self._client.blocking_key_value_get(_LIFELINES, 10_000))
        self._line = hold(host, port, index=self._index)

    def finish(self) -> None:
        """This process ends as planned: the others need not miss it. It goes on watching them until `stop`."""
        if not self._last_word:
            self._say(_ENDED)

    def stop(self) -> None:
        """Send and listen no more."""
        self._stopped.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(2.0)  # Python's end would abort the process while a thread is in a call of JAX's client
        if self._lines is not None:
            self._lines.close()

    def look_away(self) -> None:
        """This process ends by itself, whatever becomes of the others. Too late if it is ending for a lost one."""
        self._blind.set()
        if self._ending.is_set():
            time.sleep(10.0)

    def fail(self, why: str) -> None:
        """Tell the others that this process ends with an error. Process 0 waits until they have heard it, for a while.

        Args:
          why: in a line.
        """
        self.look_away()
        if self._stopped.is_set() or self._last_word:
            return
        self._say(f"{_FAILED} {why.strip().partition(chr(10))[0][:300]}")
        end_s = time.monotonic() + _NOTICE_S
        while self._index == 0 and time.monotonic() < end_s and not self._all_over():
            time.sleep(0.05)
        self.stop()

    def missing(self, *, wait: bool) -> dict[int, str]:
        """Peers that said that they failed, with their words; if none did, those without a sign of life for three
        heartbeats, and no words.

        Args:
          wait: for these heartbeats; else only those that failed are found.
        """
        before = self._signs()
        failed = _failures(before)
        if failed or not wait:
            return failed
        time.sleep(3 * _BEAT_S)
        after = self._signs()
        return _failures(after) or {
            peer: "" for peer, sign in after.items() if sign != _ENDED and sign == before.get(peer)
        }

    def _key(self, index: int) -> str:
        return f"paceline/alive/{index}"

    def _say(self, word: str) -> None:
        self._last_word = word
        if self._setting.acquire(timeout=1.0):  # a heartbeat may hang in a network that broke
            try:
                self._client.key_value_set(self._key(self._index), word, True)
            except jax.errors.JaxRuntimeError:  # process 0 ended before: nobody is left to be told
                pass
            finally:
                self._setting.release()

    def _signs(self) -> dict[int, str]:
        """What each peer said last."""
        peers = [peer for peer in range(len(self._machines)) if peer != self._index]
        try:
            return {peer: self._read(self._key(peer)) for peer in peers}
        except jax.errors.JaxRuntimeError:  # the service is gone, and process 0 with it
            return {0: _FAILED} if self._index else {}

    def _all_over(self) -> bool:
        cut = {} if self._lines is None else self._lines.cut  # the dead hear nothing
        return all(peer in cut or sign.startswith((_ENDED, _FAILED)) for peer, sign in self._signs().items())

    def _read(self, key: str) -> str:
        try:
            return self._client.key_value_try_get(key)
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return ""

    def _beat(self) -> None:
        number = 0
        while not self._stopped.wait(_BEAT_S):
            number += 1
            # Any of these calls may hang with the network: `_watch` counts the time since the last that came back.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                with self._setting:
                    if not self._last_word:
                        self._client.key_value_set(self._key(self._index), f"{number} {self.where()}", True)
                for peer in self._watched:
                    self._hear(peer)
                if self._index and len(self._machines) > 2:
                    self._notice = self._read(_LOST) or None
                self._answered_s = time.monotonic()

    def _hear(self, peer: int) -> None:
        said = self._read(self._key(peer))
        known = self._heard.get(peer)
        if known is None or known[0] != said:
            self._heard[peer] = (said, time.monotonic())

    def _watch(self) -> None:
        while not self._stopped.wait(_BEAT_S / 2):
            error = self._look()
            if error is not None and not (self._stopped.is_set() or self._blind.is_set()):
                self._on_lost(error)
                return

    def _look(self) -> PeerError | None:
        """The loss that is noticed now, if any."""
        now_s = time.monotonic()
        own = self.where()
        if own != self._own:
            self._own, self._advanced_s = own, now_s
        if self._notice is not None:
            told = error_from(json.loads(self._notice))
            return PeerError(
                what=f"process {self._index} heard from process 0: {told.what}", why=told.why, fix=told.fix
            )
        for peer, (said, heard_s) in list(self._heard.items()):
            silent_s = now_s - heard_s
            if self._is_dead(peer, said, now_s):
                return self._dead(peer, said)
            if said.startswith(_FAILED):
                if silent_s > _GRACE_S:
                    return self._failed(peer, said)
            elif said == _ENDED:
                if own and min(silent_s, now_s - self._advanced_s) > self._timeout_s:
                    return self._left(peer, own)
            elif silent_s > self._timeout_s:
                return self._silent(peer, silent_s, said=said, own=own)
        if self._index and now_s - self._answered_s > self._timeout_s:
            return self._silent(0, now_s - self._answered_s, said="", own=own)
        return None

    def _is_dead(self, peer: int, said: str, now_s: float) -> bool:
        """Cut off, and long enough ago for its last word to have come if it had one."""
        cut_s = None if self._lines is None else self._lines.cut.get(peer)
        return cut_s is not None and now_s - cut_s > _GRACE_S and not said.startswith((_ENDED, _FAILED))

    def _dead(self, peer: int, said: str) -> PeerError:
        last = said.partition(" ")[2]
        return PeerError(
            what=f"{self._name(peer)} has died" + (f" at {last}" if last else "") + f", says {self._me()}",
            why="its connection was closed without a word, and a step needs all processes",
            fix="look at the output of that process and at its machine, which may have run out of memory" + _RESUME,
        )

    def _silent(self, peer: int, silent_s: float, *, said: str, own: str) -> PeerError:
        last = said.partition(" ")[2]
        return PeerError(
            what=f"{self._me()} has not heard from {self._name(peer)} for {format_duration(silent_s)}"
            + (f"; it was last at {last}" if last else "")
            + (f"; this process is at {own}" if own else ""),
            why="it is stopped or dead, or the network between the two is broken, and a step needs both",
            fix="check that machine and the network" + _RESUME,
        )

    def _failed(self, peer: int, said: str) -> PeerError:
        return PeerError(
            what=f"{self._name(peer)} ended with an error, and {self._me()} with it: {said.partition(' ')[2]}",
            why="a step needs all processes",
            fix="look at the output of that process" + _RESUME,
        )

    def _left(self, peer: int, own: str) -> PeerError:
        return PeerError(
            what=f"{self._name(peer)} has ended, and {self._me()} waits for it at {own}",
            why="a step needs all processes, and this one would wait for ever",
            fix="make every process run the same steps: look for an exit that depends on the process" + _RESUME,
        )

    def _me(self) -> str:
        return f"process {self._index} on {socket.gethostname()}"

    def _name(self, peer: int) -> str:
        return f"process {peer} ({self._machines[peer]})"

    def _end(self, error: PeerError) -> None:
        self._ending.set()
        print(f"error: {error}", file=sys.stderr, flush=True)
        if self._index == 0 and len(self._machines) > 2:
            # The others hear it from here: each of them watches process 0 only.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._client.key_value_set(_LOST, json.dumps(error.as_dict()), True)
            time.sleep(3 * _BEAT_S)
        else:
            threading.Thread(target=self._say, args=(f"{_FAILED} it lost another process",), daemon=True).start()
            time.sleep(0.1)
        os._exit(LOST_PEER)


def _failures(signs: Mapping[int, str]) -> dict[int, str]:
    return {peer: sign.partition(" ")[2] for peer, sign in signs.items() if sign.startswith(_FAILED)}
