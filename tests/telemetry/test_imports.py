"""What importing telemetry must not bring along."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import paceline.telemetry


def test_telemetry_brings_in_neither_jax_nor_rich():
    """A page or a comparison starts at once, and on a machine without devices. Numpy is not needed either."""
    modules = [f"paceline.telemetry.{module.name}" for module in pkgutil.iter_modules(paceline.telemetry.__path__)]
    assert len(modules) == 11
    code = (
        f"import sys, {', '.join(modules)}; print([m for m in ('jax', 'jaxlib', 'numpy', 'rich') if m in sys.modules])"
    )
    path = [entry for entry in sys.path if entry]
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]"
