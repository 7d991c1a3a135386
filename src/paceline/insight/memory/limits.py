"""How much of a GPU's memory a program can have.

Owns: what the runtime keeps for itself, with its sources.
Not here: the memory of each device (`insight.hardware`).
Invariant: what is assumed and not measured says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

POOL_SHARE = 0.75
"""Share of the memory that JAX takes at its first operation and programs live in, unless told otherwise.
Source: JAX documentation, "GPU memory allocation". Newer releases let the pool grow; those served here may not."""

RUNTIME_BYTES = 1_500_000_000
"""Outside of the pool: CUDA context and kernels, handles of cuBLAS and cuDNN, buffers of NCCL.

An assumption, not a measurement: 0.5 GB of context, and NCCL's buffers of 4 MiB a channel and connection (NCCL
documentation, NCCL_BUFFSIZE) on some dozens of channels, doubled for safety."""

_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


@dataclass(frozen=True)
class Limit:
    """What one program can hold on a device.

    Args:
      default_bytes: with the pool as the environment sets it.
      most_bytes: with the largest pool that leaves room for the runtime.
      largest_share: the pool for that, as XLA_CLIENT_MEM_FRACTION takes it, rounded down to a hundredth.
    """

    default_bytes: int
    most_bytes: int
    largest_share: float


def program_limit(memory_bytes: int, *, environment: Mapping[str, str] | None = None) -> Limit:
    """The limits of a GPU with so much memory.

    Args:
      environment: where the job's memory fraction is read; default: the variables of this process.
    """
    variables = os.environ if environment is None else environment
    most_share = int(100 * max(0.0, 1 - RUNTIME_BYTES / memory_bytes)) / 100
    share = next((_share(variables[name]) for name in _VARIABLES if variables.get(name)), POOL_SHARE)
    most = int(memory_bytes * most_share)
    return Limit(min(int(memory_bytes * share), most), most, most_share)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return POOL_SHARE  # JAX itself refuses it where the job runs
    return value if 0 < value <= 1 else POOL_SHARE
