"""Which folders under a root are runs.

Owns: the search, its bounds, what it passes over; result files of other commands beside the runs.
Not here: what a run holds (`follow.run`).
Invariant: never leaves the root, also not by a link; ends, whatever lies there.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from paceline.dashboard.follow.inside import leads_outside
from paceline.dashboard.follow.run import EVENTS_NAME
from paceline.dashboard.follow.words import Words, presentable, say
from paceline.telemetry.folder import PROGRAM_FILE, REPORT_FILE, RUN_FILE

DEEPEST = 6
MOST_FOLDERS = 5000
MOST_LINKS_NAMED = 5
_PASSED_OVER = ("checkpoints", "__pycache__", "node_modules")
_WRITTEN_OUT = re.compile(r"\\udc[89a-f][0-9a-f]")
_DOCUMENTS = (RUN_FILE, PROGRAM_FILE, REPORT_FILE)


@dataclass
class Found:
    """What a search found.

    Args:
      runs: folders of runs by id: the path under the root with ``/``; the root's own name if it is a run itself.
      results: other JSON files, by the same kind of id: what ``scale``, ``verify`` and ``plan`` wrote is among them.
      problems: what was not searched.
      searched: folders in which a run can appear, with the modification time [ns] that each had before.
    """

    runs: dict[str, Path] = field(default_factory=dict)
    results: dict[str, Path] = field(default_factory=dict)
    problems: list[Words] = field(default_factory=list)
    searched: dict[Path, int] = field(default_factory=dict)


def find(root: Path) -> Found:
    """Search the root. A folder that holds a run is not searched for further ones."""
    found = Found()
    if not root.is_dir():
        found.problems.append(say("problem.root_missing", root=presentable(str(root))))
        return found
    search = _Search(root, found)
    search.search(root, depth=0)
    search.tell_outside()
    return found


class _Search:
    def __init__(self, root: Path, found: Found) -> None:
        self._root = root
        self._found = found
        self._visited: set[tuple[int, int]] = set()
        self._outside: list[str] = []

    def search(self, folder: Path, *, depth: int) -> None:
        if self._is_beyond(folder, depth):
            return
        try:
            with os.scandir(folder) as opened:
                entries = sorted(opened, key=lambda entry: entry.name)
        except OSError as error:
            self._say("problem.unreadable_folder", folder=self._id(folder), reason=error.strerror or str(error))
            return
        folders, files = [], {}
        for entry in entries:
            if _is_folder(entry):
                folders.append(entry)
            else:
                files[entry.name] = entry
        for name, entry in files.items():
            is_result = name.endswith(".json") and name not in _DOCUMENTS and not name.startswith(".")
            if is_result and self._is_inside(entry) and _is_file(entry):
                self._found.results[self._id(folder / name)] = folder / name
        if RUN_FILE in files or any(map(EVENTS_NAME.fullmatch, files)) or (not entries and depth > 0):
            self._found.runs[self._id(folder)] = folder
            if entries:
                self._found.searched.pop(folder, None)
            return
        for entry in folders:
            if not entry.name.startswith(".") and entry.name not in _PASSED_OVER and self._is_inside(entry):
                self.search(folder / entry.name, depth=depth + 1)

    def _is_beyond(self, folder: Path, depth: int) -> bool:
        """Whether the search ends here: been here by another name, too deep, too many."""
        try:
            found = os.stat(folder)
        except OSError:
            return True
        if (found.st_dev, found.st_ino) in self._visited:
            return True
        self._visited.add((found.st_dev, found.st_ino))
        if depth > DEEPEST:
            self._say("problem.too_deep", depth=DEEPEST, root=presentable(str(self._root)))
        elif len(self._visited) > MOST_FOLDERS:
            self._say("problem.too_many", most=MOST_FOLDERS, root=presentable(str(self._root)))
        else:
            self._found.searched[folder] = found.st_mtime_ns
            return False
        return True

    def _is_inside(self, entry: os.DirEntry[str]) -> bool:
        """Whether an entry of a folder inside is inside too: only a link can lead out. One that does is noted."""
        if not entry.is_symlink() or not leads_outside(Path(entry.path), root=self._root):
            return True
        self._outside.append(self._id(Path(entry.path)))
        return False

    def tell_outside(self) -> None:
        """Name the links that were left out, by where they lie and not by where they lead."""
        for id in self._outside[:MOST_LINKS_NAMED]:
            self._say("problem.outside", file=id)
        if len(self._outside) > MOST_LINKS_NAMED:
            self._say("problem.outside_more", count=len(self._outside) - MOST_LINKS_NAMED)

    def _id(self, path: Path) -> str:
        inside = path.relative_to(self._root).as_posix()
        return _distinct((self._root.name or "root") if inside == "." else inside)

    def _say(self, key: str, **values: object) -> None:
        words = say(key, **values)
        if words not in self._found.problems:
            self._found.problems.append(words)


def _distinct(name: str) -> str:
    """As `presentable`, but no two names become one: a byte written out, and a name spelled so, stay apart."""
    if _WRITTEN_OUT.search(presentable(name)):
        name = name.replace("\\", "\\\\")
    return presentable(name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a regular file: to open a named pipe would wait for its writer."""
    try:
        return entry.is_file()
    except OSError:
        return False
