"""The checkpoints of one run: saved behind the training thread's back, the old ones deleted.

Owns: the background thread and the order of what it does, failures, what is kept.
Not here: how one checkpoint is written (`checkpoint.writing`), read again (`checkpoint.reading`).
Invariant: `save` waits for an earlier save at most, never for the devices or the disk; one thread does everything else,
in order. A save that fails changes nothing that was there before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.base.errors import CheckpointError, OptionError, SaveError
from paceline.checkpoint import arrays, files
from paceline.checkpoint.peers import LIMIT_S, Peers
from paceline.checkpoint.retention import Best, surplus
from paceline.checkpoint.snapshot import compile_programs, take
from paceline.checkpoint.trouble import reason, save_error
from paceline.checkpoint.writing import write


class Store:
    """The checkpoints of one run, each in ``folder/<step>/``. In a run of several processes all of them have one.

    Args:
      folder: made if it is not there; all processes see the same one. What a killed run left in it half-written or
        half-deleted is taken away.
      keep: how many of the last checkpoints stay.
      best: key of a metric, such as ``evaluate/loss``: the best checkpoint by it stays too. Where the key does not say
        which is better, ``min:KEY`` or ``max:KEY``.
      say: called with a sentence when a save fails, from the background thread.
      limit_s: how long processes wait for each other during one save.

    Raises: OptionError: `keep` or `best` makes no sense. CheckpointError: the folder cannot be made or written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        say: Callable[[str], None],
        keep: int = 3,
        best: str | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        if keep < 1:
            raise OptionError(
                what=f"keep={keep} checkpoints",
                why="the last one must stay, or nothing could be resumed",
                fix="keep 1 or more",
            )
        self.folder = Path(folder).absolute()
        self._peers = Peers("a checkpoint", limit_s=limit_s)
        self._first = self._peers.index == 0
        self._keep, self._say = keep, say
        if self._first:
            _make(self.folder)
        self._best = None if best is None else Best(self.folder, key=best)
        self._failure: SaveError | None = None
        self._saves = 0
        self._there: set[int] = set()
        self._fresh: list[int] = []
        self._writing: Future[None] | None = None
        self._last: Future[None] | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="paceline-checkpoint")
        self._do(self._tidy)

    @property
    def failure(self) -> SaveError | None:
        """The first save that failed, or None. Later saves are tried all the same."""
        return self._failure

    def prepare(self, state: Any) -> None:
        """Import and compile in the background what the first save needs; only shapes and shardings are read."""
        programs = compile_programs(state)
        self._do(lambda: (programs(), arrays.warm_up()))

    def save(self, state: Any, step: int, *, meta: Mapping[str, Any]) -> None:
        """Save a state without device axis, in the background; it may be donated as soon as this returns.

        Waits for an earlier save that is still being written. A step of which a complete checkpoint is there is not
        saved again. What fails is said through `say`, and is `failure` from then on.

        Args:
          state: any pytree of arrays; in a run of several processes their parts may lie with several of them.
          step: names the checkpoint.
          meta: JSON-ready data, saved with it.

        Raises: StateError: the state was donated before. CheckpointError: two of its leaves have one name.
        """
        content = json.loads(json.dumps(meta))
        if self._writing is not None:
            self._writing.result()
        snapshot = take(state)
        self._saves += 1
        label = str(self._saves)

        def work() -> None:
            try:
                there = step in self._there and files.is_complete(files.step_folder(self.folder, step))
                if write(
                    snapshot, folder=self.folder, step=step, meta=content, peers=self._peers, label=label, there=there
                ):
                    self._fresh.append(step)
                self._there.add(step)
            except Exception as error:  # a thread has nobody to raise to; `failure` says what it was
                self._there.discard(step)
                self._fail(save_error(error, step=step, folder=self.folder))
            else:
                self._retain()

        self._writing = self._do(work)

    def poll(self) -> list[int]:
        """Steps that were saved since the last call. Costs nothing; call it each step."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """Tell the metrics of a step, by key. They decide which checkpoint is the best, if that was asked for."""
        best, found = self._best, dict(values)
        if best is not None:
            self._do(lambda: (best.evaluated(step, found), self._retain()))

    def forget_after(self, step: int) -> None:
        """Delete the checkpoints of later steps: a run that goes on from `step` would leave a mixture of two pasts."""

        def work() -> None:
            for later in sorted(one for one in self._there if one > step):
                self._delete(later)

        self._do(work)

    def wait(self) -> None:
        """Until everything is written and deleted."""
        if self._last is not None:
            self._last.result()

    def close(self, *, give_up: bool = False) -> None:
        """`wait`, and end the thread. A folder in which nothing was saved goes.

        Args:
          give_up: another process is known to be dead: a save that waits for it fails at once.
        """
        if give_up:
            self._peers.give_up()
        self.wait()
        self._pool.shutdown()
        if self._first:
            with suppress(OSError):  # it holds something
                self.folder.rmdir()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, work: Callable[[], Any]) -> Future[None]:
        """Have the thread do something, after what it was given before. Nothing that it raises is lost."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:  # a thread has nobody to raise to
                self._fail(
                    SaveError(
                        what=f"the checkpoints in {str(self.folder)!r} could not be looked after: {reason(error)}",
                        why="old ones may stay, or the best one may not be known",
                        fix=f"make sure that {str(self.folder)!r} is there and can be written",
                    )
                )

        self._last = self._pool.submit(guarded)
        return self._last

    def _tidy(self) -> None:
        if self._first:
            for rest in files.leftovers(self.folder):
                files.discard(rest)
        self._there = set(files.steps(self.folder))

    def _retain(self) -> None:
        there = sorted(self._there)
        best = None if self._best is None else self._best.update(there, persist=self._first)
        for step in surplus(there, keep=self._keep, best=best):
            self._delete(step)

    def _delete(self, step: int) -> None:
        if self._first:
            with suppress(FileNotFoundError):  # somebody was faster
                files.remove(files.step_folder(self.folder, step))
        self._there.discard(step)

    def _fail(self, error: SaveError) -> None:
        self._failure = self._failure or error
        self._say(str(error))


def _make(folder: Path) -> None:
    """Make the folder and prove that it can be written, before anything depends on it."""
    probe = folder / f"{os.getpid()}.saving"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise CheckpointError(
            what=f"checkpoints cannot be saved in {str(folder)!r}: {reason(error)}",
            why="the run could not be resumed",
            fix="choose a folder that can be written",
        ) from error
