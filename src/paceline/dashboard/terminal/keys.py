"""Single keys from the terminal, where there is one to ask.

Owns: the mode of the terminal while keys are read, and giving it back.
Invariant: however the block ends, the terminal is as it was.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from paceline.base.exits import TERMINATED

_NAMES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"q": "quit",
}
_CONTROL_D = b"\x04"


class Keys:
    """Waits for keys; without a terminal it only waits."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @property
    def works(self) -> bool:
        """Whether there is a keyboard."""
        return self._descriptor is not None

    def wait(self, seconds: float) -> str | None:
        """``up``, ``down`` or ``quit``; None after so many seconds or for another key."""
        if self._descriptor is None:
            time.sleep(seconds)
            return None
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return None
        pressed = os.read(self._descriptor, 16)
        if not pressed:  # the terminal went away
            return "quit"
        return "quit" if pressed == _CONTROL_D else _NAMES.get(pressed)


@contextmanager
def single_keys() -> Iterator[Keys]:
    """Keys of standard input, if that is a terminal of which this process is in the foreground.

    SIGTERM ends the block as an exception does, so that what is inside can give the terminal back too.
    """
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        with _keys() as keys:
            yield keys
        return
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with _keys() as keys:
            yield keys
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _terminated(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)


@contextmanager
def _keys() -> Iterator[Keys]:
    descriptor = _terminal()
    if descriptor is None:
        yield Keys(None)
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _terminal() -> int | None:
    try:
        descriptor = sys.stdin.fileno()
        # In the background, changing the mode would stop the process.
        return descriptor if os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):  # closed, or none at all
        return None
