"""The JSON documents of the page's API, from the parameters that were asked for.

Owns: which parameters each document takes, their bounds, encoding.
Not here: what documents hold (`dashboard.views`, `dashboard.compare`), HTTP (`serve.app`).
Invariant: a parameter that is given has an effect or is refused; a run is found by its id among those under the root,
never by a path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from starlette.datastructures import QueryParams

from paceline.base.errors import OptionError, PacelineError, RunFolderError, nearest
from paceline.dashboard.compare.document import compare_document
from paceline.dashboard.compare.result_file import SubjectError
from paceline.dashboard.follow.library import Library
from paceline.dashboard.follow.run import Run
from paceline.dashboard.follow.words import presentable, say
from paceline.dashboard.serve import prometheus
from paceline.dashboard.serve.results import Results
from paceline.dashboard.views.detail import detail, last_numbers
from paceline.dashboard.views.events import events
from paceline.dashboard.views.pipeline import pipeline
from paceline.dashboard.views.replicas import replicas
from paceline.dashboard.views.series import DEFAULT_POINTS, MOST_POINTS, series
from paceline.dashboard.views.summary import summary
from paceline.dashboard.views.table import csv_lines

MAX_NAMES = 200
"""Of runs, keys or subjects in one request."""
MAX_EVENTS = 2_000
MAX_STEP = 2**53

_UNKNOWN_OF_DAMAGED = (
    "task", "stopped", "step", "steps", "started_s", "updated_s", "loss", "samples_per_s", "devices", "platform",
    "processes", "batch", "scheme", "placement", "precision", "accumulation", "divergence",
)  # fmt: skip


class Query:
    """The parameters of one request.

    Args:
      given: as they stand in the address.
      known: names that this document takes.
    Raises: OptionError: another name.
    """

    def __init__(self, given: QueryParams, *, known: Sequence[str]) -> None:
        for name in given:
            if name not in known:
                raise OptionError(
                    what=f"unknown parameter {name[:80]!r}{nearest(name, known)}",
                    why="it would have no effect",
                    fix="use " + ", ".join(known) if known else "leave it out: none is taken here",
                )
        self._given = given

    def many(self, name: str, *, least: int = 1) -> list[str]:
        """All values of a parameter, each once, in their order.

        Raises: OptionError: fewer than ``least``, or more than `MAX_NAMES`.
        """
        values = self._given.getlist(name)
        if not least <= len(values) <= MAX_NAMES:
            raise OptionError(
                what=f"{len(values)} values of {name!r}",
                why=f"{least} to {MAX_NAMES} are taken in one request",
                fix=f"give {name}= once for each, {least} to {MAX_NAMES} times",
            )
        return list(dict.fromkeys(values))

    def one(self, name: str) -> str:
        """The value of a parameter that must be there once. Raises: OptionError: it is not."""
        values = self._given.getlist(name)
        if len(values) != 1:
            raise OptionError(
                what=f"{len(values)} values of {name!r}", why="one is needed here", fix=f"give {name}= once"
            )
        return values[0]

    def number(self, name: str, *, low: int, high: int) -> int | None:
        """A whole number, or None if it is not given. Raises: OptionError: another value, or out of bounds."""
        if name not in self._given:
            return None
        text = self.one(name)
        is_whole = text.isascii() and text.removeprefix("-").isdigit()
        if not (is_whole and len(text) < 20 and low <= int(text) <= high):
            near = high if is_whole and not text.startswith("-") and (len(text) >= 20 or int(text) > high) else low
            raise OptionError(
                what=f"{name}={text[:40]}", why=f"it is a whole number from {low} to {high}", fix=f"give {name}={near}"
            )
        return int(text)


class Api:
    """Answers requests from what the library has read. Every method may block: call it in a thread.

    Args:
      library: polled by `serve.pulse`.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._results = Results(library)

    def run(self, run_id: str) -> Run:
        """The run of an id, for the stream too. Raises: RunFolderError: there is none."""
        return self._library.run(run_id)

    def summary(self, run: Run) -> dict[str, Any]:
        """Of one run, now. Never raises: a run that cannot be shown must not take the others with it."""
        return told_summary(run, now_s=time.time())

    def summaries(self) -> list[dict[str, Any]]:
        """Of all runs, now."""
        return [self.summary(run) for run in self._library.runs()]

    def runs(self, given: QueryParams) -> bytes:
        """``/api/runs``."""
        Query(given, known=())
        return encoded(
            {
                "root": presentable(str(self._library.root)),
                "runs": self.summaries(),
                "problems": [words.text for words in self._library.problems],
                "problem_words": [words.as_dict() for words in self._library.problems],
                "results": [result.as_dict() for result in self._results.all()],
            }
        )

    def detail(self, given: QueryParams) -> bytes:
        """``/api/run``."""
        query = Query(given, known=("run",))
        return encoded(detail(self.run(query.one("run"))))

    def series(self, given: QueryParams) -> Iterator[bytes]:
        """``/api/series``, in pieces, of which none is made yet. A run that is gone is left out, unless it is the only
        one; one that fails in a way that nobody thought of is named under ``failed`` and takes no other with it."""
        query = Query(given, known=("run", "key", "points", "from_step", "to_step"))
        run_ids, keys = query.many("run"), query.many("key")
        points = query.number("points", low=2, high=MOST_POINTS) or DEFAULT_POINTS
        from_step = query.number("from_step", low=0, high=MAX_STEP)
        to_step = query.number("to_step", low=0, high=MAX_STEP)
        runs = self._runs(run_ids)
        options = {"keys": keys, "points": points, "from_step": from_step, "to_step": to_step, "write": _written}
        return _pieces(runs, lambda run: series(run, **options))

    def pipeline(self, given: QueryParams) -> bytes:
        """``/api/pipeline``."""
        query = Query(given, known=("run", "step"))
        return encoded(pipeline(self.run(query.one("run")), step=query.number("step", low=0, high=MAX_STEP)))

    def replicas(self, given: QueryParams) -> bytes:
        """``/api/replicas``."""
        query = Query(given, known=("run",))
        return encoded(replicas(self.run(query.one("run")), now_s=time.time()))

    def events(self, given: QueryParams) -> bytes:
        """``/api/events``."""
        query = Query(given, known=("run", "before", "limit"))
        before = query.number("before", low=0, high=MAX_STEP)
        limit = query.number("limit", low=1, high=MAX_EVENTS) or 200
        return encoded(events(self.run(query.one("run")), before=before, limit=limit))

    def csv(self, given: QueryParams, *, may_wait: bool = False) -> tuple[str, Iterator[bytes]] | None:
        """``/api/csv``: a file name, and the file in pieces; None if it has to be asked for again.

        Args:
          may_wait: a run that has not been read to its end is waited for. Asking has it read.
        Raises: OptionError: it was waited for long enough: steps would be missing.
        """
        query = Query(given, known=("run", "key"))
        run, keys = self.run(query.one("run")), query.many("key")
        if not run.caught_up:
            if may_wait:
                return None
            raise OptionError(
                what=f"run {run.id!r} is still being read",
                why="the file would lack steps",
                fix="ask again when /api/run says that all of it is read",
            )
        pieces = (piece.encode("utf-8", "backslashreplace") for piece in csv_lines(run, keys=keys))
        return f"{run.id.replace('/', '-')}.csv", pieces

    def compare(self, given: QueryParams) -> bytes:
        """``/api/compare``."""
        ids = Query(given, known=("subject",)).many("subject")
        subjects = [self._results.subject(subject) for subject in ids]
        try:
            return encoded(compare_document(subjects))
        except PacelineError:
            raise
        except Exception as error:  # numbers that files hold in forms which nobody thought of
            raise SubjectError(
                what=f"these cannot be compared: {type(error).__name__}: {error}"[:500],
                why="the files of one of them are damaged, or were written by another version",
                fix="compare fewer at once to find which, and leave it out",
            ) from error

    def metrics(self, given: QueryParams) -> str:
        """``/metrics``."""
        Query(given, known=())
        now_s = time.time()
        runs = ((told_summary(run, now_s=now_s), _metrics(run)) for run in self._library.runs())
        return prometheus.render(runs, now_s=now_s)

    def _runs(self, ids: Sequence[str]) -> list[Run]:
        found: list[Run] = []
        for run_id in ids:
            try:
                found.append(self.run(run_id))
            except RunFolderError:
                if len(ids) == 1:
                    raise
        return found


def told_summary(run: Run, *, now_s: float) -> dict[str, Any]:
    """The run in short; one that fails in a way that nobody thought of is shown as damaged, with the reason."""
    try:
        return summary(run, now_s=now_s)
    except Exception as error:
        words = say("problem.document_damaged", file=run.name, reason=presentable(f"{type(error).__name__}: {error}"))
        known = {"id": run.id, "name": run.name, "state": "damaged", "read": {"bytes": 0, "of_bytes": 0}}
        problems = {"problems": [words.text], "problem_words": [words.as_dict()]}
        return dict.fromkeys(_UNKNOWN_OF_DAMAGED) | known | problems


def _metrics(run: Run) -> list[dict[str, Any]]:
    """The last numbers; none of a run that fails, which its summary tells."""
    try:
        return last_numbers(run)
    except Exception:
        return []


def _pieces(runs: Sequence[Run], document_of: Callable[[Run], dict[str, Any]]) -> Iterator[bytes]:
    """``{"runs": {id: document, ...}, "failed": {id: reason, ...}}``, a run a piece: what is sent needs no memory."""
    yield b'{"runs":{'
    failed: dict[str, str] = {}
    comma = b""
    for run in runs:
        try:
            document = document_of(run)
        except Exception as error:
            failed[run.id] = presentable(f"{type(error).__name__}: {error}")[:500]
            continue
        if run.is_gone:
            continue
        yield comma + encoded(run.id) + b":" + encoded(document)
        comma = b","
    yield b'},"failed":' + encoded(failed) + b"}"


def _written(document: Any) -> msgspec.Raw:
    """A part of a document, encoded before the rest."""
    return msgspec.Raw(encoded(document))


def encoded(document: Any) -> bytes:
    """A document as JSON. Numbers of numpy are taken as they are; those that JSON lacks are strings already."""
    return msgspec.json.encode(document, enc_hook=lambda value: value.tolist())
