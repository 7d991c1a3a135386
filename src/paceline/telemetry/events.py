"""One event is one JSON object on one line.

Owns: the schema of a line, and its translation both ways.
Not here: files (`telemetry.recorder` writes, `telemetry.reader` reads) or the meaning of keys (`telemetry.metrics`).
Invariant: what is decoded equals what was encoded, NaN and infinities included.

A later version may write kinds that this one does not know: `decode` tells them from damage, by name.

JSON has no number for NaN or infinity: browsers reject the bare word and msgspec writes ``null``, which cannot be told
from a missing value. They are therefore the strings ``"nan"``, ``"inf"`` and ``"-inf"`` on the line, floats elsewhere.
"""

from __future__ import annotations

import math
import operator
from typing import Annotated, Any, Literal, get_args

import msgspec

Kind = Literal["step", "evaluation", "audit", "notice", "checkpoint", "skip", "start", "end"]
NonFinite = Literal["nan", "inf", "-inf"]

_KINDS = frozenset(get_args(Kind))

Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Updates completed; a larger number is no longer the same in every reader of JSON. Checked where lines are decoded."""


class UnknownKindError(ValueError):
    """A whole line of a kind that this version does not know, named by `kind`: not damage."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"an event of unknown kind {kind!r}")
        self.kind = kind


class Where(msgspec.Struct, frozen=True):
    """One leaf of the state that an audit found to differ.

    Args:
      leaf: its dotted name.
      devices: ids of the odd devices; of all replicas if no majority is equal.
      processes: the process of each of these devices.
      replicas: how many devices should hold the same bytes.
      odd: True if most replicas are equal, so that `devices` can be told to be wrong.
    """

    leaf: str
    devices: tuple[int, ...]
    processes: tuple[int, ...]
    replicas: int
    odd: bool


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened in a run.

    Args:
      kind: ``step``, ``evaluation`` and ``audit`` carry values; ``notice``, ``checkpoint`` (a state was saved) and
        ``skip`` (an update was left out: not finite) a text, ``audit`` one if replicas differ; ``start`` and ``end``
        bracket one recorder, so a resumed run has several and a killed one lacks the last ``end``.
      step: updates completed when it happened.
      time_s: Unix time [s] on the clock of the process that wrote it.
      values: numbers by metric key.
      text: words for people.
      where: of an audit that found a difference: which leaves on which devices.
    """

    kind: Kind
    step: Step
    time_s: float
    values: dict[str, int | float]
    text: str | None = None
    where: tuple[Where, ...] = ()


class _Line(msgspec.Struct, omit_defaults=True):
    """An event as it stands on the line, where non-finite numbers are strings."""

    kind: Kind
    step: Step
    time_s: float
    values: dict[str, int | float | NonFinite]
    text: str | None = None
    where: tuple[Where, ...] = ()


class _Envelope(msgspec.Struct):
    """What a line of any version has."""

    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    step: Step
    time_s: float


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Line)
_envelope_decoder = msgspec.json.Decoder(_Envelope)


def encode(event: Event) -> bytes:
    """The event as one line, newline included.

    Values may be anything that `float` takes, numpy and jax scalars included; a jax scalar that is not computed yet
    blocks here until it is.

    Raises: TypeError, ValueError: a value is not one number.
    """
    values: dict[str, int | float | NonFinite] = {key: _plain(value) for key, value in event.values.items()}
    text = None if event.text is None else _whole_text(event.text)
    where = event.where
    if where:
        where = tuple(msgspec.structs.replace(item, leaf=_whole_text(item.leaf)) for item in where)
    return _encoder.encode(_Line(event.kind, event.step, event.time_s, values, text, where)) + b"\n"


def decode(line: bytes) -> Event:
    """The event on a line, with or without its newline.

    Raises:
      UnknownKindError: a line of another version, well formed.
      ValueError: the line holds no event; whatever is wrong with it, no other error leaves here.
    """
    try:
        read = _decoder.decode(line)
    except RecursionError as error:
        raise ValueError("nested too deeply for an event") from error
    except ValueError as error:
        kind = _unknown_kind(line)
        if kind is None:
            raise
        raise UnknownKindError(kind) from error
    values: dict[str, Any] = read.values
    make_floats(values)
    return Event(read.kind, read.step, read.time_s, values, read.text, read.where)


def _unknown_kind(line: bytes) -> str | None:
    """The kind that a well-formed line has and this version does not know; None if the line is damaged."""
    try:
        kind = _envelope_decoder.decode(line).kind
    except (ValueError, RecursionError):
        return None
    return None if kind in _KINDS else kind


def _whole_text(text: str) -> str:
    """File names that are no UTF-8 reach us as lone surrogates, which no JSON writer accepts."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def make_floats(values: dict[str, Any]) -> None:
    """Turns the strings that stand for non-finite numbers into these numbers, in place."""
    for key, value in values.items():
        if type(value) is str:
            values[key] = float(value)


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
