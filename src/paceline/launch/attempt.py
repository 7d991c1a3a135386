"""One attempt: all processes of this machine from their start to the end of the last one.

Owns: what the end, the hang or the failure of one means for the others; stopping them.
Not here: whether there is another attempt (`launch.supervisor`), judging a hang (`launch.watchdog`), words about one
process (`launch.report`).
Invariant: when an attempt is over, none of its processes runs, nor anything that they started in their sessions.
"""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.base.exits import INTERRUPTED, LOST_PEER, TERMINATED
from paceline.base.units import format_duration
from paceline.launch.child import Child, start
from paceline.launch.report import (
    Failure,
    ending,
    error_in,
    error_offset,
    failure_of,
    first_failing,
    others,
    shortened,
    whereabouts,
)
from paceline.launch.screen import Screen
from paceline.launch.sessions import GRACE_S, Guard, members, send
from paceline.launch.settings import Launch
from paceline.launch.signals import Signals
from paceline.launch.stacks import collect
from paceline.launch.watchdog import Hang, Stalled, Watchdog
from paceline.topology.membership import free_port

Reason = Literal["done", "failed", "hung", "interrupted"]

_TICK_S = 0.1
_LOOK_EVERY_S = 0.5
_SETTLE_S = 0.3
_POLL_S = 0.05
_STUCK_S = 10.0
_LAST_WAIT_S = 5.0
_SILENT_S = 60.0
_SAVED = (INTERRUPTED, TERMINATED)
_STACKS_SHOWN = 3


@dataclass(frozen=True)
class Ended:
    """How an attempt ended.

    Args:
      reason: in one word.
      exit_code: of the first failing process; 75 for a hang; 130 or 143 after a signal.
      words: the reason, in a sentence.
      first_failing: the process that failed or hung first, if any.
      duration_s: from start to end.
    """

    reason: Reason
    exit_code: int
    words: str
    first_failing: Failure | None
    duration_s: float


class Attempt:
    """All processes of this machine, once.

    Args:
      launch: what to run.
      number: 0, or one more for each restart.
      folder: for logs and status.
      guard: ends the processes if this one is killed.
      signals: installed handlers.
      screen: what the terminal shows.
    """

    def __init__(
        self, launch: Launch, number: int, *, folder: Path, guard: Guard, signals: Signals, screen: Screen
    ) -> None:
        self._launch = launch
        self._number = number
        self._folder = folder
        self._guard = guard
        self._signals = signals
        self._screen = screen
        self._children: list[Child] = []
        self._watchdog = Watchdog(hang_timeout_s=launch.hang_timeout_s, compile_timeout_s=launch.compile_timeout_s)
        self._started_s = self._next_look_s = time.monotonic()
        self._said_unwatched = False

    def run(self) -> Ended:
        """Start all, watch them, and return when the last one has ended.

        Raises: ProcessError: one cannot be started; the others have been stopped then.
        """
        coordinator = self._launch.coordinator or f"127.0.0.1:{free_port()}"
        try:
            for index in self._launch.indices:
                child = start(self._launch, index, folder=self._folder, attempt=self._number, coordinator=coordinator)
                self._children.append(child)
                self._guard.add(child.session)
            if self._shown:
                self._screen.follow(self._shown.log, start=self._shown.log_start)
            return self._watch()
        finally:
            self._stop(0.0)
            self._screen.finish()

    @property
    def _shown(self) -> Child | None:
        """Process 0, whose output the terminal shows, on its machine."""
        return self._children[0] if self._children and self._children[0].index == 0 else None

    @property
    def _alive(self) -> list[Child]:
        return [child for child in self._children if child.is_alive]

    def _watch(self) -> Ended:
        while True:
            self._signals.wait(_TICK_S)
            self._look()
            if self._signals.received:
                return self._interrupted()
            looks = time.monotonic() >= self._next_look_s
            if any(child.has_failed for child in self._children) or (looks and self._has_stuck_failure()):
                return self._failed()
            if not self._alive:
                self._stop(GRACE_S)
                return self._ended("done", 0, "all processes are done", None)
            if looks and (hang := self._hang()):
                return self._hung(hang)
            if not self._failures():  # else what process 0 says may be of the consequence: first see who failed
                self._screen.show()

    def _look(self) -> None:
        for child in self._children:
            child.look()

    def _ended(self, reason: Reason, code: int, words: str, first: Failure | None) -> Ended:
        return Ended(reason, code, words, first, time.monotonic() - self._started_s)

    def _failures(self) -> list[float]:
        """When processes that have not ended told of an error."""
        records = [child.status() for child in self._alive]
        return [record.failed_s for record in records if record and record.failed_s]

    def _has_stuck_failure(self) -> bool:
        """Whether one told its error long ago and has not ended: it waits for its peers, in some exit handler."""
        return any(time.monotonic() - failed_s > _STUCK_S for failed_s in self._failures())

    def _hang(self) -> Hang | None:
        now_s = time.monotonic()
        self._next_look_s = now_s + _LOOK_EVERY_S
        records = {child.index: child.status() for child in self._alive}
        silent = [index for index, record in records.items() if record is None]
        if silent and not self._said_unwatched and self._launch.hang_timeout_s and now_s > self._started_s + _SILENT_S:
            self._said_unwatched = True
            names = ", ".join(map(str, silent))
            self._screen.say(f"processes that tell no progress, so that a hang cannot be seen: {names}")
        told = {index: record for index, record in records.items() if record is not None}
        return self._watchdog.look(told, now_s=now_s)

    def _failed(self) -> Ended:
        deadline_s = time.monotonic() + _SETTLE_S  # others that fail by themselves, just now, should be able to say why
        while self._alive and time.monotonic() < deadline_s:
            self._signals.wait(_POLL_S)
            self._look()
        failed = [child.code for child in self._children if child.has_failed]
        planned = bool(failed) and all(code in _SAVED for code in failed)  # somebody stopped one: the others save too
        self._stop(self._launch.stop_grace_s if planned else GRACE_S)
        first = first_failing(self._children)
        assert first is not None, "a failure without a process that failed"
        failure = failure_of(first)
        ended = "ended" if failure.exit_code in _SAVED else "failed"
        words = f"process {first.index} {ended}{whereabouts(first)}: {ending(first)}"
        self._tell_failure(first, failure, words)
        return self._ended("failed", failure.exit_code, words, failure)

    def _tell_failure(self, first: Child, failure: Failure, words: str) -> None:
        shown, held = self._shown, self._screen.rest()
        above = bool(failure.error) and shown is not None and failure.error == error_in(shown.log, shown.log_start)
        if not above:  # what process 0 says of a peer that it lost would hide the cause
            text = held.decode("utf-8", "surrogateescape")
            held = text[: error_offset(text)].encode("utf-8", "surrogateescape")
        self._screen.write(held)
        self._screen.say(f"{words}{'; its error is above' * above}; log: {first.log}")
        if not above and failure.error:
            self._screen.say(failure.error, bare=True)
        for line in others(self._children, first.index, error=failure.error):
            self._screen.say(f"  {line}", bare=True)

    def _hung(self, hang: Hang) -> Ended:
        by_index = {child.index: child for child in self._alive}
        stalled = [*hang.culprits, *hang.waiting]
        suspended = [one for one in stalled if by_index[one.process].is_suspended()]
        culprits = suspended or list(hang.culprits)
        answers = collect([by_index[one.process] for one in stalled if one.process in by_index])
        first = culprits[0]
        words = _hang_words(first)
        self._screen.show()
        for one in culprits[:_STACKS_SHOWN]:
            self._screen.say(_hang_words(one))
            self._screen.say(f"its Python stacks: {_indented(answers[one.process])}", bare=True)
        for one in culprits[_STACKS_SHOWN:]:
            self._screen.say(f"  {_hang_words(one)}", bare=True)
        for one in (one for one in stalled if one not in culprits):
            words_of_one = f"step {one.record.step}, phase {one.record.phase}, for {format_duration(one.stalled_s)}"
            self._screen.say(f"  process {one.process}: {words_of_one}", bare=True)
        if first.record.phase == "step" and self._launch.nodes > 1 and not suspended:
            self._screen.say("  all of this machine are in one step: perhaps they wait for another machine", bare=True)
        self._screen.say(f"  stacks of all: {self._folder}/stacks-*.txt", bare=True)
        self._stop(GRACE_S)
        failure = Failure(
            process=first.process,
            exit_code=LOST_PEER,
            signal=None,
            phase=first.record.phase,
            step=first.record.step,
            error=answers[first.process],
            log=str(by_index[first.process].log),
            hung_s=first.stalled_s,
        )
        return self._ended("hung", LOST_PEER, words, failure)

    def _interrupted(self) -> Ended:
        number = self._signals.received[0][0]
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        grace_s = self._launch.stop_grace_s
        again = "; Ctrl-C again kills them" if number == signal.SIGINT else ""
        self._screen.say(f"{name}: each process may finish its step and save, for up to {grace_s:g} s{again}")
        for child in self._children:
            child.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        while self._alive and time.monotonic() < deadline_s and not self._signals.is_urgent:
            self._signals.wait(_TICK_S)
            self._screen.show()
            self._look()
            if self._broken():  # the others may wait for it in vain
                deadline_s = min(deadline_s, time.monotonic() + GRACE_S)
        for child in self._alive:
            self._screen.say(f"process {child.index} is killed: its state may not be saved")
        self._stop(0.0 if self._alive else GRACE_S)
        self._screen.finish()
        for child in self._broken():
            self._screen.say(f"process {child.index} while stopping: {ending(child)}; log: {child.log}")
        code = self._signals.exit_code
        assert code is not None, "interrupted without a signal"
        return self._ended("interrupted", code, f"stopped by {name}", None)

    def _broken(self) -> list[Child]:
        fine = (None, 0, *_SAVED, -signal.SIGTERM, -signal.SIGKILL)
        return [child for child in self._children if child.code not in fine]

    def _stop(self, grace_s: float) -> None:
        """End all processes and what they left behind: SIGTERM, and SIGKILL after the grace."""
        here = [child for child in self._children if not child.is_gone]
        for child in (child for child in here if child.is_alive):
            if child.is_suspended():  # it would see SIGTERM only when somebody lets it go on
                child.kill()
            child.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        warned: set[int] = set()
        while time.monotonic() < deadline_s and not self._signals.is_urgent:
            self._look()
            alive = {child.session for child in here if child.is_alive}
            left = members(child.session for child in here if child.session not in alive)
            if not alive and not left:
                break
            send(set(left) - warned, signal.SIGTERM)
            warned |= set(left)
            self._signals.wait(_POLL_S)
        self._reap(here)

    def _reap(self, children: list[Child]) -> None:
        for child in children:
            child.kill()
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(_LAST_WAIT_S)
            child.look()
            if child.is_alive:
                self._screen.say(f"process {child.index} cannot be killed: the system holds it, for a disk or a device")
            else:
                child.is_gone = True
                self._guard.remove(child.session)


def _hang_words(one: Stalled) -> str:
    phase = one.record.phase
    return (
        f"process {one.process} hangs: step {one.record.step}, phase {phase}, no progress for "
        f"{format_duration(one.stalled_s)} (limit {format_duration(one.limit_s)})"
    )


def _indented(text: str) -> str:
    lines = shortened(text.splitlines())
    return lines[0] if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)
