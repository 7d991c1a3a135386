"""Published efficiencies beside predictions that have not seen their source.

Owns: the rows of `plan --published`, the numbers that sum them up, their text.
Not here: fitting (`published.fit`; the fits that these predictions use are stored in `published.fitted`).
Invariant: a row is predicted with the fit that left its source out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from statistics import fmean, median
from typing import Any

from paceline.insight.model.parameters import interval
from paceline.insight.published.cases import predicted
from paceline.insight.published.fit import Fit
from paceline.insight.published.fitted import WITHOUT
from paceline.insight.published.rows import Row, read_rows

_LOG_STEP = 0.1


@dataclass(frozen=True)
class Line:
    """One published efficiency and its prediction; all are fractions."""

    source: str
    model: str
    hardware: str
    rows_per_device: int
    base: int
    devices: int
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Whether the 80 % interval holds the measured value; one above 1 counts as 1."""
        return self.low <= min(self.measured, 1.0) <= self.high


@dataclass(frozen=True)
class Summary:
    """How good the predictions are, each source left out of the fit that predicts it.

    Args:
      mean_error, median_error: absolute, as fractions.
      constant: the one number that has the least mean absolute error on the same rows, known with hindsight.
      constant_error: of that number.
      rank_correlation: Spearman's.
      coverage: share of rows within their 80 % intervals.
      by_source: mean absolute error of each source.
    """

    rows: int
    mean_error: float
    median_error: float
    constant: float
    constant_error: float
    rank_correlation: float
    coverage: float
    by_source: Mapping[str, float]


@cache
def published_table() -> tuple[Line, ...]:
    """All rows, in the order of the file."""
    return tuple(_line(row, WITHOUT[row.source]) for row in read_rows())


def _line(row: Row, fit: Fit) -> Line:
    efficiency = predicted(row, fit.model)
    slopes = {
        name: (predicted(row, fit.model.moved(name, 1 + _LOG_STEP)) - efficiency) / _LOG_STEP for name in fit.log_sd
    }
    low, high = interval(efficiency, slopes=slopes, log_sd=fit.log_sd)
    return Line(
        source=row.source,
        model=row.model,
        hardware=row.hardware,
        rows_per_device=row.rows_per_device,
        base=row.base,
        devices=row.devices,
        measured=row.measured,
        predicted=efficiency,
        low=low,
        high=high,
    )


def summary(lines: Sequence[Line]) -> Summary:
    """The numbers below the table."""
    errors = [abs(line.predicted - line.measured) for line in lines]
    measured = [line.measured for line in lines]
    # The median has the least mean absolute error of all constants.
    constant = median(measured)
    sources = dict.fromkeys(line.source for line in lines)
    by_source = {
        source: fmean(e for e, line in zip(errors, lines, strict=True) if line.source == source) for source in sources
    }
    return Summary(
        rows=len(lines),
        mean_error=fmean(errors),
        median_error=median(errors),
        constant=constant,
        constant_error=fmean(abs(value - constant) for value in measured),
        rank_correlation=rank_correlation([line.predicted for line in lines], measured),
        coverage=fmean(line.inside for line in lines),
        by_source=by_source,
    )


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's: Pearson's correlation of ranks, equal values sharing their mean rank."""
    a, b = _ranks(left), _ranks(right)
    mean = fmean(a)
    covariance = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    return covariance / math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first = {value: index for index, value in reversed(list(enumerate(ordered)))}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]


def published_lines() -> list[str]:
    """Table and summary as text, at most 120 columns."""
    return as_text(published_table())


def as_text(lines: Sequence[Line]) -> list[str]:
    """Of any lines: a head, one for each, and what sums them up."""
    return [*_table(lines), "", *_summed(summary(lines))]


def _table(lines: Iterable[Line]) -> list[str]:
    head = f"{'source':<22}{'model':<12}{'on':<15}{'rows':>5}{'K':>10}{'measured':>10}{'predicted':>11}   80 % interval"
    return [head, *(_text(line) for line in lines)]


def _text(line: Line) -> str:
    counts = f"{line.devices}" if line.base == 1 else f"{line.devices} / {line.base}"
    source = line.source.replace("benchmarks.md ", "").replace(" benchmarks.rst", "").replace(" benchmarking", "")
    return (
        f"{source[:21]:<22}{line.model:<12}{line.hardware[:14]:<15}{line.rows_per_device:>5}{counts:>10}"
        f"{line.measured:>10.1%}{line.predicted:>11.1%}   {line.low:.1%} to {line.high:.1%}"
        f"{'' if line.inside else '  outside'}"
    )


def _summed(found: Summary) -> list[str]:
    sources = ", ".join(f"{source.split(' (')[0]} {error * 100:.1f}" for source, error in found.by_source.items())
    return [
        f"{found.rows} published efficiencies; each is predicted without any from its own source.",
        f"mean absolute error {found.mean_error * 100:.2f} points (median {found.median_error * 100:.2f}); "
        f"the best constant, {found.constant:.1%} for all, has {found.constant_error * 100:.2f}",
        f"by source: {sources}",
        f"rank correlation {found.rank_correlation:.2f}; {found.coverage:.0%} within their 80 % intervals",
    ]


def published_report() -> dict[str, Any]:
    """Table and summary as JSON-ready data."""
    lines = published_table()
    return {"rows": [{**asdict(line), "inside": line.inside} for line in lines], "summary": asdict(summary(lines))}
