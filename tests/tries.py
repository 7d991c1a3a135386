"""Tests of the clock, which have more than one try.

Owns: which try of a test runs, for measurements that several tests share.
Not here: the mark `clock` and the number of tries (`conftest.py`).
"""

from __future__ import annotations

import pytest


def try_of(request: pytest.FixtureRequest) -> int:
    """1 when a test runs for the first time: a measurement cached by it is shared by tests, and made anew for a try."""
    return getattr(request.node, "execution_count", 1)
