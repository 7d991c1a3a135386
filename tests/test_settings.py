"""The settings that `conftest` makes hold while tests run."""

from __future__ import annotations

import re
from pathlib import Path

import beartype
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Int64

from paceline.base.units import format_percent
from tests.typechecks import check


def test_there_are_eight_devices():
    assert len(jax.devices()) == 8


def test_a_test_has_float64_only_if_it_asks(request):
    """Float32 before the fixture, float64 with it."""
    assert jnp.zeros(1).dtype == jnp.float32
    request.getfixturevalue("x64")
    assert jnp.zeros(1).dtype == jnp.float64


def test_float64_does_not_leak_into_the_next_test():
    assert jnp.zeros(1).dtype == jnp.float32


def test_annotations_are_checked(monkeypatch):
    """A wrong type reaches the checker before the function, unless a test asks for calls as a user's are."""
    with pytest.raises(beartype.roar.BeartypeCallHintViolation):
        format_percent("half")
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError):
        format_percent("half")


def pairs(first: Int64[np.ndarray, " n"], second: Int64[np.ndarray, " n"]) -> int:
    return len(first) + len(second)


def nested(first: list[Int64[np.ndarray, " n"]], second: Int64[np.ndarray, " n"] | None) -> int:
    return 0 if second is None else len(first[0]) + len(second)


def test_dimensions_of_one_name_are_compared():
    """As the hook decorates a function: 3 and 3 are `n`, 3 and 2 are not; inside other types too."""
    decorate = jaxtyping.jaxtyped(typechecker=check)
    numbers = np.arange(3)
    assert decorate(pairs)(numbers, numbers) == decorate(nested)([numbers], numbers) == 6
    with pytest.raises(jaxtyping.TypeCheckError):
        decorate(pairs)(numbers, numbers[:2])
    with pytest.raises(jaxtyping.TypeCheckError):
        decorate(nested)([numbers], numbers[:2])


def test_no_setting_of_a_folder_outlives_its_tests():
    """Folders of tests are no packages, so pytest would keep what a package-scoped fixture sets until the end."""
    folder = Path(__file__).parent
    sources = [path for path in folder.rglob("*.py") if path != Path(__file__)]
    assert [path.name for path in sources if re.search(r"fixture\(.*scope=.package", path.read_text())] == []
