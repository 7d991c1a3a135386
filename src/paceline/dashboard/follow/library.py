"""All runs under a root, kept up to date.

Owns: when folders are searched and files are looked at, in which order long files are read, how much is kept.
Not here: one run (`follow.run`), what counts as a run (`follow.root`), sending (`serve`).
Invariant: `poll` holds a run's lock for one slice of reading at most (some 2 ms), so that no request waits for more;
nothing is ever written under the root.

One thread calls `poll` again and again: at once while it says `busy`, else ten times a second. All else may be called
from any thread. Runs that wrote or were asked for in the last minute are looked at each time, others once a second; of
those that have a report only the folder, and the files inside every ten seconds, or when the folder changes.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from paceline.base.errors import RunFolderError, nearest
from paceline.dashboard.follow.blocks import BlockStore
from paceline.dashboard.follow.health import Pulse
from paceline.dashboard.follow.root import find
from paceline.dashboard.follow.run import READ_RUNS, Fresh, Run, Waiting
from paceline.dashboard.follow.words import Words

SLICE_BYTES = 256 * 1024
SEARCH_EVERY_S = 1.0
IDLE_TURNS = 10  # seconds until a run that has ended is looked at again
SEARCH_TURNS = 30  # seconds until all folders are searched again, though none seems to have changed
OPEN_S = 0.1  # for new folders, in one poll: some hundred of them
POLL_S = 0.04
PREVIEWED_RUNS = 200
_ACTIVE_S = 60.0
_LOOKED_AT_S = 10.0  # a run that was asked for so lately keeps its place, though others are asked for too


@dataclass
class Changes:
    """What a poll found.

    Args:
      fresh: new events of runs that had been read to their end, by run id, in order.
      changed: ids of runs of which anything changed, new runs included.
      gone: ids of runs whose folder is gone.
      reset: ids of runs of which a file was replaced: what was sent of them is void.
      busy: there is more to read now.
    """

    fresh: list[tuple[str, Fresh]] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    gone: list[str] = field(default_factory=list)
    reset: set[str] = field(default_factory=set)
    busy: bool = False


class Library:
    """See the module.

    Args:
      root: folder with runs in it, or of one run; it need not be there yet.
      monotonic, wall: clocks, for tests.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.root = Path(os.path.abspath(os.path.expanduser(root)))
        self.problems: list[Words] = []
        self.results: dict[str, Path] = {}
        self._monotonic = monotonic
        self._wall = wall
        self._lock = RLock()
        self._polling = RLock()
        self._store = BlockStore()
        self._runs: dict[str, Run] = {}
        self._searched_s: float | None = None
        self._folders: dict[Path, int] = {}  # where runs can appear, and when each was changed last
        self._turn = 0
        self._turns: dict[str, int] = {}
        self._unopened: list[tuple[str, Path]] = []  # folders that were found, the newest last
        self._active_s: dict[str, float] = {}
        self._wanted: dict[str, float] = {}
        self._unseen: set[str] = set()  # new runs of which there is no first picture yet

    def runs(self) -> list[Run]:
        """All runs, the newest first."""
        with self._lock:
            runs = list(self._runs.values())
        return sorted(runs, key=lambda run: (run.updated_s() or 0.0, run.id), reverse=True)

    def run(self, id: str) -> Run:
        """The run of that id. It will be read first.

        Raises: RunFolderError: there is none.
        """
        with self._lock:
            run = self._runs.get(id)
        if run is None:
            with self._lock:
                known = list(self._runs)
            raise RunFolderError(
                what=f"no run {id!r} under {str(self.root)!r}{nearest(id, known)}",
                why="only folders that hold a run.json or events are shown, and this one may have been removed",
                fix="choose one of the runs in the list" if known else "start a run there first",
            )
        self._wanted[id] = self._monotonic()
        return run

    def poll(self, *, budget_s: int | float = POLL_S) -> Changes:
        """Look at all files, and read what is new in them for about ``budget_s``."""
        with self._polling:
            changes = Changes()
            now_s = self._monotonic()
            is_search = self._searched_s is None or not 0 <= now_s - self._searched_s < SEARCH_EVERY_S
            if is_search:
                self._searched_s = now_s
                if self._turn % SEARCH_TURNS == 0 or self._is_outdated():
                    self._search(changes)
                self._turn += 1
            looked_at = self._to_look_at(now_s, is_search=is_search)
            for run in looked_at:
                with run.lock:
                    if is_search and run.refresh():
                        changes.changed.add(run.id)
                    if run.look():
                        changes.reset.add(run.id)
                        changes.changed.add(run.id)
            began_s = self._monotonic()
            opened = self._open(changes, until_s=began_s + OPEN_S)
            until_s = now_s + budget_s + self._monotonic() - began_s
            self._read([*looked_at, *opened], changes, until_s=until_s)
            changes.busy |= bool(self._unopened)
            return changes

    def read_all(self) -> None:
        """Read every run to its end, for those who do not follow (a comparison, a test)."""
        while self.poll(budget_s=1.0).busy:
            pass

    def close(self) -> None:
        """Give the temporary file back."""
        self._store.close()

    def _is_outdated(self) -> bool:
        """Whether a folder changed in which runs can appear. A `stat` for each, not one for each run."""
        try:
            return not self._folders or any(os.stat(path).st_mtime_ns != ns for path, ns in self._folders.items())
        except OSError:
            return True

    def _search(self, changes: Changes) -> None:
        found = find(self.root)
        self.problems, self.results, self._folders = found.problems, found.results, found.searched
        for id in self._runs.keys() - found.runs.keys():
            with self._lock:
                run = self._runs.pop(id)
            with run.lock:
                run.release()
            self._active_s.pop(id, None)
            self._wanted.pop(id, None)
            self._unseen.discard(id)
            self._turns.pop(id, None)
            changes.gone.append(id)
        new = [(_modified_s(folder), id, folder) for id, folder in found.runs.items() if id not in self._runs]
        self._unopened = [(id, folder) for _, id, folder in sorted(new)]

    def _open(self, changes: Changes, *, until_s: float) -> list[Run]:
        """Make runs of folders that were found, the newest first; of very many, the rest in later polls."""
        opened: dict[str, Run] = {}
        while self._unopened:
            id, folder = self._unopened.pop()
            pulse = Pulse(monotonic=self._monotonic, wall=self._wall)
            run = opened[id] = Run(folder, id=id, root=self.root, store=self._store, pulse=pulse)
            run.refresh()
            self._turns[id] = len(self._turns) % IDLE_TURNS
            if self._monotonic() >= until_s:
                break
        with self._lock:  # all at once: unless there are very many, the first list of a page is whole
            self._runs |= opened
        changes.changed |= opened.keys()
        self._unseen |= opened.keys()
        return list(opened.values())

    def _to_look_at(self, now_s: float, *, is_search: bool) -> list[Run]:
        """See the module."""
        used = dict.fromkeys([*list(self._active_s), *list(self._wanted)])
        active = [
            run for id in used if (run := self._runs.get(id)) is not None and now_s - self._used_s(run) < _ACTIVE_S
        ]  # fmt: skip
        if not is_search:
            return active
        turn = self._turn % IDLE_TURNS
        now = {run.id for run in active}
        others = [run for run in self._runs.values() if run.id not in now]
        return active + [
            run for run in others if run.report is None or self._turns[run.id] == turn or run.folder_changed()
        ]  # fmt: skip

    def _used_s(self, run: Run) -> float:
        """When the run last wrote or was asked for."""
        return max(self._active_s.get(run.id, -_ACTIVE_S), self._wanted.get(run.id, -_ACTIVE_S))

    def _read(self, looked_at: list[Run], changes: Changes, *, until_s: float) -> None:
        """What followed runs have new comes first, then a first picture of each new run, then long files by slices."""
        followed = [self._follow(run, changes, until_s=until_s) for run in looked_at if run.caught_up]
        behind = [run for run in self._runs.values() if not run.caught_up]
        is_done = self._preview(changes, until_s=until_s) and self._catch_up(behind, changes, until_s=until_s)
        changes.busy = not (is_done and all(followed))

    def _preview(self, changes: Changes, *, until_s: float) -> bool:
        """Pictures of runs that were not looked into yet; False if time ran out."""
        for run in self._in_order([self._runs[id] for id in self._unseen])[:PREVIEWED_RUNS] if self._unseen else ():
            with run.lock:
                is_new = run.preview()
            self._unseen.discard(run.id)
            if is_new:
                changes.changed.add(run.id)
                if self._monotonic() >= until_s:
                    return False
        self._unseen.clear()
        return True

    def _catch_up(self, behind: list[Run], changes: Changes, *, until_s: float) -> bool:
        """Read runs that are not read to their end; False if time ran out."""
        for run in self._room_for(behind, changes):
            while not run.caught_up:
                with run.lock:
                    run.read(SLICE_BYTES)
                changes.changed.add(run.id)
                if run.caught_up:
                    self._active_s[run.id] = self._monotonic()  # as if it wrote now: perhaps it does
                if self._monotonic() >= until_s:
                    return False
        return True

    def _follow(self, run: Run, changes: Changes, *, until_s: float) -> bool:
        """Read what is new; False if time ran out, as it may for a file that was replaced by a long one. A slice is
        read in any case, so that nobody waits for ever."""
        while run.unread_bytes:
            with run.lock:
                fresh = run.read(SLICE_BYTES)
            if fresh is None:  # a torn last line, or a file that cannot be read now: the next look will tell
                break
            self._active_s[run.id] = self._monotonic()
            changes.fresh.append((run.id, fresh))
            changes.changed.add(run.id)
            if self._monotonic() >= until_s:
                return False
        return True

    def _in_order(self, runs: list[Run]) -> list[Run]:
        """Those asked for latest, then the newest."""
        return sorted(runs, key=lambda run: (self._wanted.get(run.id, 0.0), run.updated_s() or 0.0), reverse=True)

    def _room_for(self, behind: list[Run], changes: Changes) -> list[Run]:
        """Which of them to read: of very many runs, the first `READ_RUNS`. Another one that is asked for takes the
        place of the one that was used longest ago; if all of them are being looked at, it waits and says so."""
        if not behind:
            return []
        ordered = self._in_order(behind)
        room = max(0, READ_RUNS - len(self._runs) + len(behind))
        chosen, rest = ordered[:room], ordered[room:]
        asked = [run for run in rest if run.id in self._wanted]
        leaving = self._leaving(len(asked)) if asked else []
        for run in leaving:
            with run.lock:
                run.forget()
            self._wanted.pop(run.id, None)
            self._unseen.add(run.id)
            self._set_waiting(run, "resting", changes)
        chosen += asked[: len(leaving)]
        for run in chosen:
            self._set_waiting(run, None, changes)
        crowded = {run.id for run in asked[len(leaving) :]}
        for run in rest:
            if run not in chosen:
                self._set_waiting(run, "crowded" if run.id in crowded else "resting", changes)
        return chosen

    def _leaving(self, most: int) -> list[Run]:
        """Runs that may be forgotten, the one that was used longest ago first."""
        now_s = self._monotonic()
        kept = [
            run for run in self._runs.values()
            if run.caught_up and now_s - self._wanted.get(run.id, -math.inf) >= _LOOKED_AT_S
        ]  # fmt: skip
        return sorted(kept, key=self._used_s)[:most]

    def _set_waiting(self, run: Run, waiting: Waiting | None, changes: Changes) -> None:
        if run.waiting != waiting:
            run.waiting = waiting
            changes.changed.add(run.id)


def _modified_s(folder: Path) -> float:
    try:
        return os.stat(folder).st_mtime
    except OSError:
        return 0.0
