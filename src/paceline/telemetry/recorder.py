"""Writing what happens in a run.

Owns: ``events-<process>.jsonl``, appended one line and one system call at a time.
Not here: the run folder and its documents (`telemetry.folder`), reading (`telemetry.reader`).
Invariant: whatever happens to the disk, training goes on, the first failure is kept and told once; what was written
is whole lines, except for a last one that a kill or a full disk tore.

A line costs about 5 microseconds and needs no flush: after `os.write` the bytes are the kernel's, and SIGKILL of this
process cannot take them back.
"""

from __future__ import annotations

import errno
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, SupportsFloat, runtime_checkable

from paceline.base.errors import RunFolderError
from paceline.telemetry.events import Event, Kind, Where, encode
from paceline.telemetry.folder import RunFolder

_LOOK_EVERY_S = 1.0


@runtime_checkable
class EventSink(Protocol):
    """What the training loop tells its story to: a `Recorder`, or a `NullRecorder` for a run without a folder."""

    @property
    def failure(self) -> OSError | None: ...

    def step(self, step: int, values: Mapping[str, SupportsFloat]) -> None: ...

    def evaluation(self, step: int, values: Mapping[str, SupportsFloat]) -> None: ...

    def audit(
        self, step: int, values: Mapping[str, SupportsFloat], *, text: str | None = None, where: Sequence[Where] = ()
    ) -> None: ...

    def notice(self, step: int, text: str) -> None: ...

    def checkpoint(self, step: int, text: str) -> None: ...

    def skip(self, step: int, text: str) -> None: ...

    def close(self, text: str | None = None) -> None: ...

    def __enter__(self) -> EventSink: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=5)


class Recorder:
    """Appends the events of one process to its file in the run folder.

    Writes a ``start`` event when made and an ``end`` event when closed. A resumed run appends to the file that is
    there; a line that a kill had torn is ended first, so that it spoils no other.

    Args:
      folder: the run's folder, which exists.
      process: index of this process.
      first_step: updates completed when this recorder starts, as a resumed run has.
      warn: called once, with a message, when the first event is lost; `warnings.warn` by default.
      clock: Unix time [s].

    Raises: RunFolderError: the file cannot be opened. Later failures raise nothing: see `failure`.
    """

    def __init__(
        self,
        folder: RunFolder,
        process: int = 0,
        *,
        first_step: int = 0,
        warn: Callable[[str], None] = _warn,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = folder.events_file(process)
        self._warn = warn
        self._clock = clock
        self._failure: OSError | None = None
        self._last_step = first_step
        self._next_look_s = clock() + _LOOK_EVERY_S
        self._removed = False
        try:
            self._descriptor: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            self._torn = _ends_in_a_torn_line(self._descriptor)
        except OSError as error:
            raise RunFolderError(
                what=f"cannot open {str(self.path)!r}: {os.strerror(error.errno or 0)}",
                why="the run would leave no events for the page, the report or a comparison",
                fix="make the folder with RunFolder.create, and see that you can write to it",
            ) from error
        self._record("start", first_step, {})

    @property
    def failure(self) -> OSError | None:
        """The first failure to write, or None while every event is on the disk."""
        return self._failure

    def step(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Update ``step`` is complete. Values by metric key; numpy and computed jax scalars are taken too."""
        self._record("step", step, values)

    def evaluation(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """An evaluation after update ``step``."""
        self._record("evaluation", step, values)

    def audit(
        self, step: int, values: Mapping[str, SupportsFloat], *, text: str | None = None, where: Sequence[Where] = ()
    ) -> None:
        """A comparison of the replicas after update ``step``; ``text`` says what differs, ``where`` on what devices."""
        self._record("audit", step, values, text, where)

    def notice(self, step: int, text: str) -> None:
        """Words for people: a repair, a checkpoint that was not found."""
        self._record("notice", step, {}, text)

    def checkpoint(self, step: int, text: str) -> None:
        """The state after update ``step`` is saved."""
        self._record("checkpoint", step, {}, text)

    def skip(self, step: int, text: str) -> None:
        """Update ``step`` was left out on all devices, because it was not finite."""
        self._record("skip", step, {}, text)

    def close(self, text: str | None = None) -> None:
        """Writes ``end``, with ``text`` if the run did not end as planned. Closing again does nothing."""
        if self._descriptor is None:
            return
        self._next_look_s = 0.0
        self._record("end", self._last_step, {}, text)
        descriptor, self._descriptor = self._descriptor, None
        try:
            os.close(descriptor)
        except OSError as error:  # a network disk may tell only now that it could not keep what it took
            self._fail(error)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes; an exception becomes the text of the ``end`` event, and goes on."""
        self.close(None if error is None else f"{type(error).__name__}: {error}".removesuffix(": "))

    def _record(
        self, kind: Kind, step: int, values: Mapping[str, SupportsFloat], text: str | None = None,
        where: Sequence[Where] = (),
    ) -> None:  # fmt: skip
        time_s = self._clock()
        step = int(step)
        self._last_step = max(self._last_step, step)  # a checkpoint is told after later steps
        event = Event(kind, step, time_s, values, text, tuple(where))  # pyright: ignore[reportArgumentType]: only read
        line = encode(event)
        try:
            if time_s >= self._next_look_s:
                self._next_look_s = time_s + _LOOK_EVERY_S
                self._look()
            self._write(line)
        except OSError as error:
            self._fail(error)

    def _write(self, line: bytes) -> None:
        """One system call, unless the disk takes a part only: then the rest is tried, to learn why."""
        if self._removed:
            return
        if self._descriptor is None:
            raise OSError(errno.EBADF, "the recorder is closed", str(self.path))
        left = b"\n" + line if self._torn else line
        while True:
            written = os.write(self._descriptor, left)
            self._torn = written < len(left)
            if not self._torn:
                return
            if written == 0:
                raise OSError(errno.EIO, "the disk took nothing and gave no reason", str(self.path))
            left = left[written:]

    def _look(self) -> None:
        """A file that was removed takes writes without complaint; only its link count tells."""
        if self._descriptor is not None and not self._removed and os.fstat(self._descriptor).st_nlink == 0:
            self._removed = True
            raise FileNotFoundError(errno.ENOENT, "was removed while the run went on", str(self.path))

    def _fail(self, error: OSError) -> None:
        if self._failure is None:
            self._failure = error
            self._warn(
                f"events of this run are being lost from step {self._last_step} on: {str(self.path)!r}: "
                f"{error.strerror or error}. Training goes on."
            )


class NullRecorder:
    """The recorder of a run without a folder: takes everything, keeps nothing."""

    failure: OSError | None = None

    def step(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Keeps nothing."""

    def evaluation(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Keeps nothing."""

    def audit(
        self, step: int, values: Mapping[str, SupportsFloat], *, text: str | None = None, where: Sequence[Where] = ()
    ) -> None:
        """Keeps nothing."""

    def notice(self, step: int, text: str) -> None:
        """Keeps nothing."""

    def checkpoint(self, step: int, text: str) -> None:
        """Keeps nothing."""

    def skip(self, step: int, text: str) -> None:
        """Keeps nothing."""

    def close(self, text: str | None = None) -> None:
        """Does nothing."""

    def __enter__(self) -> NullRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing; an exception goes on."""


def _ends_in_a_torn_line(descriptor: int) -> bool:
    size_bytes = os.fstat(descriptor).st_size
    return size_bytes > 0 and os.pread(descriptor, 1, size_bytes - 1) != b"\n"
