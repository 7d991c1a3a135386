"""``run.json``, ``program.json`` and ``report.json`` of a run, as they are now.

Owns: reading a document again when it changed; what is said of one that is damaged; how many leaves are split, which
the page and a comparison both tell.
Not here: what the other entries mean (`views`).
Invariant: reading never raises; a document that is not there, or is damaged, is None.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.base.regular import in_place_of
from paceline.dashboard.follow.inside import opened_inside
from paceline.dashboard.follow.words import Words, presentable, say
from paceline.telemetry.document import parse_document
from paceline.telemetry.events import number_text

RETRY_S = 1.0
_LARGEST_BYTES = 32 * 1024 * 1024
_LARGEST = int(sys.float_info.max)


class Document:
    """One JSON file, which is read only if it lies under ``root``.

    A read that the system refused is tried again: permissions and files that are open change no file's time.
    """

    def __init__(self, path: Path, *, root: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._root = root
        self.content: dict[str, Any] | None = None
        self.problem: Words | None = None
        self._seen: tuple[int, int, int] | None = None
        self._monotonic = monotonic
        self._refused_s: float | None = None

    def refresh(self) -> bool:
        """Read it again if it changed; whether it did."""
        try:
            found = os.stat(self.path)
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            found, seen = None, None
        is_retry = self._refused_s is not None and self._monotonic() - self._refused_s >= RETRY_S
        if seen == self._seen and not is_retry:
            return False
        before = self.content, self.problem
        self._seen = seen
        self._refused_s = None
        self.content = self.problem = None
        if found is not None:
            self._read(found)
        return not is_retry or (self.content, self.problem) != before

    def _read(self, found: os.stat_result) -> None:
        try:
            if instead := in_place_of(self.path):
                raise ValueError(instead)
            if found.st_size > _LARGEST_BYTES:
                raise ValueError(f"it has more than {_LARGEST_BYTES >> 20} MB")
            with opened_inside(self.path, root=self._root) as descriptor, open(descriptor, "rb", closefd=False) as file:
                self.content = _clean(parse_document(file.read(_LARGEST_BYTES)))
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, OSError):
                self._refused_s = self._monotonic()
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.problem = say("problem.document_damaged", file=self.path.name, reason=reason)


def _clean(value: Any) -> Any:
    """As every strict JSON writer takes it: other versions, and people, may have written what none of ours does."""
    if isinstance(value, str):
        return presentable(value)
    if isinstance(value, float):
        return number_text(value) or value
    if isinstance(value, dict):
        return {presentable(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def entry(document: Mapping[str, Any] | None, *path: str) -> Any:
    """What stands in a document under these keys; None if one of them is not there, or holds something else."""
    found: Any = document
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def number_in(document: Mapping[str, Any] | None, *path: str) -> int | float | None:
    """As `entry`, if it is a number. Whole numbers on a line have no limit; beyond those of a float they are none."""
    found = entry(document, *path)
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return None
    return found if isinstance(found, float) or abs(found) <= _LARGEST else None


def whole_in(document: Mapping[str, Any] | None, *path: str) -> int | None:
    """As `entry`, if it is a whole number."""
    found = number_in(document, *path)
    return found if isinstance(found, int) else None


def text_in(document: Mapping[str, Any] | None, *path: str) -> str | None:
    """As `entry`, if it is text."""
    found = entry(document, *path)
    return found if isinstance(found, str) else None


def split_leaves(document: Mapping[str, Any] | None) -> int | None:
    """Leaves that stand but once, in parts on all devices, so that no audit can compare them; None if not known."""
    fields = entry(document, "placement", "fields")
    if not isinstance(fields, list):
        return None
    split = 0
    for field in fields:
        if not isinstance(field, Mapping):
            return None
        leaves, whole = whole_in(field, "leaves"), entry(field, "replicated")
        if leaves is None or not isinstance(whole, list):
            return None
        split += max(0, leaves - len(whole))
    return split
