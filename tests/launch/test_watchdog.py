"""Whom the watchdog blames: made-up clocks and states, no processes."""

from __future__ import annotations

import pytest

from paceline.launch.watchdog import Watchdog
from paceline.telemetry.status import StatusRecord


def state(phase, step, *, events=1, median_s=0.0):
    return StatusRecord(1, step, phase, 0.0, events, median_s, None, "")


def verdict(*states, seconds, watchdog=None, moving=(), hang_timeout_s=60.0):
    """The verdict of a look each half second, and its time; ``moving`` processes tell something each time."""
    watchdog = watchdog or Watchdog(hang_timeout_s=hang_timeout_s, compile_timeout_s=600.0)
    for tick in range(int(seconds * 2) + 1):
        records = {
            process: state(one.phase, one.step, events=tick if process in moving else 1, median_s=one.median_s)
            for process, one in enumerate(states)
        }
        if hang := watchdog.look(records, now_s=tick / 2):
            return [one.process for one in hang.culprits], tick / 2
    return None


def test_a_stalled_input_is_blamed_not_the_step_that_waits_for_it():
    """Process 1 has no rows at step 5, processes 0 and 2 wait in step 5: process 1, after 60 s."""
    blamed, seconds = verdict(state("step", 5), state("input", 5), state("step", 5), seconds=100)
    assert blamed == [1] and 60.0 < seconds <= 61.0


def test_a_process_that_is_behind_is_blamed():
    """All are in a step, one in an earlier one: its device hangs, the others wait."""
    assert verdict(state("step", 6), state("step", 5), seconds=100)[0] == [1]


def test_processes_in_one_step_cannot_be_told_apart():
    """All are named."""
    assert verdict(state("step", 5), state("step", 5), seconds=100)[0] == [0, 1]


@pytest.mark.parametrize("phase", ["compile", "start"])
def test_a_step_that_waits_for_a_long_compilation_does_not_hang(phase):
    """590 s of compilation in process 1, process 0 waiting in step 0: no verdict. 600 s are too many: process 1."""
    assert verdict(state("step", 0), state(phase, 0), seconds=590) is None
    blamed, seconds = verdict(state("step", 0), state(phase, 0), seconds=700)
    assert blamed == [1] and 600.0 < seconds <= 601.0


def test_a_step_that_waits_for_one_that_works_does_not_hang():
    """Process 1 evaluates for ten minutes and tells of each batch; process 0 waits for it."""
    assert verdict(state("step", 7), state("evaluation", 7), seconds=600, moving=(1,)) is None


def test_long_steps_have_more_time():
    """A median step of 20 s: 200 s, not 60."""
    slow = state("step", 5, median_s=20.0)
    assert verdict(slow, slow, seconds=199) is None
    assert verdict(slow, slow, seconds=300)[1] == pytest.approx(200.5)


def test_no_limit_means_no_verdict():
    """`--hang-timeout 0`."""
    assert verdict(state("input", 5), seconds=5000, hang_timeout_s=0.0) is None


def test_time_in_which_the_supervisor_did_not_run_does_not_count():
    """A machine that slept for an hour, or Ctrl-Z: a verdict needs 60 s that were watched."""
    watchdog = Watchdog(hang_timeout_s=60.0, compile_timeout_s=600.0)
    records = {0: state("input", 3)}
    assert watchdog.look(records, now_s=0.0) is None
    assert watchdog.look(records, now_s=3600.0) is None
    looks = [watchdog.look(records, now_s=3600.0 + half / 2) for half in range(1, 130)]
    assert looks[115] is None and looks[-1] is not None


def test_one_that_moves_again_is_forgiven():
    """Its 50 s before do not count."""
    watchdog = Watchdog(hang_timeout_s=60.0, compile_timeout_s=600.0)
    seen = [watchdog.look({0: state("input", 3, events=1 if half < 100 else 2)}, now_s=half / 2) for half in range(215)]
    assert not any(seen)


def test_the_one_that_stalled_first_comes_first():
    """Two hang in their input; process 1 since 20 s longer."""
    watchdog = Watchdog(hang_timeout_s=60.0, compile_timeout_s=600.0)
    hang = None
    for half in range(300):
        records = {0: state("input", 3, events=min(half, 40)), 1: state("input", 3), 2: state("step", 4)}
        hang = hang or (watchdog.look(records, now_s=half / 2) if half < 162 else None)
        if hang:
            break
    assert hang is not None and [one.process for one in hang.culprits] == [1]
    assert [one.process for one in hang.waiting] == [0, 2]
