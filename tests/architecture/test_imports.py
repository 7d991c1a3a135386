"""What an import loads, measured in a fresh interpreter: Paceline itself costs nothing, reading a run needs no jax."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("jax", "numpy", "flax", "tyro", "rich")
REPORT = "\nimport sys, json; print('\\n' + json.dumps(sorted(name for name in sys.modules if '.' not in name)))"


def loaded_by(code: str, *, path: Path | None = None) -> set[str]:
    """Top-level modules loaded once `code` has run in a fresh interpreter, with `path` searched first."""
    env = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    run = subprocess.run([sys.executable, "-c", code + REPORT], env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_importing_paceline_loads_nothing_heavy():
    """Neither jax nor numpy, flax, tyro, rich: names are resolved when they are first used."""
    loaded = loaded_by("import paceline")
    assert "paceline" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_a_run_is_read_without_jax():
    """A laptop without an accelerator stack can follow a run."""
    assert "jax" not in loaded_by("import paceline.telemetry.reader")


def test_help_is_printed_without_jax():
    """`paceline --help` answers at once; argument parsers end with SystemExit(0) there, which counts as success."""
    code = """
from paceline.cli.main import main
try:
    code = main(["--help"])
except SystemExit as end:
    code = end.code
assert not code, code
"""
    assert "jax" not in loaded_by(code)


def test_a_heavy_import_would_be_seen(tmp_path):
    """A package that loads a heavy module, even through another module, is caught."""
    (tmp_path / "heavy.py").write_text("import light_looking\n")
    (tmp_path / "light_looking.py").write_text("import numpy\n")
    assert "numpy" in loaded_by("import heavy", path=tmp_path)


def test_code_that_fails_is_not_taken_for_light():
    """An import error loads nothing heavy either; it must not pass."""
    with pytest.raises(AssertionError, match="no_such_module"):
        loaded_by("import no_such_module")
