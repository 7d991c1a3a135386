"""Results of `scale`, `verify` and `plan` that lie beside the runs, for the list on the page and for comparisons.

Owns: which JSON files are results, their titles; where the subject of a comparison lies.
Not here: finding files (`dashboard.follow.root`), opening them (`dashboard.follow.inside`), reading a result
(`dashboard.compare`).
Invariant: a file is read again only when it changed, and never one that leads out of the folder of runs, also if it
came to do so a moment ago; one request reads `_BYTES_A_REQUEST` of new files and a little more, the next goes on.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from paceline.base.errors import PacelineError, RunFolderError
from paceline.dashboard.compare.result_file import ResultKind, SubjectError, kind_of
from paceline.dashboard.compare.subject import Subject
from paceline.dashboard.compare.subjects import followed_subject, load_subject
from paceline.dashboard.follow.inside import leads_outside, opened_inside
from paceline.dashboard.follow.library import Library
from paceline.dashboard.follow.words import presentable

MOST_RESULTS = 200
_MOST_BYTES = 16 * 2**20
_BYTES_A_REQUEST = 32 * 2**20
_HEAD_BYTES = 64 * 1024
_TITLE_CHARACTERS = 200
_MARKS = (b'"scalings"', b'"plan"', b'"results"')  # each of the commands writes one of these near the beginning

Version = tuple[int, int, int, int]


@dataclass(frozen=True)
class Result:
    """One file that can be compared.

    Args:
      id: its path under the root.
      kind: the command that wrote it.
      title: what the command was asked for.
      updated_s: Unix time of its last change [s].
    """

    id: str
    kind: ResultKind
    title: str
    updated_s: float

    def as_dict(self) -> dict[str, Any]:
        """As ``/api/runs`` lists it."""
        return {"id": self.id, "kind": self.kind, "title": self.title, "updated_s": self.updated_s}


class Results:
    """Of one library. Safe to use from several threads."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known: dict[str, tuple[Version, Result | None]] = {}  # None: it is no result
        self._lock = Lock()  # held for no reading

    def all(self) -> list[Result]:
        """All results, the newest first, `MOST_RESULTS` at most."""
        files = dict(self._library.results)
        with self._lock:
            self._known = {id: known for id, known in self._known.items() if id in files}
            known = dict(self._known)
        found: list[Result] = []
        left_bytes = _BYTES_A_REQUEST
        for id, path in files.items():
            version = _version(path)
            if version is None:
                continue
            if id not in known or known[id][0] != version:
                if left_bytes <= 0:
                    continue
                result, read_bytes = self._read(id, path)
                left_bytes -= read_bytes
                known[id] = version, result
                with self._lock:
                    self._known[id] = known[id]
            if (result := known[id][1]) is not None:
                found.append(result)
        return sorted(found, key=lambda result: result.updated_s, reverse=True)[:MOST_RESULTS]

    def subject(self, id: str) -> Subject:
        """What a comparison knows of a run or a result.

        Raises: RunFolderError: neither has this id. PacelineError: it cannot be read.
        """
        try:
            return self._subject(id)
        except PacelineError:
            raise
        except Exception as error:  # files may hold anything: what was not thought of must not look like our mistake
            raise SubjectError(
                what=f"{presentable(id)!r} cannot be compared: {type(error).__name__}: {presentable(str(error))}"[:500],
                why="its files are damaged, or were written by another version",
                fix="leave it out, or make it again",
            ) from error

    def _subject(self, id: str) -> Subject:
        root = self._library.root
        file = self._library.results.get(id)
        if file is not None:
            self._refuse_links((file,), id)
            return load_subject(file, name=id, root=root)
        run = self._library.run(id)
        self._refuse_links((run.folder, *_links_in(run.folder)), id)
        # A run that is still being read is read apart, so that a comparison never shows a part of it.
        return followed_subject(run) if run.caught_up else load_subject(run.folder, name=id, root=root)

    def _refuse_links(self, paths: Iterable[Path], id: str) -> None:
        """For the words: what is opened later is checked when it is open."""
        for path in paths:
            if leads_outside(path, root=self._library.root):
                raise RunFolderError(
                    what=f"{id!r} holds {presentable(path.name)}, a link that leads out of the watched folder",
                    why="nothing outside of the watched folder is read",
                    fix="copy what it leads to into the folder, or watch a folder that holds both",
                )

    def _read(self, id: str, path: Path) -> tuple[Result | None, int]:
        """The result, if it is one, and how many bytes that took."""
        try:
            with opened_inside(path, root=self._library.root) as descriptor:
                state = os.fstat(descriptor)
                if state.st_size > _MOST_BYTES:
                    return None, 0
                with open(descriptor, "rb", closefd=False) as file:
                    content = file.read(_HEAD_BYTES)
                    if any(mark in content for mark in _MARKS):
                        content += file.read(_MOST_BYTES - len(content))
        except OSError:
            return None, 0
        return _result(id, content, state.st_mtime), len(content)


def _version(path: Path) -> Version | None:
    """Changes when the file does; None if there is none, or it is no regular one."""
    try:
        state = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(state.st_mode):
        return None
    return state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size


def _result(id: str, content: bytes, updated_s: float) -> Result | None:
    try:
        parts = msgspec.json.decode(content, type=dict[str, msgspec.Raw])  # only its keys: some milliseconds a megabyte
        kind = kind_of(parts)
        return None if kind is None else Result(id, kind, _title(parts, kind, id), updated_s)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _title(parts: Mapping[str, msgspec.Raw], kind: ResultKind, id: str) -> str:
    """The task and the command, or the file's name where it does not say."""
    config = msgspec.json.decode(parts["config"]) if "config" in parts else None
    subject = msgspec.json.decode(parts["subject"]) if "subject" in parts else None
    target = config.get("target") if isinstance(config, Mapping) else subject
    return f"{kind} {target[:_TITLE_CHARACTERS]}" if isinstance(target, str) and target else f"{kind} {id}"


def _links_in(path: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(path) if entry.is_symlink()]
    except OSError:
        return []
