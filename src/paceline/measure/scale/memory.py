"""What it means when a device has no more memory.

Owns: telling that error from others, its words.
Not here: how much a step needs (`insight.memory`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from paceline.insight.memory.largest import MemoryFitError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the runtime, or the compiler, had too little memory."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


@contextlib.contextmanager
def memory_told(batch: int, *, devices: int) -> Iterator[None]:
    """Raise MemoryFitError where the memory of the devices was not enough for a batch of so many rows."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        first = str(error).strip().splitlines()[0][:160]
        raise MemoryFitError(
            what=f"a batch of {batch:,} on {devices} x {jax.devices()[0].device_kind} does not fit the memory: {first}",
            why="a step has to run to be measured",
            fix="use a smaller --batch, more --accumulation, or --placement zero1 or fsdp, which share the state; "
            "strong scaling gives one device the whole batch, so --mode weak takes less",
        ) from error
