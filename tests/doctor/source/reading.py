"""Sources on disk, and what the source check says of them."""

from __future__ import annotations

import textwrap
from pathlib import Path

from paceline.doctor.finding import Finding
from paceline.doctor.source.check import check_source

HEADER = """\
import functools
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

optimizer = optax.sgd(0.1)

def loss_fn(params, batch):
    return jnp.mean((batch["x"] * params["w"] - batch["y"]) ** 2)

"""
HEADER_LINES = HEADER.count("\n")


def write(folder: Path, source: str, *, name: str = "step.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


def troubles(path: Path, *, devices: int | None = None) -> list[Finding]:
    """Warnings and errors."""
    return [finding for finding in check_source(path, devices=devices) if finding.level != "ok"]


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, [finding.lines() for finding in found]
    return found[0]
