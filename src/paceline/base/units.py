"""Numbers as people read them: bytes, durations, rates, counts."""

from __future__ import annotations

import math

_LONG = 1e15
"""From which on a number has so many digits that nobody reads them: three and the power of ten say more."""


def format_bytes(size_bytes: int | float) -> str:
    """``5.9 GB`` (powers of 1000, as memory vendors and networks count)."""
    if not math.isfinite(size_bytes):
        return "-"
    if abs(size_bytes) < 999.5:
        return f"{size_bytes:.0f} B"
    value = float(size_bytes)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if abs(value) < 999.95:  # what would print as 1000.0 takes the next unit
            return f"{value:.1f} {unit}"
    value /= 1000
    return f"{value:,.1f} TB" if abs(value) < _LONG else f"{value:.3g} TB"


def format_duration(seconds: int | float) -> str:
    """``850 µs``, ``12.3 ms``, ``4.21 s``, ``3 min 20 s``, ``2 h 05 min``; ``-`` when unknown."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 999.5e-6:  # each bound is where rounding would print the next unit's 1
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    if seconds >= _LONG:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_rate(per_second: int | float, what: str = "samples") -> str:
    """``12,345 samples/s``; three significant digits below 100; ``-`` when unknown."""
    return f"{rate_digits(per_second)} {what}/s" if math.isfinite(per_second) else "-"


def rate_digits(per_second: int | float) -> str:
    """``12,345``: a rate as `format_rate` rounds it, for a table whose head has the unit."""
    if not math.isfinite(per_second):
        return "-"
    return whole_digits(per_second) if per_second >= 100 else f"{per_second:.3g}"


def whole_digits(value: int | float) -> str:
    """``12,345``; ``1.23e+20`` for what has too many digits to be read."""
    return f"{value:,.0f}" if abs(value) < _LONG else f"{value:.3g}"


def format_count(value: int | float, noun: str) -> str:
    """``1 row``, ``1,797 rows``, ``3 batches``."""
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{value:,} {noun}" + ("" if value == 1 else ending)


def format_percent(share: int | float) -> str:
    """``0.42 %`` of a share in [0, 1]; ``<0.01 %`` for less than that but not nothing; ``-`` when unknown."""
    if not math.isfinite(share):
        return "-"
    percent = 100 * share
    if 0 < percent < 0.01:
        return "<0.01 %"
    return f"{whole_digits(percent)} %" if abs(percent) >= 999.5 else f"{percent:.3g} %"
