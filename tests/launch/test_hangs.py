"""Processes that are there and do not advance, as the supervisor sees and names them."""

from __future__ import annotations

import pytest

from paceline.launch import attempt as attempt_module


@pytest.mark.clock(reason="a process has half a second to make progress")
def test_a_process_that_hangs_in_its_input_is_named(launch):
    """Process 1 waits for rows at step 5, process 0 waits for it in step 6: exit code 75, and process 1's stacks."""
    ran = launch(
        """
        status = open_status()
        def waits_for_rows():
            wait()
        status.phase("input" if index == 1 else "step", 5 + (index == 0))
        waits_for_rows()
        """,
        hang_timeout_s=0.6,
    )
    assert ran.code == 75 and ran.attempts[-1].reason == "hung"
    assert "process 1 hangs: step 5, phase input, no progress for" in ran.err and "process 0 hangs" not in ran.err
    assert "process 0: step 6, phase step" in ran.err
    assert "in waits_for_rows" in ran.err and "in waits_for_rows" in ran.first.error
    assert ran.first.process == 1 and 0.6 < ran.first.hung_s < 5


def test_machines_that_wait_for_another_one_say_so(launch):
    """Machine 1 of 2, both of its processes in step 8: the cause may be where this supervisor cannot look."""
    ran = launch(
        "status = open_status()\nstatus.phase('step', 8)\nwait()",
        hang_timeout_s=0.4,
        nodes=2,
        node_index=1,
        coordinator="10.0.0.1:4000",
    )
    assert ran.code == 75 and "process 2 hangs" in ran.err and "process 3 hangs" in ran.err
    assert "perhaps they wait for another machine" in ran.err


@pytest.mark.clock(reason="a process has half a second to make progress")
def test_a_hang_is_tried_again(launch):
    """As a failure is: the second attempt succeeds."""
    ran = launch(
        "status = open_status()\nif attempt == 0: wait()", 1, hang_timeout_s=0.3, compile_timeout_s=0.3, max_restarts=1
    )
    assert ran.code == 0 and [one.reason for one in ran.attempts] == ["hung", "done"]


@pytest.mark.clock(reason="a process has half a second to make progress")
def test_a_stopped_process_is_the_one_that_hangs(launch):
    """SIGSTOP in the same step in which the other waits: only the system tells them apart, and it cannot answer."""
    ran = launch(
        """
        status = open_status()
        status.phase("step", 9)
        meet("here")
        if index == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        wait()
        """,
        hang_timeout_s=0.6,
    )
    assert ran.code == 75 and ran.first.process == 1
    assert "process 1 hangs: step 9" in ran.err and "process 0 hangs" not in ran.err
    assert "it was stopped, as by SIGSTOP" in ran.err


def test_a_process_that_tells_nothing_is_not_watched(launch, monkeypatch):
    """A program without a status may take as long as it likes; the supervisor says so, once."""
    monkeypatch.setattr(attempt_module, "_SILENT_S", 0.0)
    monkeypatch.setattr(attempt_module, "_LOOK_EVERY_S", 0.05)
    ran = launch("time.sleep(0.7)", 2, hang_timeout_s=0.1)
    assert ran.code == 0 and ran.err.count("tell no progress") == 1


def test_a_process_that_failed_and_cannot_end_is_a_failure(launch, monkeypatch):
    """It told its error and then waits, as in an exit handler, for peers that wait for it: exit code 1, its words."""
    monkeypatch.setattr(attempt_module, "_STUCK_S", 0.2)
    ran = launch(
        """
        status = open_status()
        if index == 1:
            print("error: row 3 is empty", flush=True)
            status.failed("row 3 is empty")
        wait()
        """
    )
    assert ran.code == 1 and ran.first.process == 1 and "error: row 3 is empty" in ran.err
