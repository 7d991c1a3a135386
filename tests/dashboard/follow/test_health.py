"""Running, silent, ended: with clocks that jump."""

from __future__ import annotations

import pytest

from paceline.dashboard.follow.health import Pulse, end_state, is_silent

HOUR_S = 3600.0


class Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clocks():
    return Clock(100.0), Clock(1_000_000.0)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (None, "finished"),
        ("interrupted", "stopped"),
        ("terminated", "stopped"),
        ("callback", "stopped"),
        ("KeyboardInterrupt", "stopped"),
        ("NonFiniteError: the loss is nan", "failed"),
    ],
)
def test_an_end_says_how_the_run_ended(text, state):
    assert end_state(text) == state


@pytest.mark.parametrize(
    ("quiet_s", "step_s", "silent"),
    [
        (29, None, False),
        (31, None, True),
        (50, 3.0, False),
        (61, 3.0, True),
        (31, float("nan"), True),
    ],
)
def test_silence_is_half_a_minute_or_twenty_steps(quiet_s, step_s, silent):
    assert is_silent(quiet_s, step_s=step_s) == silent


def test_before_the_first_step_ten_minutes_pass_and_later_twice_the_longest_pause():
    """Programs of large models compile for minutes; who evaluated for a minute may do so again."""
    assert [is_silent(quiet_s, step_s=None, has_stepped=False) for quiet_s in (590, 610)] == [False, True]
    assert [is_silent(quiet_s, step_s=0.1, longest_s=60.0) for quiet_s in (110, 130)] == [False, True]


def test_before_the_run_was_seen_to_write_its_times_count(clocks):
    """Of the event's and the file's time: a copied file is new, its events are not."""
    monotonic, wall = clocks
    pulse = Pulse(monotonic=monotonic, wall=wall)
    now_s = wall.now_s
    assert pulse.quiet_s(now_s, event_s=now_s - 500, modified_s=now_s) == 500
    assert pulse.quiet_s(now_s, event_s=now_s - 5, modified_s=now_s - 7) == 7


def test_times_in_the_future_tell_nothing(clocks):
    """The machine that writes is hours ahead: the run counts as new until it is seen to be silent."""
    monotonic, wall = clocks
    pulse = Pulse(monotonic=monotonic, wall=wall)
    now_s = wall.now_s
    assert pulse.quiet_s(now_s, event_s=now_s + HOUR_S, modified_s=now_s + HOUR_S) == 0
    monotonic.now_s += 40
    assert pulse.quiet_s(now_s, event_s=now_s + HOUR_S, modified_s=now_s + HOUR_S) == 40


@pytest.mark.parametrize("jump_s", [-5 * HOUR_S, 5 * HOUR_S])
def test_a_jump_of_our_own_clock_does_not_silence_a_run_that_writes(clocks, jump_s):
    """What counts is how long ago it was seen to write, by a clock that never jumps."""
    monotonic, wall = clocks
    pulse = Pulse(monotonic=monotonic, wall=wall)
    event_s = wall.now_s
    pulse.grew()
    monotonic.now_s += 2
    wall.now_s += jump_s
    assert pulse.quiet_s(wall.now_s, event_s=event_s, modified_s=event_s) == 2
