"""Playing a schedule against clocks worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.insight.model.replay import replay
from paceline.insight.timeline import Collective, Done, Event, Repeat, Start, Timeline, Work


def work(seconds: float) -> Work:
    """A piece of work whose bytes are its seconds."""
    return Work(bytes=float(seconds))


def message(name: str, seconds: int) -> Collective:
    """A collective whose bytes are its seconds."""
    return Collective(name, "all-reduce", seconds, "float32", 8, asynchronous=True)


def play(*events: Event, contention: float = 0.0):
    """With bytes read as seconds."""
    return replay(events, work_s=lambda w: w.bytes, collective_s=lambda c: float(c.bytes), contention=contention)


def test_three_works_and_two_collectives_as_worked_out_by_hand():
    """Work 4; a (3) starts at 4 and ends at 7; work 2 to 6; b (5) waits for a, ends at 12; work 1 to 7; both awaited.

    The device waits from 7 to 12 for b alone: 5 exposed of 8, 3 hidden.
    """
    a, b = message("a", 3), message("b", 5)
    found = play(work(4), Start(a), work(2), Start(b), work(1), Done("a"), Done("b"))
    assert (found.compute_s, found.exposed_s, found.hidden_s, found.communication_s) == (7, 5, 3, 8)
    assert found.total_s == 12
    assert found.waits_s == {"b": 5}


def test_contention_slows_only_what_runs_beside_communication():
    """Work of 4 beside a collective of 3, slowed by a half: 2 of it take the 3 seconds, 2 run alone; 5 in all."""
    found = play(Start(message("a", 3)), work(4), Done("a"), contention=0.5)
    assert (found.compute_s, found.contention_s, found.exposed_s, found.total_s) == (4, 1, 0, 5)


def test_work_that_ends_before_the_collective_is_slowed_throughout():
    """Work of 2 slowed by a half takes 3; the collective of 10 exposes the other 7."""
    found = play(Start(message("a", 10)), work(2), Done("a"), contention=0.5)
    assert (found.contention_s, found.exposed_s, found.total_s) == (1, 7, 10)


def test_a_blocking_collective_is_exposed_whole():
    """A start with its end directly behind hides nothing."""
    found = play(work(1), Start(message("a", 2)), Done("a"), work(1))
    assert (found.exposed_s, found.hidden_s, found.total_s) == (2, 0, 4)


def test_a_loop_counts_each_trip_without_being_unrolled():
    """Ten million trips of 2 + 1 exposed: answered at once, and exactly."""
    body: Timeline = (Start(message("a", 2)), work(1), Done("a"), work(1))
    found = play(work(5), Repeat(10_000_000, body))
    assert found.compute_s == 5 + 20_000_000
    assert found.exposed_s == 10_000_000
    assert found.waits_s == {"a": 10_000_000}


def test_what_was_started_before_a_loop_delays_the_collectives_inside():
    """Outer collective of 10; each trip works 1 and sends 1.

    The first trip's message waits for the outer one: it ends at 11, and 10 are waited for. Later trips work 1, wait 1.
    """
    body: Timeline = (Start(message("in", 1)), work(1), Done("in"))
    found = play(Start(message("out", 10)), Repeat(3, body), Done("out"))
    assert found.waits_s == {"in": 10}
    assert found.total_s == 13


events = st.recursive(
    st.tuples(st.floats(0, 10), st.integers(0, 10), st.floats(0, 10)).map(
        lambda t: (work(t[0]), Start(message("x", t[1])), work(t[2]), Done("x"))
    ),
    lambda inner: st.tuples(st.integers(1, 4), inner).map(lambda t: (Repeat(t[0], t[1]),)),
    max_leaves=4,
)


def unrolled(timeline: Timeline) -> Timeline:
    """Loops written out."""
    out: list[Event] = []
    for event in timeline:
        out += list(unrolled(event.body)) * event.times if isinstance(event, Repeat) else [event]
    return tuple(out)


@settings(max_examples=40, deadline=None)
@given(timeline=events, before=st.integers(0, 30), contention=st.floats(0, 1))
def test_a_loop_takes_as_long_as_its_trips_written_out(timeline, before, contention):
    """Any nesting, with and without a message from before it (rtol 1e-9)."""
    whole = (Start(message("before", before)), *timeline, Done("before"))
    rolled, flat = play(*whole, contention=contention), play(*unrolled(whole), contention=contention)
    for name in ("compute_s", "contention_s", "exposed_s", "communication_s"):
        assert getattr(rolled, name) == pytest.approx(getattr(flat, name), rel=1e-9, abs=1e-9)
    assert rolled.waits_s == pytest.approx(flat.waits_s, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(timeline=events, faster=st.floats(0.01, 1.0), contention=st.floats(0, 1))
def test_faster_communication_never_makes_a_step_longer(timeline, faster, contention):
    """Every collective shorter by one factor."""
    slow = replay(timeline, work_s=lambda w: w.bytes, collective_s=lambda c: float(c.bytes), contention=contention)
    fast = replay(timeline, work_s=lambda w: w.bytes, collective_s=lambda c: faster * c.bytes, contention=contention)
    assert fast.total_s <= slow.total_s * (1 + 1e-9) + 1e-9
