"""Processes that end with exit code 0 before their run is over: small programs play them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.launch.child import Child
from paceline.launch.report import first_failing
from paceline.telemetry.status import StatusFile, status_path


@pytest.mark.parametrize("phase", ["compile", "input", "step", "checkpoint", "evaluation"])
def test_a_process_that_leaves_in_the_middle_has_not_finished(launch, phase):
    """Exit code 0 while it trains: the launch fails with 1 at once, and its peer, which would wait for ever, stops."""
    ran = launch(
        f"""
        status = open_status()
        status.phase("{phase}", 12)
        meet("here")
        if index == 1:
            os._exit(0)
        wait()
        """
    )
    words = f"process 1 failed at step 12, in phase {phase}: left in the middle of a run (exit code 0)"
    assert ran.code == 1 and ran.attempts[0].words == words and words in ran.err
    assert (ran.first.process, ran.first.exit_code, ran.first.signal) == (1, 1, None)
    assert f"process 0 at step 12, in phase {phase}: stopped with the others" in ran.err


@pytest.mark.parametrize("phase", ["start", "end", "failed"])
def test_exit_code_0_is_success_before_and_after_the_run(launch, phase):
    """A program that never trained, that trained to its end, or that caught the error of its run."""
    ran = launch(
        f"open_status().{'failed' if phase == 'failed' else 'phase'}(*{(phase, 3)[: 1 + (phase != 'failed')]})"
    )
    assert ran.code == 0 and ran.attempts[0].reason == "done"


def test_a_process_that_left_comes_before_a_peer_that_fails_because_of_it(launch):
    """It notes no time; restarts apply, and the second attempt succeeds."""
    ran = launch(
        """
        status = open_status()
        status.phase("step", 4)
        meet("here")
        if attempt == 0 and index == 1:
            os._exit(0)
        if attempt == 0:
            status.failed("gloo: connection closed")
            sys.exit("error: gloo: connection closed")
        status.phase("end", 5)
        """,
        max_restarts=1,
    )
    assert ran.code == 0 and [one.reason for one in ran.attempts] == ["failed", "done"]
    assert ran.attempts[0].first_failing.process == 1
    assert "restart 1 of 1, because process 1 failed at step 4, in phase step: left in the middle" in ran.err


def test_a_process_that_ends_well_when_told_to_stop_has_not_left(launch):
    """SIGTERM of the supervisor, exit code 0 within a step: stopped, and the failure is that of the other."""
    ran = launch(
        """
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        open_status().phase("step", 4)
        meet("here")
        if index == 1:
            sys.exit(3)
        wait()
        """
    )
    assert ran.code == 3 and ran.first.process == 1 and "left in the middle" not in ran.err


@pytest.mark.parametrize(("phase", "first"), [("step", 1), ("end", 0)])
def test_the_end_of_a_process_that_left_is_seen_late(tmp_path, phase, first):
    """Process 0 noted its error 0.2 s before the end of process 1 was seen: that had left before, unless done."""
    ends = []
    for index, code in ((0, 1), (1, 0)):
        status = StatusFile(status_path(tmp_path, index))
        status.phase(phase, 4)
        if code:
            status.failed("ValueError: connection closed")
        process = subprocess.Popen([sys.executable, "-S", "-c", f"import os; os._exit({code})"])
        process.wait()
        ends.append(Child(index, process, tmp_path, tmp_path / f"log-{index}", 0))
    failed_s = ends[0].status().failed_s
    ends[0].ended_s, ends[1].ended_s = failed_s + 0.3, failed_s + 0.2
    assert first_failing(ends).index == first
