"""What becomes of a run whose processes end, fail, hang or are killed: small programs play the processes."""

from __future__ import annotations

import json
import os
import time

import pytest

from paceline.base import launched
from paceline.launch import attempt as attempt_module
from tests.launch.conftest import await_true, is_running


def test_processes_that_all_end_well_are_a_success(launch):
    """Exit code 0; each has its log; the terminal shows process 0 only."""
    ran = launch("print('output of', index)", 3)
    assert ran.code == 0 and ran.out == "output of 0\n"
    assert [ran.log(index) for index in range(3)] == [f"output of {index}\n" for index in range(3)]
    assert [(one.reason, one.first_failing) for one in ran.attempts] == [("done", None)]


def test_a_process_is_told_who_it_is(launch, monkeypatch):
    """The names of `base.launched`, on machine 1 of 2 with 2 processes each: indices 2 and 3. Stale ones are gone."""
    monkeypatch.setenv(launched.DEVICES_PER_PROCESS, "9")
    ran = launch(
        "print(json.dumps({name: value for name, value in os.environ.items() if name.startswith('PACELINE_')}))",
        nodes=2,
        node_index=1,
        coordinator="10.0.0.1:4000",
    )
    assert ran.code == 0
    for local, index in enumerate((2, 3)):
        assert json.loads(ran.log(index)) == {
            launched.COORDINATOR: "10.0.0.1:4000",
            launched.NUM_PROCESSES: "4",
            launched.PROCESS_INDEX: str(index),
            launched.LOCAL_INDEX: str(local),
            launched.LAUNCH_FOLDER: str(ran.folder),
            launched.ATTEMPT: "0",
        }
    assert ran.out == ""  # process 0 is on the other machine


def test_processes_of_one_machine_share_a_free_port(launch):
    """One coordinator for all, on the loopback, and the devices asked for."""
    ran = launch(
        "print(os.environ['PACELINE_COORDINATOR'], os.environ['PACELINE_DEVICES_PER_PROCESS'])", devices_per_process=4
    )
    assert ran.log(0) == ran.log(1)
    address, _, port = ran.log(0).split()[0].partition(":")
    assert address == "127.0.0.1" and 1024 <= int(port) <= 65535 and ran.log(0).split()[1] == "4"


def test_the_traceback_of_the_first_failure_comes_first(launch):
    """Process 1 of 3 raises, the others wait: exit code 1, its traceback, then a line each for the others."""
    ran = launch(
        """
        status = open_status()
        status.phase("input", 17)
        meet("here")
        if index == 1:
            raise ValueError("row 12 is empty")
        wait()
        """,
        3,
    )
    assert ran.code == 1
    headline, trace = (
        ran.err.index("process 1 failed at step 17, in phase input: exit code 1"),
        ran.err.index("Traceback"),
    )
    lines = [ran.err.index(f"process {other} at step 17, in phase input: stopped with the others") for other in (0, 2)]
    assert headline < trace < ran.err.index("ValueError: row 12 is empty") < lines[0] < lines[1]
    assert ran.err.count("Traceback") == 1 and str(ran.folder / "process-2.log") in ran.err
    assert (ran.first.process, ran.first.exit_code, ran.first.step, ran.first.phase) == (1, 1, 17, "input")
    assert ran.first.error.startswith("Traceback") and ran.first.error.endswith("ValueError: row 12 is empty")


def test_the_earliest_error_is_the_first_not_the_earliest_end(launch):
    """Process 1 tells its error, then takes long to end; process 0 fails because of it and ends before."""
    ran = launch(
        """
        status = open_status()
        meet("here")
        if index == 1:
            status.failed("the cause")
            mark("failed")
            await_mark("over", 0)
            time.sleep(0.4)
            sys.exit("error: the cause")
        await_mark("failed", 1)
        status.failed("the consequence")
        print("error: the consequence", flush=True)
        mark("over")
        time.sleep(0.2)
        sys.exit(1)
        """
    )
    assert ran.first.process == 1 and "error: the cause" in ran.err
    assert "error: the consequence" not in ran.out + ran.err


def test_a_process_that_lost_its_peer_is_not_the_cause(launch):
    """It ended before (exit code 75), the other failed by itself a moment later: 3 is the exit code."""
    ran = launch(
        """
        if index == 0:
            mark("over")
            os._exit(75)
        await_mark("over", 0)
        sys.exit(3)
        """
    )
    assert ran.code == 3 and ran.first.process == 1
    assert "process 0: lost its peer (exit code 75)" in ran.err


def test_a_lost_peer_is_told_when_no_other_failed_here(launch):
    """The cause is on another machine: 75, and the words of the process that noticed."""
    ran = launch(
        """
        if index == 1:
            print("error: process 7 was lost", flush=True)
            os._exit(75)
        wait()
        """
    )
    assert ran.code == 75 and "error: process 7 was lost" in ran.err


def test_a_killed_process_comes_before_a_peer_that_fails_because_of_it(launch):
    """SIGKILL leaves no note of its time: a peer that notes its error before the end was seen is not the first."""
    ran = launch(
        """
        status = open_status()
        meet("here")
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        status.failed("gloo: connection closed")
        sys.exit("error: gloo: connection closed")
        """
    )
    assert ran.first.process == 1 and ran.code == 128 + 9
    assert (ran.first.signal, ran.first.exit_code) == ("SIGKILL", 137)
    assert "killed by SIGKILL (the kernel does that when memory runs out)" in ran.err


@pytest.mark.parametrize(("number", "code"), [("SIGKILL", 137), ("SIGSEGV", 139), ("SIGABRT", 134)])
def test_a_signal_becomes_the_exit_code_that_a_shell_shows(launch, number, code):
    """128 + number."""
    ran = launch(f"os.kill(os.getpid(), signal.{number})", 1)
    assert ran.code == code and f"killed by {number}" in ran.err


@pytest.mark.clock(reason="peers stop within five seconds")
def test_peers_stop_within_five_seconds_even_if_they_ignore_it(launch):
    """Process 0 ignores SIGTERM and started a program that does so too: both are gone, in under 5 s."""
    ran = launch(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if index == 0:
            print(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid, flush=True)
        meet("here")
        mark(f"at {time.monotonic()}")
        if index == 1:
            sys.exit(9)
        wait()
        """
    )
    assert ran.code == 9 and not is_running(int(ran.out))
    failed_s = float(next(ran.folder.glob("at *-1-0")).name.split()[1].removesuffix("-1-0"))
    assert time.monotonic() - failed_s < 5.0


def test_what_a_process_leaves_behind_is_ended_too(launch):
    """It ends well, but a program that it started goes on, in a group of its own."""
    ran = launch(
        """
        code = "import os, signal; os.setpgid(0, 0); print('x', end='', flush=True); signal.pause()"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        child.stdout.read(1)
        print(child.pid)
        """,
        1,
    )
    assert ran.code == 0 and not is_running(int(ran.out))


def test_what_a_process_leaves_behind_may_save_first(launch):
    """SIGTERM comes before SIGKILL, also for a program behind a script that has ended."""
    ran = launch(
        """
        if len(sys.argv) == 1:
            subprocess.Popen([sys.executable, "-S", __file__, "worker"])
            await_mark("ready", 0)
        else:
            signal.signal(signal.SIGTERM, lambda *_: (mark("saved"), os._exit(0)))
            mark("ready")
            wait()
        """,
        1,
    )
    assert ran.code == 0 and (ran.folder / "saved-0-0").exists()


def test_peers_of_a_process_that_was_told_to_stop_have_time_to_save(launch, monkeypatch):
    """Exit code 143 of one is no failure: the other saves for longer than the grace after a death."""
    monkeypatch.setattr(attempt_module, "GRACE_S", 0.1)
    ran = launch(
        """
        def save(*_):
            time.sleep(0.6)
            mark("saved")
            sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        meet("here")
        if index == 1:
            sys.exit(143)
        wait()
        """,
        max_restarts=2,
    )
    assert ran.code == 143 and len(ran.attempts) == 1 and (ran.folder / "saved-0-0").exists()


def test_a_process_that_fails_while_it_saves_is_told_and_not_waited_for(launch, monkeypatch):
    """SIGTERM to the supervisor: process 0 cannot save, process 1 would wait for it for a minute."""
    monkeypatch.setattr(attempt_module, "GRACE_S", 0.3)
    started_s = time.monotonic()
    ran = launch(
        """
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1) if index == 0 else None)
        meet("here")
        if index == 0:
            os.kill(os.getppid(), signal.SIGTERM)
        wait()
        """
    )
    assert ran.code == 143 and ran.attempts[-1].reason == "interrupted" and time.monotonic() - started_s < 20
    assert "process 0 while stopping: exit code 1" in ran.err and "process 1 is killed" in ran.err


def test_a_mistake_that_all_make_is_told_once_and_not_tried_again(launch):
    """Exit code 2 in all three, with restarts allowed: one attempt, one text."""
    ran = launch(
        """
        meet("here")
        print("error: no recipe 'imgae'\\n  why: x\\n  fix: use image", file=sys.stderr, flush=True)
        os._exit(2)
        """,
        3,
        max_restarts=3,
    )
    assert ran.code == 2 and len(ran.attempts) == 1
    assert (ran.out + ran.err).count("error: no recipe") == 1
    assert ran.first.error.startswith("error: no recipe") and ran.first.error.endswith("fix: use image")


def test_a_mistake_that_one_tells_for_all_is_told_whoever_ends_first(launch):
    """Process 1 ends at once without a word, process 0 says what is wrong: the user must see it."""
    ran = launch(
        """
        if index == 0:
            await_mark("over", 1)
            time.sleep(0.1)
            print("error: no recipe 'imgae'", flush=True)
        mark("over")
        os._exit(2)
        """
    )
    assert ran.code == 2 and (ran.out + ran.err).count("error: no recipe 'imgae'") == 1
    assert ran.first.process == 0 and ran.first.error == "error: no recipe 'imgae'"


def test_an_error_that_tells_of_a_lost_peer_is_not_the_cause(launch, monkeypatch):
    """Its process notes it first and then cannot end, so that its exit code says nothing; the other one fails later."""
    ran = launch(
        """
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        status = open_status()
        if index == 0:
            status.failed("PeerError: process 1 was lost")
            mark("noted")
            wait()
        await_mark("noted", 0)
        status.failed("ValueError: row 3 is empty")
        sys.exit(7)
        """
    )
    assert ran.code == 7 and ran.first.process == 1


def test_the_same_traceback_in_process_0_is_not_shown_again(launch):
    """All raise the same error: the terminal has it from process 0, whoever was first."""
    ran = launch("meet('here')\nraise KeyError('labels')", 2)
    assert (ran.out + ran.err).count("KeyError: 'labels'") == 1
    assert "its error is above" in ran.err and "the same error" in ran.err


def test_what_process_0_says_of_a_lost_peer_does_not_hide_the_cause(launch):
    """Its lines before are shown, its own traceback is left to its log."""
    ran = launch(
        """
        meet("here")
        if index == 1:
            raise ValueError("the cause")
        print("step 12 loss 0.5", flush=True)
        while not "Traceback" in (folder / "process-1.log").read_text():
            time.sleep(0.005)
        os.nice(5)
        time.sleep(0.15)
        raise RuntimeError("connection closed")
        """
    )
    assert ran.out == "step 12 loss 0.5\n" and "ValueError: the cause" in ran.err
    assert "RuntimeError" not in ran.err and "RuntimeError: connection closed" in ran.log(0)


def test_a_restart_goes_on_after_a_failure(launch):
    """The first attempt fails, the second succeeds: exit code 0, both in the logs, the attempt told to each."""
    ran = launch(
        """
        print("attempt", attempt, flush=True)
        if attempt == 0 and index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt == 0:
            wait()
        """,
        max_restarts=2,
    )
    assert ran.code == 0 and [one.reason for one in ran.attempts] == ["failed", "done"]
    assert "restart 1 of 2, because process 1 failed: killed by SIGKILL" in ran.err
    assert ran.log(0) == "attempt 0\n\npaceline launch: attempt 1\nattempt 1\n"
    assert ran.out.splitlines() == ["attempt 0", "attempt 1"]


def test_restarts_are_at_most_as_many_as_asked_for(launch):
    """Two restarts are three attempts; the exit code is that of the last one's failure."""
    ran = launch("sys.exit(10 + attempt)", 1, max_restarts=2)
    assert ran.code == 12 and len(ran.attempts) == 3
    assert [one.first_failing.exit_code for one in ran.attempts] == [10, 11, 12]


def test_the_status_of_an_earlier_attempt_is_not_taken_for_this_ones(launch):
    """Step 40 was told in attempt 0 only; the failure of attempt 1 has no step."""
    ran = launch("if attempt == 0: open_status().phase('step', 40)\nsys.exit(1)", 1, max_restarts=1)
    assert [one.first_failing.step for one in ran.attempts] == [40, None]


def test_a_requeued_job_counts_its_attempts_on(launch):
    """`first_attempt` 3, as after three requeues: the program knows that it goes on."""
    assert launch("print(attempt)", 1, first_attempt=3).out == "3\n"


@pytest.mark.parametrize(
    ("own", "restarts", "expected"),
    [({}, 1, ["{folder}/compilation-cache", "0"]), ({}, 0, ["None", "None"]),
     ({"JAX_COMPILATION_CACHE_DIR": "/mine"}, 1, ["/mine", "None"])],
)  # fmt: skip
def test_compiled_programs_are_kept_where_a_restart_may_need_them(launch, monkeypatch, own, restarts, expected):
    """Only with restarts, and never in place of the user's own setting."""
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    ran = launch(f"print(*(os.environ.get(name) for name in {names!r}))", 1, max_restarts=restarts)
    assert ran.out.split() == [text.format(folder=ran.folder) for text in expected]


def test_a_process_that_ended_well_does_not_end_the_others(launch):
    """Process 0 is done at once, process 1 goes on: waited for."""
    ran = launch(
        "if index == 1:\n    await_mark('done', 0)\n    time.sleep(0.3)\n    mark('late')\nelse:\n    mark('done')"
    )
    assert ran.code == 0 and (ran.folder / "late-1-0").exists()


def test_no_process_is_left_when_one_cannot_start(launch, monkeypatch):
    """The system refuses the second process: an error in words, and the first one is gone."""
    from paceline.base.errors import ProcessError
    from paceline.launch import child as child_module

    started = []
    popen = child_module._popen

    def refuse_second(*arguments, **options):
        if started:
            raise OSError(11, os.strerror(11))
        started.append(popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr(child_module, "_popen", refuse_second)
    with pytest.raises(ProcessError, match="process 1 cannot be started: Resource temporarily unavailable"):
        launch("wait()")
    await_true(lambda: not is_running(started[0].pid))
