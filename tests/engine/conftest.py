"""What the engine's tests share: programs that are compiled fast rather than fast."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    """Skips the back end's optimisations: half the compile time; the passes that place collectives run all the same."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
