"""What only one process knows and all must do after the same step: stop, or save.

Owns: a vote by a collective of its own, between steps; its schedule.
Not here: the signals (`train.interrupt`), saving (`train.checkpoints`).
Invariant: every process votes after the same steps, reads each result before the same later step, and so acts after
the same step. In a run of one process there is nothing to agree on, and an answer comes at once.

How often: each vote carries the time of a step, and the slowest decides how many steps pass until the next, so that
votes are about a quarter of a second apart and cost nothing against them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from paceline.topology.mesh import local_positions, replicated, split_rows

_APART_S = 0.25
_MOST_STEPS = 1000


class Stop(IntEnum):
    """Why a run should end early; of several reasons the largest counts."""

    NO = 0
    CALLBACK = 1
    INTERRUPT = 2
    TERMINATE = 3


@dataclass(frozen=True)
class Wish:
    """What a process wants, or what all agreed on.

    Args:
      stop: whether to end.
      save: whether to save a checkpoint now.
    """

    stop: Stop = Stop.NO
    save: bool = False


class Votes:
    """The votes of one run, as one process takes part in them.

    Args:
      mesh: of the run; its devices carry the votes.
      first_step: updates before the run; the first vote follows soon after it.
      ahead: steps between a vote and the reading of its result, so that nobody waits for it.
    """

    def __init__(self, mesh: Mesh, *, first_step: int, ahead: int) -> None:
        self._own = local_positions(mesh)
        self._several = len(self._own) < mesh.size
        self._num_devices = mesh.size
        self._rows = split_rows(mesh)
        self._whole = replicated(mesh)
        self._ahead = ahead
        self._next = first_step + 2
        self._pending: tuple[int, Array] | None = None

    @property
    def several(self) -> bool:
        """Whether there is anybody to agree with."""
        return self._several

    def after_step(self, step: int, wish: Wish, *, step_s: float) -> Wish:
        """Vote if it is time, and say what was agreed on; nothing most of the time.

        Args:
          step: updates dispatched.
          wish: of this process.
          step_s: recent time of a step here [s]; NaN while unknown.
        """
        if not self._several:
            return wish
        agreed = Wish()
        if self._pending is not None and step >= self._pending[0] + self._ahead:
            agreed = self._read(step)
        if self._pending is None and step >= self._next:
            self._cast(step, wish, step_s)
        return agreed

    def _cast(self, step: int, wish: Wish, step_s: float) -> None:
        micros = int(min(step_s, 1e3) * 1e6) if step_s == step_s else 0
        own = np.asarray([[int(wish.stop), int(wish.save), micros]], np.int32)
        votes = jax.make_array_from_callback((self._num_devices, 3), self._rows, lambda _: own)
        self._pending = (step, _largest(self._whole)(votes))

    def _read(self, step: int) -> Wish:
        assert self._pending is not None, "a vote was cast"
        stop, save, micros = np.asarray(self._pending[1].addressable_data(0)).tolist()
        self._pending = None
        apart = int(_APART_S * 1e6 / micros) if micros else 1
        self._next = step + min(max(apart, 1), _MOST_STEPS)
        return Wish(Stop(stop), bool(save))


@functools.cache
def _largest(whole: jax.sharding.NamedSharding) -> Any:
    """``[K, 3]`` to ``[3]``, the largest of each; one program a mesh, over all runs."""
    return jax.jit(lambda votes: votes.max(axis=0), out_shardings=whole)
