"""`check(source)`, which the tests of mapped functions use."""

from __future__ import annotations

import textwrap

import pytest

from tests.doctor.source.reading import HEADER, troubles, write


@pytest.fixture
def check(tmp_path):
    """`check(source)` puts imports, an optimizer and a loss in front and returns warnings and errors."""

    def run(source: str, *, devices: int | None = None):
        return troubles(write(tmp_path, HEADER + textwrap.dedent(source)), devices=devices)

    return run
