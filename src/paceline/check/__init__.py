"""Proofs about a step: what differs between devices, before the run and during it.

Owns: the public names of the package, loaded when they are first used.
Invariant: no module here has the name of a public function, or importing the module would hide the function.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.check.audit import replicas as replicas
    from paceline.check.keys import loss_key_findings as loss_key_findings
    from paceline.check.keys import step_key_findings as step_key_findings
    from paceline.check.replication import drifting as drifting

_HOMES = {
    "drifting": "paceline.check.replication",
    "loss_key_findings": "paceline.check.keys",
    "replicas": "paceline.check.audit",
    "step_key_findings": "paceline.check.keys",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]: the names are those imported above


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline.check' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
