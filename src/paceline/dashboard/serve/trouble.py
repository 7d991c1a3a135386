"""What becomes of a mistake of ours: words for the page, one line on the terminal.

Owns: the number of each trouble, when its traceback is printed.
Not here: the words of what is no mistake of ours (`base.errors`).
Invariant: each request that fails so prints one line; the traceback comes with the first of a kind only, so that nobody
can fill the terminal with them.
"""

from __future__ import annotations

import sys
import threading
import traceback
import zlib
from typing import NamedTuple

from paceline.base.errors import PacelineError

_MOST_KINDS = 100


class Told(NamedTuple):
    """What the page is told: the words, and the number by which the terminal has the rest."""

    what: str
    number: str


class Troubles:
    """Those of one server. Safe to use from several threads."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def tell(self, error: BaseException, *, at: str) -> Told:
        """Print it.

        Args:
          at: the address that has no answer.
        """
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = f"{place[0].filename}:{place[0].lineno}" if place else ""
        number = f"{zlib.crc32(f'{type(error).__name__} {where}'.encode('utf-8', 'replace')):08x}"
        with self._lock:
            is_new = number not in self._seen and len(self._seen) < _MOST_KINDS
            self._seen.add(number) if is_new else None
        what = one_line(f"{type(error).__name__}: {error}")
        print(one_line(f"paceline watch: no answer to {at}: {what} (error {number})"), file=sys.stderr)
        if is_new:
            traceback.print_exception(error)
        return Told(what, number)


def tell_break(error: PacelineError, *, at: str) -> None:
    """Print that an answer broke off for a reason that is no mistake of ours."""
    print(one_line(f"paceline watch: {at} broke off: {error.what}; {error.fix}"), file=sys.stderr)


def one_line(text: str) -> str:
    """A text as one line of printable characters, 500 at most: names in it may hold anything."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[:500])
