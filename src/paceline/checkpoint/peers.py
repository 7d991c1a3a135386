"""Words between the processes of a run, through the coordination service that `jax.distributed` started.

Owns: `exchange`, by which every process learns what each of them has to say, with a limit of time.
Not here: what is said (`checkpoint.writing`, `checkpoint.reading`).
Invariant: no device takes part, so it may be called from any thread while the devices train: a collective there could
wait for a step that waits for it. It ends within its limit, with the process named that did not answer.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from typing import Any

import jax
from jax._src import distributed

from paceline.base.errors import PeerError

LIMIT_S = 600.0
_SLICE_S = 0.5

_CONVERSATIONS = itertools.count()


class Peers:
    """One conversation of all processes. All must open their conversations in the same order.

    Args:
      topic: a word for error messages: what they talk about.
      limit_s: how long one waits for the others.
    """

    def __init__(self, topic: str, *, limit_s: float = LIMIT_S) -> None:
        self.index, self.count = jax.process_index(), jax.process_count()
        self._topic, self._limit_s = topic, limit_s
        self._key = f"paceline/{next(_CONVERSATIONS)}/{topic.replace(' ', '-')}"
        self._spoken: list[str] = []
        self._given_up = threading.Event()

    def exchange(self, label: str, word: Any) -> list[Any]:
        """What every process said under this label, by process; JSON-ready data. A label is used once.

        Raises: PeerError: one of them said nothing within the limit.
        """
        if self.count == 1:
            return [word]
        client: Any = distributed.global_state.client
        key = f"{self._key}/{label}"
        client.key_value_set(f"{key}/{self.index}", json.dumps(word))
        said = [
            word if process == self.index else self._hear(client, f"{key}/{process}") for process in range(self.count)
        ]
        while self._spoken:  # all have heard what was said before, or they would not be here
            client.key_value_delete(self._spoken.pop())
        self._spoken.append(f"{key}/{self.index}")
        return said

    def give_up(self) -> None:
        """Wait for nobody any more: whoever waits, in any thread, gets a PeerError within a second."""
        self._given_up.set()

    def _hear(self, client: Any, key: str) -> Any:
        deadline_s = time.monotonic() + self._limit_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return json.loads(client.blocking_key_value_get(key, int(1e3 * max(min(left_s, _SLICE_S), 0.001))))
            except jax.errors.JaxRuntimeError as error:
                # Anything but a timeout means that the service itself is gone.
                if left_s <= _SLICE_S or self._given_up.is_set() or "DEADLINE_EXCEEDED" not in str(error):
                    raise self._silence(key.rpartition("/")[2]) from error

    def _silence(self, process: str) -> PeerError:
        when = "before it was given up" if self._given_up.is_set() else f"within {self._limit_s:.0f} s"
        return PeerError(
            what=f"process {process} said nothing about {self._topic} {when}",
            why="a checkpoint is the work of all processes: without that one it is not complete",
            fix=f"look into the log of process {process}; if its disk is slow, save less often",
        )
