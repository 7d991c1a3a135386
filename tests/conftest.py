"""What every test needs: eight simulated devices, checked annotations, float64 on request.

Owns: the process-wide settings of jax, jaxtyping and hypothesis, made before the first test imports Paceline.
Not here: anything one folder of tests needs; that lives beside those tests.
Invariant: a test sees eight CPU devices and float32 unless it asks for `x64`.
"""

from __future__ import annotations

import gc
import os

# Before jax is imported, and inherited by the processes that tests start. JAX_PLATFORMS=cuda in the shell still wins.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

from tests.typechecks import install_checks

jax.config.update("jax_num_cpu_devices", 8)

# Shapes and types in annotations are checked while tests run. Must precede every import of paceline.
install_checks("paceline")

# No deadline: a first call compiles. CI draws the same examples each time, so that a red run can be repeated.
hypothesis.settings.register_profile("paceline", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("paceline")


def pytest_configure(config: pytest.Config) -> None:
    """Keeps compiled programs between runs and shares them between workers.

    A dozen small steps take 4.2 s to compile and 0.7 s to load again. Measured equal on jax 0.10.2 and 0.12: results
    bitwise, collectives, memory analysis, and the number of compile events, which count loads too.
    """
    if config.pluginmanager.hasplugin("cacheprovider"):
        jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax-programs")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives tests of the clock two more tries, which the summary lists: one slow moment is no fault, three are one."""
    for item in items:
        if item.get_closest_marker("clock"):
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_collection_finish() -> None:
    """Leaves modules and collected tests out of garbage collections, which go through all of them otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def x64():
    """Float64 for one test. Holds in the test's own thread only: a background thread still makes float32."""
    with jax.enable_x64(True):
        yield
