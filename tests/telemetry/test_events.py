"""One event, one line, both ways."""

from __future__ import annotations

import contextlib
import json
import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.telemetry.events import Event, Kind, UnknownKindError, Where, decode, encode, number_text

numbers = st.floats() | st.integers(-(2**63), 2**64 - 1)
whole_text = st.text(st.characters(exclude_categories=["Cs"]))
indices = st.lists(st.integers(0, 10**6), max_size=3).map(tuple)
places = st.builds(
    Where, leaf=whole_text, devices=indices, processes=indices, replicas=st.integers(0, 10**6), odd=st.booleans()
)
events = st.builds(
    Event,
    kind=st.sampled_from(get_args(Kind)),
    step=st.integers(0, 2**53),
    time_s=st.floats(0, 1e11),
    values=st.dictionaries(whole_text, numbers, max_size=5),
    text=st.none() | whole_text,
    where=st.lists(places, max_size=3).map(tuple),
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


def test_an_audit_says_where_replicas_differ():
    """The line by pencil: leaf, odd devices and their processes among four replicas; without a difference no field."""
    where = Where("params.w", devices=(2,), processes=(1,), replicas=4, odd=True)
    line = encode(Event("audit", 8, 1.5, {"audit/differing_leaves": 1}, "w differs", (where,)))
    assert line == (
        b'{"kind":"audit","step":8,"time_s":1.5,"values":{"audit/differing_leaves":1},"text":"w differs","where":'
        b'[{"leaf":"params.w","devices":[2],"processes":[1],"replicas":4,"odd":true}]}\n'
    )
    assert b"where" not in encode(Event("audit", 4, 1.5, {"audit/differing_leaves": 0}))


def test_a_leaf_name_that_is_no_unicode_still_makes_a_line():
    """Keys of a tree can come from file names: a lone surrogate is written as its escape."""
    where = Where("params.\udcff", devices=(0,), processes=(0,), replicas=2, odd=False)
    assert decode(encode(Event("audit", 1, 0.0, {}, None, (where,)))).where[0].leaf == "params.\\udcff"


@pytest.mark.parametrize(
    "line",
    [b'{"kind":"zoom","step":1,"time_s":2.0}', b'{"kind":"zoom","step":1,"time_s":2.0,"values":[["x"]],"text":7}'],
    ids=["bare", "with fields of other types"],
)
def test_a_kind_from_the_future_is_told_from_damage_by_its_name(line):
    """As this version would meet the lines of a later one: it names the kind, and guesses nothing of the rest."""
    with pytest.raises(UnknownKindError) as caught:
        decode(line)
    assert caught.value.kind == "zoom"


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"zoom","step":1}',
        b'{"kind":"","step":1,"time_s":2.0}',
        b'{"kind":"' + b"z" * 41 + b'","step":1,"time_s":2.0}',
        b'{"kind":"step","step":1,"time_s":2.0,"values":[]}',
        b'{"kind":"audit","step":1,"time_s":2.0,"values":{},"where":[{"leaf":3}]}',
        b'{"kind":7,"step":1,"time_s":2.0}',
        b'{"kind":"step","step":-1,"time_s":2.0,"values":{}}',
        b'{"kind":"zoom","step":-1,"time_s":2.0}',
        b'{"kind":"step","step":9007199254740993,"time_s":2.0,"values":{}}',
        b'{"kind":"step","step":1,"time_s":1e999,"values":{}}',
        b'{"kind":"step","step":1,"time_s":"nan","values":{}}',
    ],
    ids=[
        "no time",
        "no name",
        "no name but a text",
        "known kind, wrong values",
        "known kind, wrong place",
        "a number",
        "before the first step",
        "unknown kind, before the first step",
        "beyond 2**53",
        "no finite time",
        "time in words",
    ],
)
def test_a_line_without_a_name_time_and_step_is_damage(line):
    """ValueError, and not a kind: it would be counted as something that a newer version could show."""
    with pytest.raises(ValueError) as caught:
        decode(line)
    assert not isinstance(caught.value, UnknownKindError)


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
