"""Python stacks of processes that hang, asked for with SIGUSR2.

Owns: asking, waiting for the answer, saying why there is none.
Invariant: only a process that has a handler is asked: SIGUSR2 kills any other.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence

from paceline.launch.child import Child
from paceline.launch.sessions import send
from paceline.telemetry.status import stacks_path

PATIENCE_S = 2.0
_POLL_S = 0.05
_QUIET_S = 0.2


def collect(children: Sequence[Child], *, patience_s: float = PATIENCE_S) -> dict[int, str]:
    """Stacks by process, or a sentence that says why there are none."""
    answers = {child.index: why for child in children if (why := _why_not(child))}
    asked = [child for child in children if child.index not in answers]
    before = {child.index: _size(child) for child in asked}
    for child in asked:
        send([child.trainer()], signal.SIGUSR2)
    _await(asked, before, patience_s)
    for child in asked:
        answers[child.index] = _read(child, before[child.index]) or f"it did not answer within {patience_s:g} s"
    return answers


def _why_not(child: Child) -> str:
    record = child.status()
    if child.is_suspended():
        return "it was stopped, as by SIGSTOP (state T), and cannot answer"
    if record is None or child.trainer() != record.pid:
        return "it cannot be asked: it is not the process that told its status"
    return ""


def _await(asked: Sequence[Child], before: Mapping[int, int], patience_s: float) -> None:
    """Until each file has grown and then stands still: the stacks of many threads take several writes."""
    deadline_s = time.monotonic() + patience_s
    sizes: dict[int, int] = dict(before)
    changed_s = time.monotonic()
    while (now_s := time.monotonic()) < deadline_s:
        current = {child.index: _size(child) for child in asked}
        if current != sizes:
            sizes, changed_s = current, now_s
        if all(sizes[index] > size for index, size in before.items()) and now_s - changed_s > _QUIET_S:
            return
        time.sleep(_POLL_S)


def _size(child: Child) -> int:
    try:
        return os.stat(stacks_path(child.folder, child.index)).st_size
    except OSError:
        return 0


def _read(child: Child, start: int) -> str:
    try:
        with open(stacks_path(child.folder, child.index), "rb") as file:
            file.seek(start)
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
