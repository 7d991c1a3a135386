"""Curves, thinned for a picture.

Owns: which keys a run has and where each comes from, keys of further processes (``input/wait_s@1``), modelled keys.
Not here: thinning (`follow.spans`).
Invariant: a key that `keys_of` names gives a series that is not empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from paceline.dashboard.follow.columns import Series
from paceline.dashboard.follow.derived import COMMUNICATION_SHARE, RECENT_STEP_S
from paceline.dashboard.follow.documents import number_in
from paceline.dashboard.follow.feed import Table
from paceline.dashboard.follow.run import Run
from paceline.dashboard.views.plain import series_document

DEFAULT_POINTS = 1000
MOST_POINTS = 10_000
MOST_NUMBERS = 100_000
"""Of all curves of one run in one answer: of many keys each has fewer points."""
_TABLES: tuple[Table, ...] = ("step", "evaluation", "audit")
_OF_PROCESS = re.compile(r"(.+)@([1-9][0-9]{0,8})", re.DOTALL)
_OWN_GROUPS = ("input", "memory", "speed")  # what processes tell each for itself; the rest is the same in all


class Source(NamedTuple):
    """Where a key comes from: a process, a table of it, and the key there; ``name`` is the key without the process."""

    process: int
    table: Table
    key: str
    name: str


def series(
    run: Run, *, keys: Iterable[str], points: int = DEFAULT_POINTS, from_step: int | None = None,
    to_step: int | None = None, write: Callable[[dict[str, Any]], Any] = lambda curve: curve,
) -> dict[str, Any]:  # fmt: skip
    """Curves of some keys, the marks, and how far the run is read, see docs/watch-api.md.

    Args:
      keys: those that the run lacks are left out.
      points: about how many points a curve has, at most `MOST_POINTS`, and all curves together `MOST_NUMBERS`; extremes
        and all that is not finite are kept in any case.
      from_step, to_step: the part to show, both included.
      write: makes of each curve's document what stands in its place. Lists of numbers take four times the memory of
        their text, so who sends them on writes one curve after the other.
    """
    names = list(dict.fromkeys(keys))
    points = max(2, min(points, MOST_POINTS, MOST_NUMBERS // max(1, len(names))))
    with run.lock:
        run.preview()  # a run that is not read yet shows a first picture, in the first answer
        found = sampled(run, keys=names, points=points, from_step=from_step, to_step=to_step)
        rest = {
            "marks": [mark.as_dict() for mark in run.marks],
            "cursor": run.cursor,
            "reading": not run.caught_up,
            "read": {"bytes": run.read_bytes, "of_bytes": run.size_bytes},
        }
    return {"series": {key: write(series_document(curve)) for key, curve in found.items()}, **rest}


def sampled(
    run: Run, *, keys: Iterable[str], points: int, from_step: int | None = None, to_step: int | None = None
) -> dict[str, Series]:
    """The curves as arrays, in the order of ``keys``."""
    wanted: dict[str, Source] = {key: source for key in keys if (source := source_of(run, key)) is not None}
    curves: dict[tuple[int, Table, str], Series] = {}
    places: set[tuple[int, Table]] = {(source.process, source.table) for source in wanted.values()}
    for process, table in places:
        names = [source.key for source in wanted.values() if (source.process, source.table) == (process, table)]
        columns = run.table(process, table)
        got = columns.samples(dict.fromkeys(names), points=points, from_step=from_step, to_step=to_step)
        curves |= {(process, table, key): curve for key, curve in got.items()}
    found = {key: (source, curves.get(source[:3])) for key, source in wanted.items()}
    return {key: _modelled(run, source, curve) for key, (source, curve) in found.items() if curve is not None}


def whole(run: Run, key: str, *, from_step: int | None = None, to_step: int | None = None) -> Series | None:
    """Every step of one key, between two steps if they are given; None if the run lacks it."""
    source = source_of(run, key)
    if source is None:
        return None
    columns = run.table(source.process, source.table)
    return _modelled(run, source, columns.whole(source.key, from_step=from_step, to_step=to_step))


def keys_of(run: Run) -> Iterator[str]:
    """All keys of the run, those of the main process first."""
    own = {key for table in _TABLES for key in run.table(run.main or 0, table).keys}
    for process in run.processes:
        suffix = "" if process == run.main else f"@{process}"
        for table in _TABLES:
            for key in run.table(process, table).keys:
                if not suffix or (key.partition("/")[0] in _OWN_GROUPS and key + suffix not in own):
                    yield key + suffix
        if not suffix and source_of(run, COMMUNICATION_SHARE.key) is not None:
            yield COMMUNICATION_SHARE.key


def source_of(run: Run, key: str) -> Source | None:
    """Where ``key`` comes from; None if the run lacks it.

    Names may hold an ``@`` themselves (``evaluate/recall@5``): the key as it stands comes first.
    """
    main = run.main
    if main is None:
        return None
    found = _in_process(run, key, main)
    match = _OF_PROCESS.fullmatch(key)
    if found is not None or match is None or int(match[2]) == main:
        return found
    return _in_process(run, match[1], int(match[2]))


def _in_process(run: Run, key: str, process: int) -> Source | None:
    name = key
    if key == COMMUNICATION_SHARE.key:
        if number_in(run.program, "communication_s") is None:
            return None
        name = RECENT_STEP_S.key
    for table in _TABLES:
        if name in run.table(process, table):
            return Source(process, table, name, key)
    return None


def _modelled(run: Run, source: Source, curve: Series) -> Series:
    """The modelled communication of a step over the measured time of recent ones: the extremes stay extremes.

    The mean is that of the stretch's time, all communication over all steps' time, not that of the steps' shares.
    Where the model has more communication than the steps took, the share is 1.
    """
    if source.name != COMMUNICATION_SHARE.key:
        return curve
    communication_s = number_in(run.program, "communication_s") or 0.0
    with np.errstate(all="ignore"):
        means = curve.means and curve.means._replace(value=np.minimum(communication_s / curve.means.value, 1.0))
        return curve._replace(value=np.minimum(communication_s / curve.value, 1.0), means=means)
