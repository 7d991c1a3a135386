"""Which cases of a grid run at both ends of the supported range.

Owns: the mark of those that CI runs at the high end only.
Not here: tests in which no version plays any part; they carry the mark `once` and a reason of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

_THE_REST = pytest.mark.once(
    reason="the rest of a grid: its cases at the low end hold each way to compile, this one another size of the same"
)


def grid(cases: Iterable[Any], *, both: Callable[..., bool]) -> list[Any]:
    """Cases for `pytest.mark.parametrize`, of which the low end runs those for which `both` is true.

    Args:
      cases: tuples, one value a parameter; or single values, of which a named tuple is one.
      both: takes the values of a case.
    """
    tuples = (case if type(case) is tuple else (case,) for case in cases)
    return [pytest.param(*case, marks=() if both(*case) else _THE_REST) for case in tuples]
