"""An event loop of its own for a test: the browser's tests keep one running in the thread of the tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio


def run_apart(function: Callable[[], Awaitable[Any]]) -> Any:
    """What ``function`` gives, in a loop in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, function).result()
