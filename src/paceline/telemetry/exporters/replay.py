"""A run that is on the disk, or still goes on, to an exporter.

Owns: which of its events are exported, in which order, and where the next export goes on.
Not here: a run that logs by itself while it trains (`exporters.fanout`).
Invariant: over successive exports every event is handed over once, and the folder says up to where.

Of a run of several processes, process 0 tells losses and speed; of the others their own input and memory numbers are
exported, as ``key@process``. Steps that a resumed run computed again are exported as they were the last time.
"""

from __future__ import annotations

import heapq
import math
import operator
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.base.regular import reason
from paceline.telemetry.document import read_document
from paceline.telemetry.events import Event
from paceline.telemetry.exporters.exporter import EXPORTERS, Exporter, ExportError, make_exporter, sendable
from paceline.telemetry.exporters.ledger import Entry, Ledger
from paceline.telemetry.exporters.place import is_same, mark_at
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.metrics import SPEED_STEP_S
from paceline.telemetry.reader import EventPage, events_files, events_of, opened_events, read_events

_OF_EACH_PROCESS = ("input", "memory")
FOLLOW_EVERY_S = 1.0
_REPORT_WITHIN_LOOKS = 10
_SILENT_S = 30.0
_SILENT_STEPS = 20
_TAIL_BYTES = 65536


@dataclass(frozen=True)
class Exported:
    """What an export did.

    Args:
      name: of the exporter.
      events: handed over this time.
      where: the place, in words.
      ended: the run has ended.
      left_out: lines that hold no event that this version knows.
    """

    name: str
    events: int
    where: str
    ended: bool
    left_out: int = 0

    def line(self) -> str:
        """One sentence."""
        title = EXPORTERS.get(self.name, self.name)
        left_out = f"; {self.left_out:,} damaged or unknown lines were left out" if self.left_out else ""
        if not self.events and not self.where:
            return f"{title}: the run has no events yet{left_out}"
        if not self.events:
            return f"{title} has this run already, nothing is new: {self.where}{left_out}"
        return f"{title}: {self.events:,} event{'' if self.events == 1 else 's'} to {self.where}{left_out}"


def export_run(
    folder: RunFolder,
    name: str,
    *,
    again: bool = False,
    follow: bool = False,
    wait: Callable[[float], bool] = lambda _: True,
    say: Callable[[str], None] = print,
    exporter: Exporter | None = None,
) -> Exported:
    """Hands over the events that an exporter does not have yet.

    Args:
      again: export the whole run anew, whatever is there.
      follow: go on until the run ends.
      wait: sleeps for so many seconds; true says that following ends now.
      say: called with a sentence when a followed run falls silent, or when one of its documents cannot be read.
      exporter: in place of the one with that name.
    Raises: OptionError: the exporter cannot log here. ExportError: it refused, or the run logs there by itself.
      RunFolderError: the run cannot be read.
    """
    ledger = Ledger(folder.path)
    earlier = None if again else ledger.entry(name)
    if earlier is not None and not earlier.whole:
        raise _not_whole(folder, name)
    made = exporter or make_exporter(name, folder.path, kept=None if earlier is None else earlier.kept, live=False)
    return _Export(folder, name, made, ledger=ledger, earlier=earlier, say=say).run(follow=follow, wait=wait)


class _Export:
    def __init__(
        self, folder: RunFolder, name: str, exporter: Exporter, *, ledger: Ledger, earlier: Entry | None,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.say = say
        self.folder = folder
        self.name = name
        self.exporter = exporter
        self.ledger = ledger
        self.earlier = earlier
        self.offsets = {} if earlier is None else dict(earlier.offsets)
        self.marks = {} if earlier is None else dict(earlier.marks)
        self.events = 0
        self.left_out = 0
        self.is_begun = False
        self.has_ended = False

    def run(self, *, follow: bool, wait: Callable[[float], bool]) -> Exported:
        """All of it; the exporter is closed whatever happens."""
        try:
            self.has_ended = self._ends(last := _last_events(self.folder))
            silence = _Silence(last, say=self.say)
            self._hand_over(self._new_events())
            while follow and not self.has_ended and not wait(FOLLOW_EVERY_S):
                self._hand_over(events := self._new_events())
                silence.look(events)
            if self.is_begun and self.has_ended:
                report = self._report(wait if follow else lambda _: True)
                self._guarded(lambda: self.exporter.end(report))
        finally:
            self._guarded(self.exporter.close)
        where = self.exporter.where if self.is_begun else "" if self.earlier is None else self.earlier.where
        return Exported(self.name, self.events, where, self.has_ended, self.left_out)

    def _new_events(self) -> list[Event]:
        """What was written since the last call, of all processes, in order of time."""
        streams: list[list[Event]] = []
        for process, path in events_files(self.folder.path).items():
            page = self._page(str(process), path)
            self.left_out += page.skipped + sum(page.unknown.values())
            if process == 0:
                streams.append(_latest(page.events))
            else:
                streams.append([own for event in page.events if (own := _of_process(event, process)) is not None])
        return [sendable(event) for event in heapq.merge(*streams, key=operator.attrgetter("time_s"))]

    def _page(self, process: str, path: Path) -> EventPage:
        """What was written behind the part that the exporter has, if the file is still the one with that part."""
        offset = self.offsets.get(process, 0)
        with opened_events(path) as descriptor:
            if not is_same(descriptor, offset, mark=self.marks.get(process)):
                raise _another_file(self.folder, self.name, path=path)
            page = events_of(descriptor, offset, path=path)
            self.offsets[process] = page.next_offset
            self.marks[process] = mark_at(descriptor, page.next_offset)
        return page

    def _hand_over(self, events: list[Event]) -> None:
        if not events:
            return
        self._guarded(lambda: self._give(events))
        self.events += len(events)
        self._note(whole=True)
        self.has_ended = self._ends(events)

    def _ends(self, events: Sequence[Event]) -> bool:
        brackets = [event.kind for event in events if event.kind in ("start", "end")]
        return brackets[-1] == "end" if brackets else self.has_ended

    def _give(self, events: list[Event]) -> None:
        if not self.is_begun:
            self.ledger.check()
            self.exporter.begin(_run_document(self.folder, say=self.say))
            self.is_begun = True
        self._note(whole=False)
        for event in events:
            self.exporter.event(event)
        self.exporter.flush()

    def _note(self, *, whole: bool) -> None:
        self.ledger.put(self.name, Entry(self.exporter.where, self.exporter.kept, self.offsets, whole, self.marks))

    def _report(self, wait: Callable[[float], bool]) -> Mapping[str, Any] | None:
        """The report is written just after the last event; a killed run has none."""
        problem = None
        for _ in range(_REPORT_WITHIN_LOOKS):
            try:
                return read_document(self.folder.report_file)
            except FileNotFoundError:
                problem = None
            except (OSError, ValueError) as error:
                problem = f"report.json cannot be read: {reason(error)}; the run is exported as one that has none"
            if wait(FOLLOW_EVERY_S / 5):
                break
        if problem:
            self.say(problem)
        return None

    def _guarded(self, call: Callable[[], None]) -> None:
        """Whatever the program raises is the user's to mend, and no bug of ours."""
        try:
            call()
        except ExportError:
            raise
        except Exception as error:
            title = EXPORTERS.get(self.name, self.name)
            why, again = "some events of the run are there now and some are not", " with --again"
            if not self.is_begun:
                why, again = "it takes no event of the run before that is mended", ""
            raise ExportError(
                what=f"{title} refused: {type(error).__name__}: {' '.join(str(error).split())[:500]}",
                why=why,
                fix=f"mend what it says, then give the same command again{again}",
            ) from error


class _Silence:
    """Says once that a followed run writes nothing any more, and again only after it went on."""

    def __init__(self, last: Sequence[Event], *, say: Callable[[str], None]) -> None:
        self._say = say
        self._is_told = False
        self._since_s = time.time()
        self._step_s = 0.0
        self._heard(last)

    def look(self, events: Sequence[Event]) -> None:
        """After each look at the run, with what was new."""
        if events:
            self._is_told = False
            self._heard(events)
        if self._is_told or time.time() - self._since_s <= max(_SILENT_S, _SILENT_STEPS * self._step_s):
            return
        self._is_told = True
        self._say(
            f"the run is silent since {_clock(self._since_s)}: it hangs, or was killed. It may be resumed, so it is "
            "waited for; Ctrl-C ends this with what was exported."
        )

    def _heard(self, events: Sequence[Event]) -> None:
        if events:
            self._since_s = events[-1].time_s
        seconds = [event.values[SPEED_STEP_S.key] for event in events if SPEED_STEP_S.key in event.values]
        if finite := [second for second in seconds if math.isfinite(second)]:
            self._step_s = statistics.median(finite)


def _clock(time_s: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
    except (OverflowError, ValueError, OSError):  # a line may hold any number
        return f"{time_s:g} s"


def _last_events(folder: RunFolder) -> list[Event]:
    """Of process 0, without reading a long file whole."""
    path = folder.events_file(0)
    try:
        size_bytes = path.stat().st_size
    except OSError:  # not there yet; if it cannot be read, reading it says so
        return []
    return [sendable(event) for event in read_events(path, max(0, size_bytes - _TAIL_BYTES)).events]


def _latest(events: list[Event]) -> list[Event]:
    """Without the steps that a later start computed again; the rest of the run stands on the later ones."""
    kept: list[Event] = []
    limit = math.inf
    for event in reversed(events):
        if event.kind == "start":
            limit = min(limit, event.step)
        if event.step <= limit:
            kept.append(event)
    return kept[::-1]


def _of_process(event: Event, process: int) -> Event | None:
    """What a further process alone knows, under keys of its own; None if nothing."""
    values = {
        f"{key}@{process}": value
        for key, value in event.values.items()
        if event.kind == "step" and key.partition("/")[0] in _OF_EACH_PROCESS
    }
    return Event("step", event.step, event.time_s, values) if values else None


def _run_document(folder: RunFolder, *, say: Callable[[str], None]) -> dict[str, Any]:
    try:
        return read_document(folder.run_file)
    except (OSError, ValueError) as error:
        say(f"run.json cannot be read: {reason(error)}; the run is exported without what it was asked for")
        return {}


def _not_whole(folder: RunFolder, name: str) -> ExportError:
    title = EXPORTERS.get(name, name)
    return ExportError(
        what=f"{title} has a part of the run in {str(folder.path)!r}: the run logs there by itself, or did until it "
        "was killed or lost events, or an earlier export was cut off",
        why="what is there already cannot be told from what is missing, so some of it would stand there twice",
        fix=f"if the run is over: paceline log {folder.path} --to {name} --again exports the whole run anew",
    )


def _another_file(folder: RunFolder, name: str, *, path: Path) -> ExportError:
    title = EXPORTERS.get(name, name)
    return ExportError(
        what=f"events file {str(path)!r} is not the one of which {title} has a part already",
        why=f"another run lies in its place; to go on would mix the two in {title}",
        fix=f"paceline log {folder.path} --to {name} --again exports the run that lies there now, whole",
    )
