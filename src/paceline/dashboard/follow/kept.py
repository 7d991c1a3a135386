"""What is kept of events that carry words, so that no file, however odd, fills the memory.

Owns: bounds on keys, texts and lists of events, and what is counted of that which is beyond them.
Not here: reading events (`follow.feed`), numbers by step (`follow.columns`), marks (`follow.marks`).
Invariant: what is left out is counted; the newest is never what is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from paceline.telemetry.events import Event

MOST_KEYS = 512
LONGEST_KEY = 200
LONGEST_TEXT = 4000
MOST_PLACES = 4096  # leaves at which an audit found a difference
KEPT_EVENTS = 4000
KEPT_EVENT_BYTES = 4 * 1024 * 1024
MOST_KINDS = 20
_MOST_COUNTED = 10_000
_EVENT_BYTES, _ENTRY_BYTES = 250, 120  # of an event without words, of one of its values; measured, roughly

Number = TypeVar("Number", int, float)


class NumberedEvent(NamedTuple):
    """An event that is no step, with its number in the run, by which the page asks for earlier ones."""

    number: int
    process: int
    event: Event


class Keys:
    """Which keys of a table are kept: the first `MOST_KEYS` that are not too long."""

    def __init__(self) -> None:
        self._kept: set[str] = set()
        self._left_out: set[int] = set()

    @property
    def left_out(self) -> int:
        """How many others came, at least."""
        return len(self._left_out)

    def admit(self, keys: Iterable[str]) -> bool:
        """Whether all of these are kept; new ones are, while there is room."""
        return not [key for key in keys if key not in self._kept and not self._is_new(key)]

    def of(self, values: Mapping[str, Number]) -> Mapping[str, Number]:
        """Those of the values whose key is kept."""
        return values if self.admit(values) else {key: values[key] for key in values if key in self._kept}

    def _is_new(self, key: str) -> bool:
        if len(self._kept) < MOST_KEYS and len(key) <= LONGEST_KEY:
            self._kept.add(key)
            return True
        if len(self._left_out) < _MOST_COUNTED:
            self._left_out.add(hash(key))
        return False


class KeptEvents:
    """The newest events, of which the oldest make room."""

    def __init__(self) -> None:
        self._events: deque[NumberedEvent] = deque()
        self._bytes = 0

    def __iter__(self) -> Iterator[NumberedEvent]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def append(self, item: NumberedEvent) -> None:
        """Keep an event that was `trimmed`."""
        self._events.append(item)
        self._bytes += _size_bytes(item.event)
        while len(self._events) > KEPT_EVENTS or (self._bytes > KEPT_EVENT_BYTES and len(self._events) > 1):
            self._bytes -= _size_bytes(self._events.popleft().event)


def short(text: str) -> str:
    """A text of `LONGEST_TEXT` characters at most; an ellipsis says that it went on."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def trimmed(event: Event) -> Event:
    """The event, with no more words, values and places than a reader can take in; nearly always as it is."""
    text = event.text and short(event.text)
    values = event.values
    if len(values) > MOST_KEYS or any(len(key) > LONGEST_KEY for key in values):
        names = [key for key in values if len(key) <= LONGEST_KEY][:MOST_KEYS]
        values = {key: values[key] for key in names}
    if text is event.text and values is event.values and len(event.where) <= MOST_PLACES:
        return event
    return msgspec.structs.replace(event, text=text, values=values, where=event.where[:MOST_PLACES])


def _size_bytes(event: Event) -> int:
    words = 4 * len(event.text or "")  # a text with one letter beyond the first planes takes four bytes for each
    places = sum(_ENTRY_BYTES + 4 * len(place.leaf) + 16 * len(place.devices) for place in event.where)
    return _EVENT_BYTES + words + _ENTRY_BYTES * len(event.values) + places
