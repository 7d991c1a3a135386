"""The loop of the terminal form: look, draw, wait for a key.

Owns: when to draw; the end by Ctrl-C, ``q`` or the end of the terminal.
Not here: what is drawn (`terminal.screen`).
Invariant: what is no terminal gets one plain snapshot and nothing that moves a cursor.
"""

from __future__ import annotations

import dataclasses
import os
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from paceline.dashboard.follow.library import Library
from paceline.dashboard.terminal.frame import Frame, take_frame
from paceline.dashboard.terminal.keys import Keys, single_keys
from paceline.dashboard.terminal.screen import as_text, screen
from paceline.dashboard.terminal.sparkline import BLOCKS, PLAIN_BLOCKS

DRAW_EVERY_S = 0.5
LOOK_EVERY_S = 0.1
REMOVED_FOR_S = 10.0
_PIPE_COLUMNS = 100


def watch(root: str | os.PathLike[str], *, run: str | None = None, once: bool = False) -> None:
    """Show the runs under ``root`` until the user leaves.

    Args:
      root: folder with runs in it, or of one run.
      run: id of the run to show first; default: the newest that goes on. It may yet begin, if there is no run at all.
      once: show them once and end, as happens without a terminal.
    Raises: RunFolderError: no run of that id.
    """
    library = Library(Path(root))
    console = Console()
    try:
        if once or not console.is_terminal or console.is_dumb_terminal:
            library.read_all()
            _check(library, run)
            width = console.width if console.is_terminal else _PIPE_COLUMNS
            print(as_text(screen(take_frame(library, shown=run), width=width, blocks=_blocks(console))))
            return
        library.poll()
        if library.runs():
            _check(library, run)
        with suppress(KeyboardInterrupt, BrokenPipeError):  # the usual end, and a terminal that was closed
            _follow(library, console, shown=run)
    finally:
        library.close()


def _check(library: Library, run: str | None) -> None:
    if run is not None:
        library.run(run)


def _blocks(console: Console) -> str:
    return BLOCKS if console.encoding.lower().replace("-", "") == "utf8" else PLAIN_BLOCKS


def _follow(library: Library, console: Console, *, shown: str | None) -> None:
    with single_keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        drawn_s, size, key = -DRAW_EVERY_S, console.size, None
        watched = Watched()
        while key != "quit":
            busy = library.poll().busy
            now_s = time.monotonic()
            if key or console.size != size or now_s - drawn_s >= DRAW_EVERY_S:
                frame = take_frame(library, shown=shown)
                if key in ("up", "down"):
                    shown = neighbour(frame, 1 if key == "down" else -1)
                    frame = take_frame(library, shown=shown)
                drawn_s, size = now_s, console.size
                _draw(live, watched.noted(frame, key=key, now_s=now_s), console=console, keys=keys)
            key = keys.wait(0.0 if busy else LOOK_EVERY_S)


class Watched:
    """Which run was shown last, so that it is said when that one is removed: for a while, or until a key is pressed."""

    def __init__(self) -> None:
        self._shown: str | None = None
        self._removed: str | None = None
        self._until_s = 0.0

    def noted(self, frame: Frame, *, key: str | None, now_s: float) -> Frame:
        """The frame, with the run that is gone."""
        there = {one["id"] for one in frame.runs}
        if self._shown is not None and self._shown not in there:
            self._removed, self._until_s = self._shown, now_s + REMOVED_FOR_S
        elif key or now_s >= self._until_s or self._removed in there:
            self._removed = None
        if frame.shown is not None or self._shown not in there:  # else it went away while it was read: said next time
            self._shown = frame.shown
        return dataclasses.replace(frame, removed=self._removed)


def _draw(live: Live, frame: Frame, *, console: Console, keys: Keys) -> None:
    width, height = console.size
    lines = screen(frame, width=width, height=height, blocks=_blocks(console), keys=keys.works)
    live.update(Group(*lines), refresh=True)


def neighbour(frame: Frame, by: int) -> str | None:
    """The run that many lines below the shown one; the list ends at its ends."""
    ids = [one["id"] for one in frame.runs]
    if frame.shown not in ids:
        return frame.shown
    return ids[max(0, min(ids.index(frame.shown) + by, len(ids) - 1))]
