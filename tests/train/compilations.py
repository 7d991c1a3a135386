"""How many programs JAX compiled, by its own count: programs that no cache of ours knows of are in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_compiled: list[str] = []


def _listen(event: str, duration_s: float, **_: object) -> None:
    if event == _EVENT:
        _compiled.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """A list that holds one entry for each compilation inside the block, once the block has ended."""
    before = len(_compiled)
    inside: list[str] = []
    yield inside
    inside.extend(_compiled[before:])
