"""Bounds on what a file can make the reader keep."""

from __future__ import annotations

import pytest

from paceline.dashboard.follow import kept
from paceline.dashboard.follow.kept import KeptEvents, Keys, NumberedEvent, trimmed
from paceline.telemetry.events import Event, Where


def test_the_first_keys_are_kept_and_others_counted_once(monkeypatch):
    monkeypatch.setattr(kept, "MOST_KEYS", 2)
    keys = Keys()
    assert keys.of({"a": 1, "b": 2, "c": 3}) == {"a": 1, "b": 2}
    assert keys.of({"c": 3, "d": 4, "b": 5}) == {"b": 5}
    assert (keys.admit(["a", "b"]), keys.left_out) == (True, 2)


def test_a_key_that_is_too_long_takes_no_place():
    keys = Keys()
    assert keys.of({"a": 1, "k" * (kept.LONGEST_KEY + 1): 2}) == {"a": 1}
    assert keys.left_out == 1


def test_an_event_of_usual_size_is_kept_as_it_is():
    event = Event("notice", 1, 0.0, {"x": 1}, "words")
    assert trimmed(event) is event


def test_an_event_is_cut_to_what_a_reader_can_take_in():
    """Text, values, places."""
    place = Where("leaf", (0,), (0,), 2, True)
    values: dict[str, int | float] = {f"k{number}": number for number in range(kept.MOST_KEYS + 5)}
    values["long" * 100] = 1
    event = trimmed(Event("audit", 1, 0.0, values, "x" * 10_000, (place,) * (kept.MOST_PLACES + 3)))
    assert event.text == "x" * (kept.LONGEST_TEXT - 1) + "…"
    assert list(event.values) == [f"k{number}" for number in range(kept.MOST_KEYS)]
    assert len(event.where) == kept.MOST_PLACES


@pytest.mark.parametrize(("events", "text", "expected"), [(10, "x", 4), (10, "x" * 500, 2)])
def test_the_oldest_events_make_room_by_number_and_by_bytes(monkeypatch, events, text, expected):
    """An event with 500 letters counts as 250 + 2000 bytes."""
    monkeypatch.setattr(kept, "KEPT_EVENTS", 4)
    monkeypatch.setattr(kept, "KEPT_EVENT_BYTES", 5000)
    found = KeptEvents()
    for number in range(events):
        found.append(NumberedEvent(number, 0, Event("notice", number, 0.0, {}, text)))
    assert [item.number for item in found] == list(range(events))[-expected:]
