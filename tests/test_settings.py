"""The settings that `conftest` makes hold while tests run."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

from paceline.base.units import format_percent


def test_there_are_eight_devices():
    assert len(jax.devices()) == 8


def test_a_test_has_float64_only_if_it_asks(request):
    """Float32 before the fixture, float64 with it."""
    assert jnp.zeros(1).dtype == jnp.float32
    request.getfixturevalue("x64")
    assert jnp.zeros(1).dtype == jnp.float64


def test_float64_does_not_leak_into_the_next_test():
    assert jnp.zeros(1).dtype == jnp.float32


def test_annotations_are_checked():
    """A wrong type reaches the checker before the function."""
    with pytest.raises(jaxtyping.TypeCheckError):
        format_percent("half")


def test_no_setting_of_a_folder_outlives_its_tests():
    """Folders of tests are no packages, so pytest would keep what a package-scoped fixture sets until the end."""
    folder = Path(__file__).parent
    sources = [path for path in folder.rglob("*.py") if path != Path(__file__)]
    assert [path.name for path in sources if re.search(r"fixture\(.*scope=.package", path.read_text())] == []
