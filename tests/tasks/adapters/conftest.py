"""Compiles the many small programs of this folder with few optimisations: in half the time, to the same mathematics."""

from __future__ import annotations

import jax
import pytest


# Not scope="package": these folders are no packages, and the setting would last for all tests behind them.
@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
