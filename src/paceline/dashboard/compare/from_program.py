"""What the compiled step of a run says: memory, traffic and collectives of ``program.json``.

Owns: reading these numbers, and the reasons where one is missing or cannot be one.
Not here: what the run measured (`from_run`), the ring (`ring`).
Invariant: a number is finite, not negative, and within the range of a float; what is none is told, and never replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.dashboard.compare import quantities
from paceline.dashboard.compare.ring import Use, sent_bytes
from paceline.dashboard.compare.subject import Basis, Number, unknown
from paceline.dashboard.compare.told import told
from paceline.dashboard.compare.words import say
from paceline.dashboard.follow.documents import entry, number_in, text_in, whole_in
from paceline.dashboard.words import Words


def program_numbers(program: Mapping[str, Any] | None) -> dict[str, Number]:
    """The numbers by key of `quantities`; ``program`` is None where the run has none."""
    counted = say("compare.detail.counted")
    uses = entry(program, "collectives")
    return {
        quantities.MEMORY_COMPILED.key: _number(program, "memory", "peak_bytes", detail=say("compare.detail.compiled")),
        quantities.SENT_BYTES.key: _sent(uses) if isinstance(uses, list) else _missing(program),
        quantities.WIRE_BYTES.key: _number(program, "wire_bytes", detail=counted),
        quantities.COLLECTIVES.key: _collectives(uses) if isinstance(uses, list) else _missing(program),
        quantities.BLOCKING_COLLECTIVES.key: _number(program, "blocking_collectives", detail=counted),
        quantities.COMMUNICATION_S.key: _number(
            program, "communication_s", detail=say("compare.detail.by_model_compiled"), basis="predicted"
        ),
    }


def _number(
    program: Mapping[str, Any] | None, *path: str, detail: Words, basis: Basis = "compiler"
) -> Number:  # fmt: skip
    if entry(program, *path) is None:
        return _missing(program)
    return _checked(number_in(program, *path), basis=basis, detail=detail)


def _checked(value: int | float | None, *, basis: Basis, detail: Words) -> Number:
    """The number, if it can be one; None stands for what is no number, or one beyond a float."""
    if value is None or not 0 <= value < math.inf:
        return unknown(say("compare.why.no_usable_number"))
    return Number(value, basis=basis, detail=detail)


def _missing(program: Mapping[str, Any] | None) -> Number:
    if program is None:
        return unknown(say("compare.why.no_program"))
    error = text_in(program, "error")
    return unknown(say("compare.why.program_unread", error=told(error) if error else say("compare.why.silent_why")))


def _collectives(uses: list[Any]) -> Number:
    times = [one for use in uses if (one := _times(use)) is not None]
    is_whole = len(times) == len(uses) and math.isfinite(sum(map(float, times)))
    return _checked(sum(times) if is_whole else None, basis="compiler", detail=say("compare.detail.counted"))


def _times(use: Any) -> int | float | None:
    """How often a collective runs in a step: once where a file of another version does not say."""
    if not isinstance(use, Mapping):
        return None
    if entry(use, "times") is None:
        return 1
    times = number_in(use, "times")
    return None if times is None or times < 0 else times


def _sent(uses: list[Any]) -> Number:
    found = [_use(one) for one in uses]
    if None in found:
        return unknown(say("compare.why.no_usable_number"))
    sent = sent_bytes(use for use in found if use is not None)
    if sent is None:
        return unknown(say("compare.why.unknown_collective"))
    return _checked(sent, basis="compiler", detail=say("compare.detail.ring"))


def _use(use: Any) -> Use | None:
    """The collective; None if a number of it is none. Kind and group may be unknown: `sent_bytes` says so."""
    times = _times(use)
    size = None if times is None else number_in(use, "bytes")
    if size is None or size < 0 or times is None:
        return None
    return Use(text_in(use, "kind") or "", size, whole_in(use, "devices") or 0, times)
