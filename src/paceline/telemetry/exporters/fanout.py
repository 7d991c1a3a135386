"""Events of a run that trains, to its recorder and to exporters.

Owns: the queue and the thread between the training loop and the exporters, what happens when one is slow or fails.
Not here: the exporters, and events that are on the disk already (`exporters.replay`).
Invariant: the recorder gets every event first, as if there were no exporter; nothing that an exporter does delays a
step, raises in the training loop, or holds up the end for longer than `PATIENCE_S`.

The thread looks by itself every half second: woken for each event, it would take the interpreter lock at each step.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsFloat

from paceline.base.units import format_count
from paceline.telemetry.events import Event, Kind, Where, plain_number
from paceline.telemetry.exporters.exporter import EXPORTERS, Exporter, make_exporter, sendable
from paceline.telemetry.exporters.ledger import Entry, Ledger
from paceline.telemetry.exporters.place import Mark, file_mark
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.recorder import EventSink, NullRecorder, Recorder

CAPACITY_EVENTS = 10_000
EVERY_S = 0.5
PATIENCE_S = 20.0
_BEFORE_THE_FIRST_STEP = ("start", "notice", "end")


def open_recorder(
    folder: RunFolder | None,
    *,
    process: int = 0,
    first_step: int = 0,
    log_to: Sequence[str] = (),
    run: Mapping[str, Any] | None = None,
    warn: Callable[[str], None] | None = None,
) -> EventSink:
    """What the training loop of a process tells its story to.

    Args:
      folder: of the run, or None.
      log_to: exporters that process 0 logs to as well.
      run: the content of ``run.json``.
      warn: called with a message when events are lost, or an exporter is given up; `warnings.warn` by default.
    Raises: OptionError: an exporter that cannot log here. ExportError: the record of earlier exports is damaged.
      RunFolderError: the events file cannot be opened.
    """
    names = log_to if process == 0 else ()
    links = [Link(name, folder, first_bytes=_size_bytes(folder, process)) for name in names]
    own: dict[str, Any] = {} if warn is None else {"warn": warn}
    recorder = NullRecorder() if folder is None else Recorder(folder, process, first_step=first_step, **own)
    return Fanout(recorder, links, run=run or {}, first_step=first_step, **own) if links else recorder


def check_exporters(log_to: Sequence[str], folder: str | os.PathLike[str] | None) -> None:
    """Raise OptionError, before anything is made, for an exporter that could not log."""
    for name in log_to:
        make_exporter(name, None if folder is None else Path(folder))


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


class Link:
    """An exporter within a run that trains: begun late, given up at its first error, noted in the ledger.

    Args:
      folder: of the run, or None: then nothing is noted.
      first_bytes: size of the events file before this process wrote to it.
      exporter: in place of the one with that name.
    """

    def __init__(
        self, name: str, folder: RunFolder | None, *, first_bytes: int = 0, exporter: Exporter | None = None
    ) -> None:
        self.name = name
        self.failure: Exception | None = None
        self.is_begun = False
        self._events_file = None if folder is None else folder.events_file(0)
        self._ledger = None if folder is None else Ledger(folder.path)
        earlier = None if self._ledger is None else self._ledger.entry(name)
        self._offsets = {} if earlier is None else dict(earlier.offsets)
        # Events from before this process, which nobody exported, would be missing.
        known_bytes = 0 if earlier is None else earlier.offset(0) if earlier.whole else -1
        self._goes_on = known_bytes == first_bytes and self._is_known(earlier)
        self._marks: dict[str, Mark] = {} if earlier is None else dict(earlier.marks)
        self.exporter = exporter or make_exporter(
            name, None if folder is None else folder.path, kept=None if earlier is None else earlier.kept
        )

    def begin(self, run: Mapping[str, Any]) -> None:
        """Opens the exporter; from here on its entry is not whole until `end`."""
        self.is_begun = True
        self.exporter.begin(run)
        self._note(whole=False)

    def end(self, report: Mapping[str, Any] | None, *, lost: int) -> None:
        """The run ended; `lost` events never reached the exporter."""
        self.exporter.end(report)
        if self._events_file is not None:
            self._offsets["0"] = size_bytes = self._events_file.stat().st_size
            self._marks.pop("0", None)
            if mark := file_mark(self._events_file, size_bytes):
                self._marks["0"] = mark
        self._note(whole=self._goes_on and not lost)

    def give_up(self, error: Exception) -> None:
        """Nothing more goes to this exporter."""
        self.failure = error
        with suppress(Exception):  # it failed already
            self.exporter.close()

    def _is_known(self, earlier: Entry | None) -> bool:
        """Whether the events file is still the one that was exported; where none was noted, its size has to do."""
        mark = None if earlier is None else earlier.mark(0)
        if earlier is None or mark is None or self._events_file is None:
            return True
        return file_mark(self._events_file, earlier.offset(0)) == mark

    def _note(self, *, whole: bool) -> None:
        if self._ledger is not None:
            entry = Entry(self.exporter.where, self.exporter.kept, self._offsets, whole, self._marks)
            self._ledger.put(self.name, entry)


class Fanout:
    """An `EventSink` that hands on what it is told: to a recorder at once, to exporters a little later.

    Args:
      recorder: gets every call first.
      links: the exporters.
      run: the content of ``run.json``.
      warn: called with a message when an exporter fails, when the first event is dropped, and at the end with the
        number of dropped ones.
      clock: Unix time [s].
      capacity: events that wait for slow exporters at most; further ones are dropped.
      patience_s: how long the end of the run waits for them [s].
    """

    def __init__(
        self,
        recorder: EventSink,
        links: Sequence[Link],
        *,
        run: Mapping[str, Any],
        first_step: int = 0,
        warn: Callable[[str], None] = _warn,
        clock: Callable[[], float] = time.time,
        capacity: int = CAPACITY_EVENTS,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.recorder = recorder
        self.dropped = 0
        self._links = list(links)
        self._run = run
        self._report: Mapping[str, Any] | None = None
        self._warn = warn
        self._clock = clock
        self._capacity = capacity
        self._patience_s = patience_s
        self._last_step = first_step
        self._waiting: deque[Event] = deque()
        self._wake = threading.Event()
        self._is_closed = False
        self._is_finishing = False
        self._is_heard = True
        self._thread = threading.Thread(target=self._work, name="paceline-exporters", daemon=True)
        self._pass("start", first_step, {})
        self._thread.start()

    @property
    def failure(self) -> OSError | None:
        """The recorder's."""
        return self.recorder.failure

    def step(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """See `Recorder`, as for all of these."""
        self.recorder.step(step, values)
        self._pass("step", step, values)

    def evaluation(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """An evaluation."""
        self.recorder.evaluation(step, values)
        self._pass("evaluation", step, values)

    def audit(
        self, step: int, values: Mapping[str, SupportsFloat], *, text: str | None = None, where: Sequence[Where] = ()
    ) -> None:
        """A comparison of the replicas."""
        self.recorder.audit(step, values, text=text, where=where)
        self._pass("audit", step, values, text)

    def notice(self, step: int, text: str) -> None:
        """Words for people."""
        self.recorder.notice(step, text)
        self._pass("notice", step, {}, text)

    def checkpoint(self, step: int, text: str) -> None:
        """A state was saved."""
        self.recorder.checkpoint(step, text)
        self._pass("checkpoint", step, {}, text)

    def skip(self, step: int, text: str) -> None:
        """An update was left out."""
        self.recorder.skip(step, text)
        self._pass("skip", step, {}, text)

    def close(self, text: str | None = None) -> None:
        """Writes ``end``. The exporters go on with what waits until `finish`."""
        self.recorder.close(text)
        if not self._is_closed:
            self._is_closed = True
            self._pass("end", self._last_step, {}, text)

    def finish(self, report: Mapping[str, Any] | None = None) -> None:
        """Gives the exporters what waits, and the report, and waits for them within bounds. Again does nothing."""
        self.close()
        if self._is_finishing:
            return
        self._report = report
        self._is_finishing = True
        self._wake.set()
        self._thread.join(self._patience_s)
        left = len(self._waiting) if self._thread.is_alive() else 0
        if self._thread.is_alive():
            self._tell(
                f"{self._named()} did not take the last events within {self._patience_s:g} s ({left} wait); the run "
                f"does not wait longer.{self._way_out()}"
            )
        if self.dropped:
            self._tell(f"{self._named()}: {format_count(self.dropped, 'event')} dropped.{self._way_out()}")

    def __enter__(self) -> Fanout:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes and finishes; an exception becomes the text of the ``end`` event, and goes on."""
        self.close(None if error is None else f"{type(error).__name__}: {error}".removesuffix(": "))
        self.finish()

    def _pass(self, kind: Kind, step: int, values: Mapping[str, SupportsFloat], text: str | None = None) -> None:
        if not self._is_heard:
            return
        self._last_step = max(self._last_step, int(step))
        if len(self._waiting) >= self._capacity and kind != "end":
            self.dropped += 1
            if self.dropped == 1:
                self._tell(
                    f"{self._named()} takes events more slowly than the run makes them: events are dropped there from "
                    f"step {step} on.{self._way_out()}"
                )
            return
        numbers: dict[str, int | float] = {
            key: value if type(value) is float else plain_number(value) for key, value in values.items()
        }
        if text is not None and not text.isascii():  # lone surrogates of file names, which no exporter takes
            text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        self._waiting.append(Event(kind, int(step), self._clock(), numbers, text))
        if len(self._waiting) * 2 >= self._capacity:
            self._wake.set()

    def _work(self) -> None:
        while self._is_heard and not (self._is_finishing and not self._waiting):
            self._wake.wait(EVERY_S)
            self._wake.clear()
            self._drain()
        for link in self._links:
            if link.failure is None and link.is_begun:
                self._try(link, lambda link=link: link.end(self._report, lost=self.dropped))
            if link.failure is None:
                self._try(link, link.exporter.close)

    def _drain(self) -> None:
        """What waits now goes to each exporter, in bursts of events that one look found."""
        ready = [link for link in self._links if link.failure is None]
        burst = [self._waiting.popleft() for _ in range(len(self._waiting))] if self._has_begun(ready) else []
        for link in ready:
            if burst:
                self._try(link, lambda link=link: self._hand_over(link, burst))
        self._is_heard = any(link.failure is None for link in self._links)
        if not self._is_heard:
            self._waiting.clear()

    def _has_begun(self, links: list[Link]) -> bool:
        """Exporters begin with the first step: a run that fails before leaves nothing anywhere."""
        if any(link.is_begun for link in links):
            return True
        if all(event.kind in _BEFORE_THE_FIRST_STEP for event in list(self._waiting)):
            if self._is_finishing:
                self._waiting.clear()
            return False
        for link in links:
            self._try(link, lambda link=link: link.begin(self._run))
        return True

    def _hand_over(self, link: Link, burst: Sequence[Event]) -> None:
        if link.failure is None:
            for event in burst:
                link.exporter.event(sendable(event))
            link.exporter.flush()

    def _try(self, link: Link, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            link.give_up(error)
            words = " ".join(str(error).split())[:300]
            self._tell(
                f"logging to {EXPORTERS.get(link.name, link.name)} failed near step {self._last_step} and is given up: "
                f"{type(error).__name__}: {words}. Training goes on.{self._way_out()}"
            )

    def _tell(self, message: str) -> None:
        with suppress(Warning):  # Python was told to raise warnings, which would end the run or the thread
            self._warn(message)

    def _named(self) -> str:
        return ", ".join(EXPORTERS.get(link.name, link.name) for link in self._links if link.failure is None)

    def _way_out(self) -> str:
        path = getattr(self.recorder, "path", None)
        names = ",".join(link.name for link in self._links)
        if path is None:
            return ""
        if self.failure is not None:  # to export it anew would take away what only the exporters have
            return " The run's own record lacks events too, so what is there already may be all that there is."
        return f" The run's own record is complete. Afterwards: paceline log {path.parent} --to {names} --again"


def _size_bytes(folder: RunFolder | None, process: int) -> int:
    if folder is None:
        return 0
    try:
        return folder.events_file(process).stat().st_size
    except FileNotFoundError:
        return 0
