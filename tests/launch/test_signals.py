"""Signals to the supervisor, as a person, Slurm or the kernel sends them. It is a process of its own here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from paceline.launch.sessions import Guard
from paceline.launch.signals import Signals
from tests.launch.conftest import PATIENCE_S, await_true, environment, is_running

SAVES = """\
def save(*_):
    mark("saving")
    if saves == "late":
        await_mark("go", "test")
    if saves != "never":
        mark("saved")
        sys.exit(143)
signal.signal(signal.SIGTERM, save)
mark("ready")
print("pid", os.getpid(), flush=True)
wait()
"""


class Supervisor:
    """A supervisor with two processes, in a folder."""

    def __init__(self, command, folder, flags=()):
        code = "import sys; from paceline.cli.launch import run; sys.exit(run(sys.argv[1:]))"
        self.logs = folder / "logs"
        arguments = ["-n", "2", "--oversubscribe", "--logs", str(self.logs), *flags, "--", *command]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def await_mark(self, name, attempt=0):
        for index in range(2):
            await_true(lambda index=index: (self.logs / f"{name}-{index}-{attempt}").exists())

    def end(self):
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err

    def pids(self):
        await_true(lambda: all(self._log(index).endswith("\n") for index in range(2)))
        return [int(self._log(index).split()[1]) for index in range(2)]

    def _log(self, index):
        path = self.logs / f"process-{index}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def supervisor(role, tmp_path):
    """`supervisor(source, flags...)`: started; killed at the end of the test."""
    started = []

    def start(source, *flags):
        started.append(Supervisor(role(source), tmp_path, flags))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.mark.parametrize(
    ("number", "code", "name"), [("SIGINT", 130, "Ctrl-C"), ("SIGTERM", 143, "SIGTERM"), ("SIGUSR1", 143, "SIGUSR1")]
)
def test_a_signal_lets_the_processes_save(supervisor, number, code, name):
    """Both get SIGTERM, both save; no restart, and the exit code says who asked."""
    ran = supervisor("saves = 'at once'\n" + SAVES, "--max-restarts", "3")
    ran.await_mark("ready")
    ran.process.send_signal(getattr(signal, number))
    returned, _, err = ran.end()
    assert returned == code and f"{name}: each process may finish its step" in err
    ran.await_mark("saved")
    assert not (ran.logs / "ready-0-1").exists() and "killed" not in err


def test_processes_have_time_to_save_and_a_repeat_at_once_does_not_cut_it(supervisor):
    """Ctrl-C that reaches the supervisor twice within a second, as through `make`, is one Ctrl-C."""
    ran = supervisor("saves = 'late'\n" + SAVES)
    ran.await_mark("ready")
    ran.process.send_signal(signal.SIGINT)
    ran.await_mark("saving")
    ran.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        ran.process.wait(0.5)
    (ran.logs / "go-test-0").touch()
    assert ran.end()[0] == 130
    ran.await_mark("saved")


def test_a_second_ctrl_c_kills(supervisor):
    """More than a second later: a person means it. Processes that never end are gone at once."""
    ran = supervisor("saves = 'never'\n" + SAVES)
    pids = ran.pids()
    ran.process.send_signal(signal.SIGINT)
    ran.await_mark("saving")
    time.sleep(1.1)  # the time within which a repeat is an echo
    ran.process.send_signal(signal.SIGINT)
    code, _, err = ran.end()
    assert code == 130 and "process 0 is killed: its state may not be saved" in err
    assert not any(map(is_running, pids))


def test_saving_has_an_end(supervisor):
    """After the grace the processes are killed, and the supervisor says whose state may be lost."""
    ran = supervisor("saves = 'never'\n" + SAVES, "--stop-grace", "0.5")
    pids = ran.pids()
    ran.process.send_signal(signal.SIGTERM)
    code, _, err = ran.end()
    assert code == 143 and "process 1 is killed" in err and not any(map(is_running, pids))


def test_one_that_is_told_to_stop_from_outside_lets_the_others_save(supervisor):
    """A process gets SIGTERM from somebody else and saves: the others are asked to save too; 143, no restart."""
    ran = supervisor("saves = 'at once'\n" + SAVES, "--max-restarts", "3")
    ran.await_mark("ready")
    os.kill(ran.pids()[1], signal.SIGTERM)
    assert ran.end()[0] == 143
    ran.await_mark("saved")
    assert not (ran.logs / "ready-0-1").exists()


def test_nothing_outlives_a_supervisor_that_is_killed(supervisor):
    """SIGKILL to the supervisor: its processes, which ignore SIGTERM, and what they started are gone."""
    ran = supervisor(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import os, signal; os.setpgid(0, 0); signal.pause()"])
        print("pid", os.getpid(), child.pid, flush=True)
        wait()
        """
    )
    pids = [*ran.pids(), *(int(ran._log(index).split()[2]) for index in range(2))]
    assert all(map(is_running, pids))
    ran.process.kill()
    await_true(lambda: not any(map(is_running, pids)), patience_s=10.0)


def test_signals_to_a_whole_job_step_do_not_end_the_guard():
    """Slurm may send SIGUSR1 or SIGTERM to everything that it finds: the guard ignores both, and ends with its pipe."""
    guard = Guard()
    await_true(lambda: _ignores_all(guard._process.pid))
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        guard._process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        guard._process.wait(0.2)
    guard.close()
    assert guard._process.returncode == 0


def _ignores_all(pid):
    with open(f"/proc/{pid}/status") as file:
        mask = next(line.split()[1] for line in file if line.startswith("SigIgn"))
    needed = sum(1 << (number - 1) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    return int(mask, 16) & needed == needed


def test_handlers_are_as_before_afterwards():
    """A program that embeds the supervisor keeps its own."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)]
    with Signals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)]
    assert before == after and signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize(
    ("received", "urgent"),
    [
        ([], False),
        ([(signal.SIGINT, 0.0)], False),
        ([(signal.SIGINT, 0.0), (signal.SIGINT, 0.4)], False),
        ([(signal.SIGINT, 0.0), (signal.SIGINT, 1.5)], True),
        ([(signal.SIGTERM, 0.0), (signal.SIGTERM, 9.0)], True),
        ([(signal.SIGUSR1, 0.0), (signal.SIGTERM, 90.0)], False),
        ([(signal.SIGTERM, 0.0), (signal.SIGINT, 2.0)], True),
    ],
)
def test_only_a_person_or_a_repeated_order_cuts_saving_off(received, urgent):
    """Slurm's SIGTERM after its own warning does not."""
    signals = Signals()
    signals.received = received
    assert signals.is_urgent is urgent
