"""``exports.json`` in the run folder: what was exported where, so that nothing is exported twice.

Owns: the form of the file, reading and replacing it.
Not here: exporting (`exporters.fanout` while a run trains, `exporters.replay` afterwards).
Invariant: an entry that says `whole` holds for all bytes before its offsets; a process that dies leaves one that says
not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from paceline.base.regular import reason
from paceline.telemetry.document import read_document, write_document
from paceline.telemetry.exporters.exporter import ExportError
from paceline.telemetry.exporters.place import Mark

EXPORTS_FILE = "exports.json"


class Entry(msgspec.Struct, frozen=True):
    """What one exporter has.

    Args:
      where: the place, in words.
      kept: what the next exporter of this run goes on from.
      offsets: by process, bytes of its events file that were handed over; JSON keys are strings.
      whole: all of these bytes were. False while a run logs there by itself, and for ever when it was killed or lost
        events.
      marks: by process, how to tell that its file is still the one that the offset belongs to; older versions wrote
        none.
    """

    where: str
    kept: dict[str, Any]
    offsets: dict[str, int]
    whole: bool
    marks: dict[str, Mark] = {}

    def offset(self, process: int) -> int:
        """Where the export of a process goes on [bytes]."""
        return self.offsets.get(str(process), 0)

    def mark(self, process: int) -> Mark | None:
        """Of the file before that offset; None if none was noted."""
        return self.marks.get(str(process))


class Ledger:
    """The entries of one run folder, read anew each time: a run and `paceline log` may both write."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / EXPORTS_FILE

    def entry(self, name: str) -> Entry | None:
        """What the exporter of this name has; None if nothing.

        Raises: ExportError: the file is damaged.
        """
        found = self._read().get(name)
        if found is None:
            return None
        try:
            return msgspec.convert(found, Entry)
        except msgspec.ValidationError as error:
            raise self._damaged(error) from error

    def put(self, name: str, entry: Entry) -> None:
        """Replaces an entry. Raises: ExportError: the disk refused, or the file is damaged."""
        self._write(self._read() | {name: msgspec.to_builtins(entry)})

    def _write(self, entries: dict[str, Any]) -> None:
        try:
            write_document(self.path, entries)
        except OSError as error:
            raise ExportError(
                what=f"cannot write {str(self.path)!r}: {error.strerror or error}",
                why="without it the next export of this run would repeat what is there already",
                fix="free space, or export a copy of the run in a folder that you can write to",
            ) from error

    def check(self) -> None:
        """Replaces the file by itself: a folder that takes no entry is told before anything is exported.

        Raises: ExportError: as `put`.
        """
        self._write(self._read())

    def _read(self) -> dict[str, Any]:
        try:
            return read_document(self.path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> ExportError:
        return ExportError(
            what=f"cannot read {str(self.path)!r}: {reason(error)}",
            why="it says what was exported already",
            fix="remove it; the next export then begins anew",
        )
