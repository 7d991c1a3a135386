"""What the terminal shows: the output of process 0 as it comes, and the supervisor's own words.

Owns: following a log, keeping both kinds of text apart, holding output back while a failure is sorted out.
Invariant: what is shown is what the log holds but for noise, in order; a terminal that is gone stops nothing.

The log is read after the process wrote it, so that no pipe can fill, block the process, or lose its last words.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO, TextIO

from paceline.launch.noise import NoiseFilter

_CHUNK_BYTES = 1 << 16
_LOOK_BYTES = 1 << 20


class Screen:
    """Standard output for process 0, standard error for the supervisor.

    Args:
      out: where the process's output goes, as bytes.
      err: where the supervisor speaks.
    """

    def __init__(self, out: BinaryIO | None = None, err: TextIO | None = None) -> None:
        self._out = out
        self._err = err
        self._log: int | None = None
        self._noise = NoiseFilter()
        self._gone = False
        self._ends_line = True

    def follow(self, log: Path, *, start: int) -> None:
        """Show this log from a byte on; the one before is shown to its end first."""
        self.finish()
        self._log = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        os.lseek(self._log, start, os.SEEK_SET)

    def show(self) -> None:
        """Show what is new, at most a megabyte, so that nothing else waits for a process that writes without end."""
        self._copy(_LOOK_BYTES)

    def rest(self) -> bytes:
        """Take what is new without showing it."""
        chunks = []
        while self._log is not None and (chunk := os.read(self._log, _CHUNK_BYTES)):
            chunks.append(chunk)
        return b"".join(chunks)

    def write(self, output: bytes) -> None:
        """Show output of the process, without noise."""
        self._show(self._noise.pass_on(output))

    def _show(self, output: bytes) -> None:
        if not output or self._gone:
            return
        out = self._out or sys.stdout.buffer
        try:
            out.write(output)
            out.flush()
        except (OSError, ValueError):  # `| head` has ended; the logs hold everything
            self._gone = True
        self._ends_line = output.endswith(b"\n")

    def finish(self) -> None:
        """Show the log to its end, and let go of it."""
        if self._log is None:
            return
        self._copy(None)
        self._show(self._noise.rest())
        os.close(self._log)
        self._log = None

    def say(self, text: str, *, bare: bool = False) -> None:
        """Say something, on a line of its own.

        Args:
          text: words.
          bare: without the name of the program before it, as for a traceback.
        """
        lead = "" if self._ends_line else "\n"
        self._ends_line = True
        err = self._err or sys.stderr
        try:
            err.write(f"{lead}{text}\n" if bare else f"{lead}paceline launch: {text}\n")
            err.flush()
        except (OSError, ValueError):
            return

    def _copy(self, most: int | None) -> None:
        shown = 0
        while self._log is not None and (most is None or shown < most):
            chunk = os.read(self._log, _CHUNK_BYTES)
            if not chunk:
                return
            self.write(chunk)
            shown += len(chunk)
