"""`pmap`: the classic form. State and batch carry a leading device axis of size K."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from paceline.engine.metrics import StepMetrics
from paceline.engine.schemes.local import local_step
from paceline.engine.state import TrainState
from paceline.engine.update import StepSpec
from paceline.topology.mesh import DATA_AXIS


def build(spec: StepSpec, state: Any) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """The step ``(state [K, ...], batch [K, B/K, ...], valid [K, B/K]) -> (state [K, ...], metrics)``.

    Every leaf of the state has one layout here, so `state` is not read.
    """
    del state
    return jax.pmap(
        local_step(spec),
        axis_name=DATA_AXIS,
        devices=list(spec.mesh.devices.flat),
        in_axes=(0, 0, 0),
        out_axes=(0, None),
        donate_argnums=(0,) if spec.parallel.donate else (),
    )
