"""`per_device`: shard_map; each device runs the step on its own rows and the gradients are reduced once an update."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec

from paceline.engine.metrics import StepMetrics
from paceline.engine.schemes.local import local_step
from paceline.engine.state import TrainState
from paceline.engine.update import StepSpec
from paceline.topology.mesh import DATA_AXIS


def build(spec: StepSpec) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """The jitted step ``(state, batch [B@data, ...], valid [B@data]) -> (state, metrics)``.

    The replication check of shard_map is off: under it a one-device loss with a scan over zeros would not trace.
    Nothing relies on it, since every value that leaves `local_step` has been reduced.
    """
    whole, rows = PartitionSpec(), PartitionSpec(DATA_AXIS)
    mapped = jax.shard_map(
        local_step(spec),
        mesh=spec.mesh,
        in_specs=(whole, rows, rows),
        out_specs=whole,
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=(0,) if spec.parallel.donate else ())
