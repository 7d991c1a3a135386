"""One event is one JSON object on one line.

Owns: the schema of a line, and its translation both ways.
Not here: files (`telemetry.recorder` writes, `telemetry.reader` reads) or the meaning of keys (`telemetry.metrics`).
Invariant: what is decoded equals what was encoded, NaN and infinities included.

JSON has no number for NaN or infinity: browsers reject the bare word and msgspec writes ``null``, which cannot be told
from a missing value. They are therefore the strings ``"nan"``, ``"inf"`` and ``"-inf"`` on the line, floats elsewhere.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Literal

import msgspec

Kind = Literal["step", "evaluation", "audit", "notice", "start", "end"]
NonFinite = Literal["nan", "inf", "-inf"]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened in a run.

    Args:
      kind: ``step``, ``evaluation`` and ``audit`` carry values, ``notice`` a text, ``audit`` one if replicas differ;
        ``start`` and ``end`` bracket one recorder, so a resumed run has several and a killed one lacks the last
        ``end``.
      step: updates completed when it happened.
      time_s: Unix time [s] on the clock of the process that wrote it.
      values: numbers by metric key.
      text: words for people.
    """

    kind: Kind
    step: int
    time_s: float
    values: dict[str, int | float]
    text: str | None = None


class _Line(msgspec.Struct, omit_defaults=True):
    """An event as it stands on the line, where non-finite numbers are strings."""

    kind: Kind
    step: int
    time_s: float
    values: dict[str, int | float | NonFinite]
    text: str | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Line)


def encode(event: Event) -> bytes:
    """The event as one line, newline included.

    Values may be anything that `float` takes, numpy and jax scalars included; a jax scalar that is not computed yet
    blocks here until it is.

    Raises: TypeError, ValueError: a value is not one number.
    """
    values: dict[str, int | float | NonFinite] = {key: _plain(value) for key, value in event.values.items()}
    text = event.text
    if text is not None and not text.isascii():
        # File names that are no UTF-8 reach us as lone surrogates, which no JSON writer accepts.
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _encoder.encode(_Line(event.kind, event.step, event.time_s, values, text)) + b"\n"


def decode(line: bytes) -> Event:
    """The event on a line, with or without its newline.

    Raises: ValueError: the line holds no event; whatever is wrong with it, no other error leaves here.
    """
    try:
        read = _decoder.decode(line)
    except RecursionError as error:
        raise ValueError("nested too deeply for an event") from error
    values: dict[str, Any] = read.values
    for key, value in values.items():
        if type(value) is str:
            values[key] = float(value)
    return Event(read.kind, read.step, read.time_s, values, read.text)


def number_text(value: int | float) -> NonFinite | None:
    """``"nan"``, ``"inf"`` or ``"-inf"`` for a number that JSON lacks, else None."""
    if math.isfinite(value):
        return None
    return "nan" if value != value else "inf" if value > 0 else "-inf"


def plain_number(value: Any) -> int | float:
    """A Python int for integers and bools, a Python float for the rest; numpy and jax scalars included.

    Raises: TypeError, ValueError: not one number.
    """
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def _plain(value: Any) -> int | float | NonFinite:
    if type(value) is not float:
        value = plain_number(value)
    return value if type(value) is int else number_text(value) or value
