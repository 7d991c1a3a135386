"""What the training processes of these tests are started with.

Owns: the command and the environment of `paceline train`.
Invariant: compiled programs are shared with the test's own process, where that keeps them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax

import paceline
from tests.processes.run import ROOT

TRAIN = [sys.executable, "-m", "paceline.cli.main", "train"]

SOURCE = str(Path(paceline.__file__).parents[1])

CHILD: dict[str, str | None] = {
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": f"{SOURCE}:{ROOT}",
    "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
}
