"""What the engine's tests share: programs that are compiled fast rather than fast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

# Two thirds of the time that a small program takes to compile on a CPU with jax 0.10. jax 0.12 has no such option.
SLOW_FUSIONS = {"xla_cpu_use_fusion_emitters": False}


def accepted(options: dict[str, Any]) -> dict[str, Any]:
    """The options if this version of JAX has them, else none."""
    try:
        jax.jit(jnp.negative).lower(1.0).compile(options)
    except jax.errors.JaxRuntimeError:
        return {}
    return options


@contextlib.contextmanager
def quickly_compiled() -> Iterator[None]:
    """Compiles steps without the back end's optimisations: the same program up to its fusions, collectives included."""
    options = accepted(SLOW_FUSIONS)
    compile = jax.stages.Lowered.compile

    def quickly(lowered: jax.stages.Lowered, compiler_options: dict[str, Any] | None = None) -> jax.stages.Compiled:
        return compile(lowered, options | (compiler_options or {}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", quickly)
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)


# Not scope="package": these folders are no packages, and the setting would last for all tests behind them.
@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """For every test of the engine."""
    with quickly_compiled():
        yield
