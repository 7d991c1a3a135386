"""How a process ended, in words: which failed first, its error, one line for each of the others.

Owns: reading the end of a log, naming exit codes and signals, choosing the first failure.
Not here: who was stopped and why (`launch.attempt`), printing (`launch.screen`).
Invariant: a process that ended because of another one is never named as the cause while the other is known.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.base.errors import PeerError
from paceline.base.exits import INTERRUPTED, LOST_PEER, TERMINATED
from paceline.launch.child import Child
from paceline.launch.noise import NOISE

MAX_LINES = 60
_HEAD_LINES = 15
_LAST_LINES = 15
_TAIL_BYTES = 256 * 1024
_NO_ERROR = "its last output:"
_START = re.compile(r"^(Traceback \(most recent call last\)|error: |Fatal Python error)")
_BY_SUPERVISOR = (TERMINATED, -signal.SIGTERM, -signal.SIGKILL)
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")

# The end of a process that a signal kills, or that leaves by `os._exit`, is seen up to a few milliseconds late, and it
# has no time to note it; a peer that fails because of it may have noted an earlier time.
_SUDDEN_LEAD_S = 0.5


@dataclass(frozen=True)
class Failure:
    """The first failing process, as ``--json`` writes it.

    Args:
      process: its index.
      exit_code: as a shell would see it: 128 + number for a signal.
      signal: name of the signal that killed it, or None.
      phase: what it did last, None if it told nothing.
      step: completed updates.
      error: its error, from the end of its log; stacks for one that hung.
      log: its log.
      hung_s: seconds without progress, None unless it hung.
    """

    process: int
    exit_code: int
    signal: str | None
    phase: str | None
    step: int | None
    error: str
    log: str
    hung_s: float | None = None


def first_failing(children: Sequence[Child]) -> Child | None:
    """The process that failed by itself, and first; one that lost a peer only if no other did.

    Where all find the same mistake one of them tells it for all: then that one, not a silent one that ended before.
    """
    failed = [child for child in children if child.code != 0 or child.has_left]
    by_itself = [child for child in failed if not child.stopped or _failed_s(child) is not None]
    causes = [child for child in by_itself if not _lost_a_peer(child)]
    ordered = sorted(causes or by_itself, key=_when)
    if not ordered or _tells_error(ordered[0]) or (ordered[0].code or 0) < 0:
        return ordered[0] if ordered else None
    return next((one for one in ordered if one.code == ordered[0].code and _tells_error(one)), ordered[0])


def _lost_a_peer(child: Child) -> bool:
    record = child.status()
    return child.code == LOST_PEER or (record is not None and record.error.startswith(PeerError.__name__))


def _tells_error(child: Child) -> bool:
    error = error_in(child.log, child.log_start)
    return bool(error) and not error.startswith(_NO_ERROR)


def _failed_s(child: Child) -> float | None:
    record = child.status()
    return record.failed_s if record else None


def _when(child: Child) -> float:
    failed_s = _failed_s(child)
    if failed_s is not None:
        return failed_s
    ended_s = child.ended_s if child.ended_s is not None else float("inf")
    return ended_s - _SUDDEN_LEAD_S if (child.code or 0) < 0 or child.has_left else ended_s


def failure_of(child: Child) -> Failure:
    """What is known of a process that failed."""
    record, code = child.status(), child.code
    # Stopped only because it failed and then would not end: the supervisor's signal says nothing of the cause.
    own = code if code and (not child.stopped or code not in _BY_SUPERVISOR) else 1
    return Failure(
        process=child.index,
        exit_code=shell_code(own),
        signal=signal_name(own) if own < 0 else None,
        phase=record.phase if record else None,
        step=record.step if record else None,
        error=error_in(child.log, child.log_start) or (record.error if record else ""),
        log=str(child.log),
    )


def shell_code(code: int) -> int:
    """Exit code as a shell shows it: 128 + number for a signal."""
    return code if code >= 0 else 128 - code


def signal_name(code: int) -> str:
    """Name of the signal in a negative exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def ending(child: Child) -> str:
    """How it ended, in words."""
    code = child.code
    if code is None:
        return "still there"
    if child.stopped and code in _BY_SUPERVISOR:
        return "stopped with the others"
    if child.has_left:
        return "left in the middle of a run (exit code 0)"
    known = {0: "done", LOST_PEER: "lost its peer", INTERRUPTED: "interrupted", TERMINATED: "terminated"}
    if code >= 0:
        return f"{known[code]} (exit code {code})" if code in known else f"exit code {code}"
    note = " (the kernel does that when memory runs out)" if code == -signal.SIGKILL else ""
    return f"killed by {signal_name(code)}{note}"


def whereabouts(child: Child) -> str:
    """`` at step 17, in phase input`` as far as it told."""
    record = child.status()
    if record is None:
        return ""
    phase = "" if record.phase in ("failed", "end") else f", in phase {record.phase}"
    return f" at step {record.step}{phase}"


def others(children: Sequence[Child], first: int, *, error: str = "") -> list[str]:
    """One line for each process but the first failing one."""
    lines = []
    for child in children:
        if child.index == first:
            continue
        same = error and child.has_failed and error_in(child.log, child.log_start) == error
        words = f"the same error, {ending(child)}" if same else ending(child)
        lines.append(f"process {child.index}{whereabouts(child)}: {words}; log: {child.log}")
    return lines


def error_in(log: Path, start: int = 0) -> str:
    """The error at the end of a log: from its last traceback or ``error:`` on, or else its last lines.

    Args:
      log: file.
      start: bytes of it that belong to earlier attempts.
    """
    try:
        with open(log, "rb") as file:
            end = file.seek(0, 2)
            file.seek(max(start, end - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line for line in text.rstrip().splitlines() if not line.startswith(NOISE)]
    begin = _error_start(lines)
    if begin is None:
        return "\n".join([_NO_ERROR, *lines[-_LAST_LINES:]]) if lines else ""
    return "\n".join(shortened(lines[begin:]))


def error_offset(text: str) -> int | None:
    """Where the error in a text begins; None if there is none."""
    lines = text.splitlines(keepends=True)
    begin = _error_start([line.rstrip("\r\n") for line in lines])
    return None if begin is None else sum(map(len, lines[:begin]))


def _error_start(lines: Sequence[str]) -> int | None:
    starts = [number for number, line in enumerate(lines) if _START.match(line)]
    if not starts:
        return None
    begin = starts.pop()
    # Back through a chain of exceptions, and to an error just before: threads and exit handlers complain after it.
    while starts and (_is_chained(lines, begin) or len(lines) - starts[-1] <= MAX_LINES):
        begin = starts.pop()
    return begin


def _is_chained(lines: Sequence[str], begin: int) -> bool:
    return any(line.startswith(_CHAINED) for line in lines[max(0, begin - 3) : begin])


def shortened(lines: Sequence[str]) -> list[str]:
    """At most `MAX_LINES` lines: the first and the last ones, and how many are between."""
    if len(lines) <= MAX_LINES:
        return list(lines)
    left_out = len(lines) - MAX_LINES + 1
    return [*lines[:_HEAD_LINES], f"... {left_out} lines more ...", *lines[_HEAD_LINES + left_out :]]
