"""The largest batch that fits, found by compiling, not by running out of memory.

Owns: the search: guess by the model, confirm by the compiler.
Not here: what a compilation costs, which the caller knows and may cache.
Invariant: the answer was compiled and fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.base.errors import PacelineError
from paceline.base.units import format_bytes, format_count
from paceline.insight.memory.model import MemoryModel

_CLOSE = 0.03
"""The search ends when a batch larger by this share does not fit: the accuracy of the model."""


class MemoryFitError(PacelineError):
    """A step that no batch makes small enough for the memory of a device."""


@dataclass(frozen=True)
class LargestBatch:
    """What the search found.

    Args:
      rows: a device, in steps of what was asked for.
      peak_bytes: of one device with them, from the compiler.
      compiled: peak bytes of all sizes that were compiled, by rows.
      is_bounded: whether a larger batch was seen or predicted not to fit.
    """

    rows: int
    peak_bytes: int
    compiled: dict[int, int]
    is_bounded: bool = True


def largest_batch(
    peak_of: Callable[[int], int], *, limit_bytes: int, start_rows: int, multiple: int = 1, most_compilations: int = 8,
    most_rows: int | None = None,
) -> LargestBatch:  # fmt: skip
    """The most rows a device whose peak is within the limit.

    Args:
      peak_of: compiles the step for so many rows a device and returns its peak bytes.
      limit_bytes: what a program may hold (`insight.memory.limits`).
      start_rows: where to begin, as the user's own batch; rounded to the multiple.
      multiple: rows come in multiples of it, such as n.
      most_compilations: the search ends after so many with the best that it has.
      most_rows: no more than that, as many as the data has.
    Raises: MemoryFitError: not even `multiple` rows fit. What `peak_of` raises.
    """
    search = _Search(peak_of, limit_bytes, multiple, most_rows)
    search.look(search.rounded(start_rows))
    if search.best is None:
        search.look(multiple)
    if search.best is None:
        raise _hopeless(search.compiled[multiple], limit_bytes, multiple)
    while len(search.compiled) < most_compilations and (rows := search.candidate()) is not None:
        search.look(rows)
    best = search.best
    return LargestBatch(best, search.compiled[best], search.compiled, search.smallest_too_large is not None)


class _Search:
    """Compiled sizes so far, and what to compile next."""

    def __init__(
        self, peak_of: Callable[[int], int], limit_bytes: int, multiple: int, most_rows: int | None
    ) -> None:  # fmt: skip
        self._peak_of = peak_of
        self._limit = limit_bytes
        self._multiple = multiple
        self._most = None if most_rows is None else max(multiple, most_rows // multiple * multiple)
        self.compiled: dict[int, int] = {}

    def rounded(self, rows: int) -> int:
        """Down to the multiple, at least one of it, at most what there is."""
        whole = max(self._multiple, rows // self._multiple * self._multiple)
        return whole if self._most is None else min(whole, self._most)

    def look(self, rows: int) -> None:
        """Compile for so many rows."""
        self.compiled[rows] = self._peak_of(rows)

    @property
    def best(self) -> int | None:
        """Most rows that fit, of those compiled."""
        return max((rows for rows, peak in self.compiled.items() if peak <= self._limit), default=None)

    @property
    def smallest_too_large(self) -> int | None:
        """Fewest rows that do not fit, of those compiled."""
        return min((rows for rows, peak in self.compiled.items() if peak > self._limit), default=None)

    def candidate(self) -> int | None:
        """What to compile next; None if the best is close to the limit, or cannot grow."""
        best, above = self.best, self.smallest_too_large
        assert best is not None, "asked after one size has fitted"
        if best == self._most or (above is not None and above - best <= max(self._multiple, _CLOSE * best)):
            return None
        if len(self.compiled) == 1:
            return self._new(2 * best, best, above)
        guess = MemoryModel(self.compiled).rows_for(self._limit)
        if above is None:  # a line through small sizes says little of much larger ones
            guess = min(guess, 16 * best)
        return self._new(guess, best, above)

    def _new(self, guess: int, best: int, above: int | None) -> int | None:
        """The guess between what fits and what does not, at least a step of the multiple away from both."""
        rows = max(self.rounded(guess), best + self._multiple)
        if above is not None:
            rows = min(rows, above - self._multiple)
        rows = self.rounded(rows)
        return rows if rows > best and rows not in self.compiled else None


def _hopeless(peak_bytes: int, limit_bytes: int, multiple: int) -> MemoryFitError:
    return MemoryFitError(
        what=f"the step takes {format_bytes(peak_bytes)} a device even with {format_count(multiple, 'row')}, and "
        f"{format_bytes(limit_bytes)} are there",
        why="no batch is small enough",
        fix="share the state with --placement zero1 or fsdp over more devices, use devices with more memory, "
        "or a smaller model",
    )
