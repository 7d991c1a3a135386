"""Many lines at once give what single lines give."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.telemetry.bulk import decode_bulk, line_by_line
from paceline.telemetry.events import Event, Where, decode


def line(kind: str = "step", step: int = 1, **values: object) -> bytes:
    return json.dumps({"kind": kind, "step": step, "time_s": 5.5, "values": values}).encode() + b"\n"


def test_whole_lines_give_the_events_of_single_lines():
    """Kinds, integers, floats, texts and places of a difference included."""
    where = b'[{"leaf":"w","devices":[2],"processes":[0],"replicas":4,"odd":true}]'
    audit = b'{"kind":"audit","step":3,"time_s":6.0,"values":{},"text":"differs","where":' + where + b"}\n"
    lines = [line(a=1, b=2.5), line("evaluation", 2, c=7), audit]
    found = decode_bulk(b"".join(lines))
    assert [(e.kind, e.step, e.time_s, e.values, e.text, e.where) for e in found.events] == [
        (e.kind, e.step, e.time_s, e.values, e.text, e.where) for e in map(decode, lines)
    ]
    assert found.events[2].where == (Where("w", (2,), (0,), 4, True),)
    assert all(isinstance(event, Event) for event in found.events)
    assert (found.skipped, found.unknown) == (0, {})


def test_numbers_that_are_not_finite_become_floats():
    """ "nan", "inf" and "-inf" are numbers, not strings."""
    values = decode_bulk(line(a="nan", b="inf", c="-inf", d=1)).events[0].values
    assert math.isnan(values["a"])
    assert (values["b"], values["c"], values["d"]) == (math.inf, -math.inf, 1)


@pytest.mark.parametrize(
    "damage",
    [
        b"{torn\n",
        b"[]\n",
        b'{"kind":"step"}\n',
        b"\xff\xfe\n",
        b"[" * 5000 + b"\n",
        line(step=-1, a=1),
        line(step=2**53 + 1, a=1),
        line(a=1).replace(b"5.5", b"1e999"),
    ],
)
def test_a_damaged_line_is_counted_and_spoils_no_other(damage):
    """The lines around it are there."""
    found = decode_bulk(line(step=1, a=1) + damage + line(step=2, a="nan"))
    assert [event.step for event in found.events] == [1, 2]
    assert found.skipped == 1


def test_kinds_of_a_later_version_are_counted_by_name():
    """Also when their values are of other types."""
    later = b'{"kind":"teleport","step":4,"time_s":1.0,"values":{"a":[1,2]}}\n'
    found = decode_bulk(line() + later + later)
    assert (len(found.events), found.skipped, found.unknown) == (1, 0, {"teleport": 2})


def test_empty_lines_and_no_lines_are_nothing():
    """A recorder ends a line that a full disk may already have ended."""
    assert decode_bulk(b"") == ([], 0, {})
    found = decode_bulk(line() + b"\n\n" + line())
    assert (len(found.events), found.skipped) == (2, 0)


LINES = (
    line(a=1, b=2.5), line(step=2, a="nan"), line("end", 3), line("teleport", 4), b"\n",
    b'{"kind":"audit","step":3,"time_s":6.0,"values":{},"where":[{"leaf":"w","devices":[2],"processes":[0],'
    b'"replicas":4,"odd":true}]}\n',
    b'{"kind":"step","step":5,"time_s":7,"later":[{"a":1},\n{"b":2}],"values":{"a":' + b"9" * 400 + b"}}\n",
)  # fmt: skip
PIECES = (
    b"\n", b"\r", b"\r\n", b" ", b"\t", b"\n\n", b",", b"{", b"}", b"}\n{", b"[", b"]", b'"', b"1", b"nan", b"\x00",
    b"\xff", line(a=7)[:-1], b"\xef\xbb\xbf", b"//", b"\x0b", b"\xc2\x85",
)  # fmt: skip


@st.composite
def mutated_lines(draw):
    """Lines of events, with bytes put in, taken out and replaced at any place."""
    content = b"".join(draw(st.lists(st.sampled_from(LINES), max_size=5)))
    for _ in range(draw(st.integers(0, 3))):
        brackets = [place for place, byte in enumerate(content) if byte in b"{}\n,:"]
        places = st.integers(0, len(content))
        begin = draw(places | st.sampled_from(brackets) if brackets else places)
        end = begin + draw(st.integers(0, 3))
        content = content[:begin] + draw(st.sampled_from((b"", *PIECES))) + content[end:]
    return content


def shown(bulk):
    """All that there is, NaN included, with types."""
    events = [(e.kind, e.step, e.time_s, sorted(e.values.items()), e.text, e.where) for e in bulk.events]
    return repr((events, bulk.skipped, bulk.unknown))


@settings(max_examples=500)
@given(mutated_lines())
@example(line()[:-1] + line())  # two events on one line
@example(line()[:-1] + b"\r" + line())
@example(line().replace(b",", b",\n", 1))  # an event on two lines
@example(line()[:-1] + line() + line().replace(b",", b",\n", 1))  # as many lines as events
@example(line()[:-2] + b"\n}\n")
@example(line()[:-1] + line() + line().replace(b'"values": ', b'"values":\n'))
@example(b" " + line() + line()[:-1] + b"\r\n")
@example(line() + b"\n\n" + line())
def test_any_lines_give_what_single_lines_give(content):
    """Where a line ends decides, also for a reader that takes many at once."""
    assert shown(decode_bulk(content)) == shown(line_by_line(content))
