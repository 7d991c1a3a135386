"""Every step as comma-separated values.

Owns: the answer of ``/api/csv``.
Invariant: numbers are written so that they read back bit for bit; a step without a number leaves the field empty. Of a
long run some thousand rows are in memory at once, and the number of each step.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

import numpy as np

from paceline.base.errors import RunFolderError
from paceline.dashboard.follow.columns import Series
from paceline.dashboard.follow.run import Run
from paceline.dashboard.views.series import whole

_ROWS_A_PIECE = 2000
_NOTHING = Series(np.empty(0, np.int64), np.empty(0), np.empty(0))


def csv_lines(run: Run, *, keys: Iterable[str]) -> Iterator[str]:
    """Pieces of the file: a header, then whole lines, some thousands at a time. Keys that the run lacks stay empty.

    Raises: RunFolderError: steps are gone that were there at the begin: the run was deleted, replaced or resumed.
    """
    names = list(dict.fromkeys(keys))
    yield _text([["step", "time_s", *map(_harmless, names)]])
    steps = _steps(run, names)
    for begin in range(0, len(steps), _ROWS_A_PIECE):
        part = steps[begin : begin + _ROWS_A_PIECE]
        low, high = int(part[0]), int(part[-1])
        with run.lock:
            curves = [whole(run, key, from_step=low, to_step=high) or _NOTHING for key in names]
        if not np.isin(part, np.concatenate([curve.step for curve in curves])).all():
            raise RunFolderError(
                what=f"steps of run {run.id!r} are gone while its CSV was made",
                why="the run was deleted, replaced or resumed, so that the file would mix two runs",
                fix="ask again",
            )
        yield _text(_rows(part, curves))


def _steps(run: Run, keys: Iterable[str]) -> np.ndarray:
    """Steps at which one of the keys has a number, looked for in one after the other."""
    steps = _NOTHING.step
    for key in keys:
        with run.lock:
            more = (whole(run, key) or _NOTHING).step
        if not np.array_equal(more, steps):
            steps = np.union1d(steps, more)
    return steps


def _rows(steps: np.ndarray, curves: list[Series]) -> list[list[str]]:
    times_s = np.full(len(steps), np.nan)
    fields: list[list[str]] = []
    for curve in curves:
        place = np.searchsorted(curve.step, steps)
        there = np.flatnonzero(place < len(curve.step))
        there = there[curve.step[place[there]] == steps[there]]
        column = [""] * len(steps)
        for row, value in zip(there.tolist(), curve.value[place[there]].tolist(), strict=True):
            column[row] = repr(value)
        fields.append(column)
        unknown = there[np.isnan(times_s[there])]
        times_s[unknown] = curve.time_s[place[unknown]]
    columns = [map(str, steps.tolist()), map(repr, times_s.tolist()), *fields]
    return [list(row) for row in zip(*columns, strict=True)]


def _harmless(name: str) -> str:
    """A name that a spreadsheet would take for a formula is marked as text."""
    return f"'{name}" if name[:1] in "=+-@\t\r" else name


def _text(rows: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
