"""Compiles the many small programs of this folder with few optimisations: in half the time, to the same mathematics."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
