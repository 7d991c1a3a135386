"""One process of a library script ends: the others end too, in words and within seconds, or are left alone.

Owns: two real processes of a user's own script. Not here: the monitor alone (`topology/test_peers`).
Invariant: nobody waits for JAX's shutdown barrier, whose limit is minutes.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.processes.environment import CHILD
from tests.processes.run import run, start

SCRIPT = str(Path(__file__).with_name("leaving.py"))


def ended_after_leaving(case: str, who: int, *, within_s: float):
    """All processes, some seconds after one of them left."""
    with start([SCRIPT, case, str(who)], env=CHILD) as running:
        running.printed("leaving", only=[who], timeout_s=100)
        start_s = time.monotonic()
        ended = running.wait(within_s + 10)
        assert time.monotonic() - start_s < within_s
    return ended


@pytest.mark.clock(reason="both end within 8 s")
@pytest.mark.parametrize("who", [1, 0])
def test_an_exception_in_one_process_ends_both(who):
    """Its traceback and exit code 1 there; the other names it, with the error, and ends with 75."""
    ended = ended_after_leaving("raise", who, within_s=8)
    own, other = ended[who], ended[1 - who]
    assert own.returncode == 1 and "Traceback" in own.stderr and "ValueError: the disk is gone" in own.stderr
    assert other.returncode == 75, other
    assert f"process {who} (" in other.stderr and "ValueError: the disk is gone" in other.stderr
    assert "look at the output of" in other.stderr and "Traceback" not in other.stderr


@pytest.mark.clock(reason="both end within 12 s")
def test_an_exit_of_one_process_ends_both():
    """`sys.exit` in process 1 while process 0 waits for its next step: named after the time limit."""
    first, second = ended_after_leaving("exit", 1, within_s=12)
    assert first.returncode == 75, first
    assert "process 1 (" in first.stderr and "has ended, and process 0 on" in first.stderr
    assert second.returncode != 0


@pytest.mark.clock(reason="the other ends within 8 s")
def test_the_death_of_process_0_ends_the_others():
    """It holds JAX's service, whose loss ends a process with a C++ trace at times; it ends, and not well."""
    first, second = ended_after_leaving("kill", 0, within_s=8)
    assert first.returncode == -signal.SIGKILL
    assert second.returncode in (75, -signal.SIGABRT), second


@pytest.mark.parametrize("who", [1, 0])
def test_a_process_that_is_done_is_not_taken_for_lost(who):
    """It waits for the other one, which works on for longer than the time limit."""
    ended = run([SCRIPT, "late", str(who)], env=CHILD, timeout_s=60)
    assert [(process.returncode, process.stdout) for process in ended] == [(0, "done\n")] * 2, ended


def test_processes_that_jax_joined_itself_train():
    """A script that called `jax.distributed.initialize` needs no other call."""
    ended = run([SCRIPT, "own", "0"], env=CHILD, timeout_s=100)
    assert [process.returncode for process in ended] == [0, 0], ended
    assert all("done" in process.stdout for process in ended)
