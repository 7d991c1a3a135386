"""Where a process of a run is just now: for a supervisor that must tell a slow process from one that hangs.

Owns: ``status-<process>`` in the supervisor's folder, one record that each event replaces; the Python stacks that
SIGUSR2 writes to ``stacks-<process>.txt`` there.
Not here: events, which are kept (`telemetry.recorder`); the judgement (`launch.watchdog`).
Invariant: a reader sees a whole record or none, and whatever happens to the disk, training goes on.

An event costs about one microsecond: one `os.pwrite` of 72 bytes. A mapped file would be three times as fast, but a
process that stores to a mapped page on a full disk is killed (SIGBUS). A reader may still see the halves of two
writes, so the record carries its checksum.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import struct
import time
import warnings
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args, runtime_checkable

from paceline.base.launched import LAUNCH_FOLDER, PROCESS_INDEX

Phase = Literal["start", "compile", "input", "step", "checkpoint", "evaluation", "end", "failed"]

_PHASES: tuple[Phase, ...] = get_args(Phase)
_CODES = {phase: code for code, phase in enumerate(_PHASES)}

# events, pid, step, phase, time of the phase, median step time, time of the failure or 0, bytes of its text.
_BODY = struct.Struct("<qqqqdddq")
_CHECKSUM = struct.Struct("<Q")
_RECORD_BYTES = _BODY.size + _CHECKSUM.size
_TEXT_OFFSET = 128
_TEXT_BYTES = 4096 - _TEXT_OFFSET
_READS = 20


@runtime_checkable
class Status(Protocol):
    """What the training loop tells where it is: a `StatusFile`, or a `NullStatus` where no supervisor asks."""

    def phase(self, name: Phase, step: int) -> None:
        """This process enters a phase, ``step`` updates being complete."""
        ...

    def median(self, step_s: float) -> None:
        """The median time of a step so far, by which a supervisor judges how long a phase may take."""
        ...

    def failed(self, error_text: str) -> None:
        """This process ends with an error of its own. The first one counts: it may be the cause of the others'."""
        ...


@dataclass(frozen=True)
class StatusRecord:
    """One state of a process.

    Args:
      pid: process that wrote it.
      step: completed updates.
      phase: what it does since ``since_s``.
      since_s: `time.monotonic` [s] when it entered the phase: one clock for all processes of a machine.
      events: grows with each call; a process whose number stands still makes no progress.
      median_s: median time of a step [s]; 0.0 while unknown.
      failed_s: `time.monotonic` of its first error; None while there is none.
      error: text of that error.
    """

    pid: int
    step: int
    phase: Phase
    since_s: float
    events: int
    median_s: float
    failed_s: float | None
    error: str


class StatusFile:
    """Keeps the newest state of this process in one small file. For one thread: that of the training loop.

    Args:
      path: of the file, replaced if it is there.

    Raises: OSError: it cannot be made. Later failures to write are ignored: the supervisor then sees no progress
      and says so, which on such a disk is true of the run's files as well.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._pid = os.getpid()
        self._events = 0
        self._step = 0
        self._code = _CODES["start"]
        self._since_s = time.monotonic()
        self._median_s = 0.0
        self._failed_s = 0.0
        self._text_bytes = 0
        self._write()

    def phase(self, name: Phase, step: int) -> None:
        """Enter a phase; see `Status`."""
        self._step = step
        self._code = _CODES[name]
        self._since_s = time.monotonic()
        self._write()

    def median(self, step_s: float) -> None:
        """Median step time [s]; see `Status`."""
        self._median_s = step_s
        self._write()

    def failed(self, error_text: str) -> None:
        """The first call keeps its time and text; see `Status`."""
        self._code = _CODES["failed"]
        self._since_s = time.monotonic()
        if not self._failed_s:
            text = error_text.encode("utf-8", "backslashreplace")[:_TEXT_BYTES]
            with suppress(OSError):
                self._text_bytes = os.pwrite(self._descriptor, text, _TEXT_OFFSET)
            self._failed_s = self._since_s
        self._write()

    def _write(self) -> None:
        self._events += 1
        body = _BODY.pack(
            self._events,
            self._pid,
            self._step,
            self._code,
            self._since_s,
            self._median_s,
            self._failed_s,
            self._text_bytes,
        )
        try:
            os.pwrite(self._descriptor, body + _CHECKSUM.pack(zlib.crc32(body)), 0)
        except OSError:  # a full disk must not stop a run
            return

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):  # at the interpreter's end, or when the file could not be opened
            os.close(self._descriptor)


class NullStatus:
    """The status of a run that no supervisor started: keeps nothing."""

    def phase(self, name: Phase, step: int) -> None:
        """Keeps nothing."""

    def median(self, step_s: float) -> None:
        """Keeps nothing."""

    def failed(self, error_text: str) -> None:
        """Keeps nothing."""


def open_status(environment: Mapping[str, str] = os.environ) -> Status:
    """The status that this process's supervisor reads, or a `NullStatus` without one.

    From here on SIGUSR2 writes the Python stacks of all threads, even of a process that is stuck in C code.

    Args:
      environment: where the supervisor says its folder and the index of this process.
    """
    folder, process = environment.get(LAUNCH_FOLDER), environment.get(PROCESS_INDEX)
    if not folder or not process:
        return NullStatus()
    try:
        # Stacks first: a supervisor that sees a status may send SIGUSR2, which would kill a process without a handler.
        _write_stacks_on_signal(stacks_path(Path(folder), process))
        return StatusFile(status_path(Path(folder), process))
    except OSError as error:
        warnings.warn(
            f"the supervisor's folder {folder!r} cannot be written ({error.strerror}): it will not see if this "
            "process hangs. Training goes on.",
            RuntimeWarning,
            stacklevel=2,
        )
        return NullStatus()


def status_path(folder: Path, process: int | str) -> Path:
    """File of a process's status in the supervisor's folder."""
    return folder / f"status-{process}"


def stacks_path(folder: Path, process: int | str) -> Path:
    """File to which a process writes its Python stacks on SIGUSR2."""
    return folder / f"stacks-{process}.txt"


def read_status(path: Path) -> StatusRecord | None:
    """The newest state in the file, or None: not there, not written yet, or not a status."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for _ in range(_READS):  # a reader that meets a write half done looks again
            content = os.pread(descriptor, _RECORD_BYTES, 0)
            if len(content) == _RECORD_BYTES and _is_whole(content):
                return _decode(content, descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _is_whole(content: bytes) -> bool:
    return zlib.crc32(content[: _BODY.size]) == _CHECKSUM.unpack_from(content, _BODY.size)[0]


def _decode(content: bytes, descriptor: int) -> StatusRecord:
    events, pid, step, code, since_s, median_s, failed_s, text_bytes = _BODY.unpack_from(content)
    text = os.pread(descriptor, text_bytes, _TEXT_OFFSET) if text_bytes else b""  # written once, before the record
    return StatusRecord(
        pid=pid,
        step=step,
        phase=_PHASES[code],
        since_s=since_s,
        events=events,
        median_s=median_s,
        failed_s=failed_s or None,
        error=text.decode("utf-8", "replace"),
    )


def _write_stacks_on_signal(path: Path) -> None:
    """Opened now: a signal handler cannot open files, and the disk may be full or the folder gone by then."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    faulthandler.register(signal.SIGUSR2, file=descriptor, all_threads=True, chain=False)
