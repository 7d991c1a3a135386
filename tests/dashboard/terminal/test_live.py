"""On a terminal it redraws until the user leaves; in a pipe it prints once."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

import pytest

from paceline.base.errors import RunFolderError
from paceline.dashboard import terminal
from paceline.dashboard.terminal import live
from paceline.dashboard.terminal.frame import Frame
from tests.dashboard.made_runs import LiveRun, make_run

CODE = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C on it is a signal
from paceline.dashboard import terminal
terminal.watch(sys.argv[1])
"""


COMMAND = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from paceline.cli.main import main
sys.exit(main(["watch", "--terminal", *sys.argv[1:]]))
"""


class Screen:
    """The command on a terminal of its own, 80 x 24, with what it wrote so far."""

    def __init__(self, root, *, code=CODE, arguments=(), **environment):
        self.master, slave = pty.openpty()
        self.resize(80, 24)
        variables = {"TERM": "xterm", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"], **environment}
        command = [sys.executable, "-c", code, str(root), *arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=variables, start_new_session=True,
        )  # fmt: skip
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.written = b""

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text, *, seconds=20):
        """Reads until ``text`` was written since the last call; returns what was."""
        deadline = time.monotonic() + seconds
        while text not in self.written and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.1)[0]:
                with suppress(OSError):
                    self.written += os.read(self.master, 65536)
        assert text in self.written, self.written[-3000:].decode(errors="replace")
        written, self.written = self.written, b""
        return written

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)


@pytest.fixture
def start():
    screens = []

    def start_on(root, **options):
        screens.append(Screen(root, **options))
        return screens[-1]

    yield start_on
    for screen in screens:
        screen.close()


def test_a_new_step_shows_the_size_is_followed_and_q_leaves(tmp_path, start):
    """The terminal is given back as it was."""
    run = LiveRun(tmp_path / "run", steps=20)
    make_run(tmp_path / "other", steps=5, start_s=1.0)
    screen = start(tmp_path)
    screen.until(b"20/1,000")
    run.step()
    screen.until(b"21/1,000")
    os.write(screen.master, b"j")
    screen.until(b"> other")
    screen.resize(30, 10)
    os.kill(screen.process.pid, signal.SIGWINCH)
    narrow = screen.until("\u2026".encode())
    assert b"\x1b[" in narrow
    os.write(screen.master, b"q")
    assert screen.process.wait(20) == 0
    assert termios.tcgetattr(screen.slave) == screen.before


def test_a_run_that_is_removed_while_it_is_shown_is_named(tmp_path, start):
    """Another one takes its place, which a user who looks away must not miss; a key takes the words away."""
    LiveRun(tmp_path / "run", steps=20)
    make_run(tmp_path / "other", steps=5, start_s=1.0)
    screen = start(tmp_path)
    screen.until(b"> run ")
    shutil.rmtree(tmp_path / "run")
    assert b"> other" in screen.until(b"! run run was removed") + screen.until(b"q: quit")
    os.write(screen.master, b"j")
    deadline = time.monotonic() + 5
    while b"was removed" in screen.until(b"q: quit"):
        assert time.monotonic() < deadline


def test_word_of_a_removed_run_ends_by_itself_or_when_it_is_back():
    """After some seconds; it is not said of a run that was left for another."""

    def frame(shown, *ids):
        return Frame("runs", [{"id": one} for one in ids], [], shown=shown)

    watched = live.Watched()
    assert watched.noted(frame("a", "a", "b"), key=None, now_s=0.0).removed is None
    assert watched.noted(frame("b", "b"), key=None, now_s=1.0).removed == "a"
    assert watched.noted(frame("b", "b"), key=None, now_s=2.0).removed == "a"
    assert watched.noted(frame("b", "b"), key=None, now_s=1 + live.REMOVED_FOR_S).removed is None
    assert watched.noted(frame(None), key=None, now_s=20.0).removed == "b"
    assert watched.noted(frame("b", "b"), key=None, now_s=21.0).removed is None
    assert watched.noted(frame("a", "a", "b"), key="down", now_s=22.0).removed is None
    assert watched.noted(frame("a", "a"), key=None, now_s=23.0).removed is None


def test_ctrl_c_ends_quietly_and_no_color_is_honoured(tmp_path, start):
    """No traceback; no colour codes, though weight may stay."""
    make_run(tmp_path / "run", steps=20)
    screen = start(tmp_path, NO_COLOR="1")
    shown = screen.until(b"q: quit")
    os.write(screen.master, b"\x03")
    assert screen.process.wait(20) == 0
    rest = b""
    while select.select([screen.master], [], [], 0.2)[0]:
        rest += os.read(screen.master, 65536)
    assert b"Traceback" not in shown + rest
    assert not any(b"\x1b[%dm" % code in shown for code in (*range(30, 38), *range(90, 98)))


def test_sigterm_gives_the_terminal_back(tmp_path, start):
    """The alternate screen is left, the mode is as it was, and the exit code says why."""
    make_run(tmp_path / "run", steps=20)
    screen = start(tmp_path)
    assert b"\x1b[?1049h" in screen.until(b"q: quit")
    screen.process.terminate()
    assert b"Traceback" not in screen.until(b"\x1b[?1049l")
    assert screen.process.wait(20) == 143
    assert termios.tcgetattr(screen.slave) == screen.before


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_waiting_for_the_first_run_ends_at_a_key(tmp_path, start, key):
    """q and Ctrl-C; nothing stays behind."""
    screen = start(tmp_path / "runs", code=COMMAND)
    screen.until(b"waiting for the first run")
    os.write(screen.master, key)
    assert screen.process.wait(20) == 0
    assert termios.tcgetattr(screen.slave) == screen.before


def test_a_run_of_a_folder_without_runs_may_yet_begin(tmp_path, start):
    """It shows when it does."""
    screen = start(tmp_path, code=COMMAND, arguments=("--run", "late"))
    screen.until(b"no run here yet")
    make_run(tmp_path / "late", steps=20)
    screen.until(b"> late")


def test_a_pipe_gets_one_plain_snapshot(tmp_path, capsys):
    """No escape sequences; a run may be named."""
    make_run(tmp_path / "image", steps=20)
    make_run(tmp_path / "newer", steps=20, start_s=1_900_000_000.0)
    terminal.watch(tmp_path, run="image")
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "> image" in shown and "  newer" in shown and shown.count("paceline watch") == 1
    assert max(map(len, shown.splitlines())) <= 100


def test_a_run_that_is_not_there_is_refused(tmp_path):
    """With the one that is near."""
    make_run(tmp_path / "image", steps=2)
    with pytest.raises(RunFolderError, match="perhaps 'image'"):
        terminal.watch(tmp_path, run="imag", once=True)


def test_it_needs_no_jax():
    code = "import paceline.dashboard.terminal, sys; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
