"""One event, one line, both ways."""

from __future__ import annotations

import contextlib
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.telemetry.events import Event, decode, encode, number_text

numbers = st.floats() | st.integers(-(2**63), 2**64 - 1)
whole_text = st.text(st.characters(exclude_categories=["Cs"]))
events = st.builds(
    Event,
    kind=st.sampled_from(["step", "evaluation", "notice", "start", "end"]),
    step=st.integers(0, 2**53),
    time_s=st.floats(0, 1e11),
    values=st.dictionaries(whole_text, numbers, max_size=5),
    text=st.none() | whole_text,
)


@given(events)
def test_decoding_gives_back_what_was_encoded(event):
    """Every field, bit for bit; compared as text because NaN does not equal itself."""
    assert repr(decode(encode(event))) == repr(event)


@given(events)
def test_an_event_is_one_line_of_json_that_any_strict_reader_takes(event):
    """One newline, at the end; no NaN or Infinity, which browsers reject."""
    line = encode(event)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    json.loads(line, parse_constant=pytest.fail)


def test_a_step_reads_as_the_documented_schema():
    """The line by pencil; a missing text leaves no field."""
    line = encode(Event("step", 7, 1.5, {"train/loss": 0.25, "train/rows": 480}))
    assert line == b'{"kind":"step","step":7,"time_s":1.5,"values":{"train/loss":0.25,"train/rows":480}}\n'


@pytest.mark.parametrize("value, text", [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_number_that_json_lacks_is_a_string_on_the_line(value, text):
    """Encoded on purpose: msgspec alone would write null."""
    assert number_text(value) == text
    assert json.loads(encode(Event("step", 1, 0.0, {"x": value})))["values"] == {"x": text}


@pytest.mark.parametrize(
    "value, plain",
    [(np.float32(0.5), 0.5), (np.float64(0.1), 0.1), (np.int64(3), 3), (np.array(2.5), 2.5), (True, 1)],
)
def test_numpy_scalars_are_plain_numbers_on_the_line(value, plain):
    """Same value and kind as Python's own number."""
    got = decode(encode(Event("step", 1, 0.0, {"x": value}))).values["x"]
    assert (got, type(got)) == (plain, type(plain))


@pytest.mark.parametrize("value", ["many", np.zeros(3), None])
def test_a_value_that_is_not_one_number_raises(value):
    """It is a bug of the caller, not of the disk."""
    with pytest.raises((TypeError, ValueError)):
        encode(Event("step", 1, 0.0, {"x": value}))


def test_words_that_are_no_unicode_still_make_a_line():
    """A file name that is not UTF-8 arrives with lone surrogates, which no JSON writer takes."""
    text = decode(encode(Event("notice", 1, 0.0, {}, "saved to b\udce4r"))).text
    assert text == "saved to b\\udce4r"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"\xff\xfe",
        b'{"kind":"step"}',
        b'{"kind":"other","step":1,"time_s":0.0,"values":{}}',
        b'{"kind":"step","step":1,"time_s":0.0,"values":{"x":"abc"}}',
        b'{"kind":"step","step":1,"time_s":0.0,"values":{"x":null}}',
        b'{"kind":"step","step":1.5,"time_s":0.0,"values":{}}',
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_line_that_is_no_event_raises_value_error_and_nothing_else(line):
    """Readers count it and go on, whatever is wrong."""
    with pytest.raises(ValueError):
        decode(line)


@given(st.binary(max_size=60))
def test_no_bytes_make_decoding_fail_in_another_way(line):
    """Random bytes give an event or ValueError."""
    with contextlib.suppress(ValueError):
        decode(line)


def test_fields_of_a_later_version_are_ignored():
    """A page of today reads a run of tomorrow."""
    assert decode(b'{"kind":"end","step":3,"time_s":2.0,"values":{},"new":[1]}') == Event("end", 3, 2.0, {})
