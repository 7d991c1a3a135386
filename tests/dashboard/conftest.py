"""Which tests of the page CI runs at both ends of the supported range.

The page imports no jax, so no version of it plays a part. Files are followed and shown (`follow`, `views`) on both
Pythons.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_AT_ONE_END = ("assets", "browser", "compare", "serve", "terminal")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = {_HERE / name for name in _AT_ONE_END}
    for item in items:
        if not folders.isdisjoint(item.path.parents):
            item.add_marker(pytest.mark.once(reason="no jax in it: the page is the same at both ends"))
