"""Errors found in logs, and words for ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.launch.child import Child
from paceline.launch.report import MAX_LINES, ending, error_in, first_failing, shell_code

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 3, in <module>\n'


def error_of(tmp_path, text, start=0):
    log = tmp_path / "log"
    log.write_text(text)
    return error_in(log, start)


def test_the_last_traceback_is_the_error(tmp_path):
    """One that was caught and logged long before is not."""
    text = f"{TRACE}OSError: retried\n" + "step\n" * 100 + f"{TRACE}ValueError: the end\n"
    assert error_of(tmp_path, text) == f"{TRACE}ValueError: the end"


def test_a_chain_of_exceptions_is_shown_from_its_cause(tmp_path):
    """`raise ... from ...` prints the cause first."""
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    chain = f"{TRACE}KeyError: 'y'\n{link}{TRACE}RuntimeError: no labels"
    assert error_of(tmp_path, "step 1\n" * 100 + chain) == chain


def test_what_exit_handlers_complain_of_comes_after_the_error(tmp_path):
    """The error itself stands before, and is shown too."""
    text = f"step 1\nerror: the disk is full\n  fix: make room\n{TRACE}RuntimeError: barrier\n"
    assert error_of(tmp_path, text).startswith("error: the disk is full\n  fix: make room\n")


def test_without_an_error_the_last_lines_must_do(tmp_path):
    """As when C++ ends the process: 15 of 40."""
    told = error_of(tmp_path, "".join(f"line {number}\n" for number in range(40))).splitlines()
    assert told == ["its last output:", *(f"line {number}" for number in range(25, 40))]


def test_what_gloo_prints_is_no_last_output(tmp_path):
    """Its lines are not among the 15; alone they are nothing."""
    gloo = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
    assert error_of(tmp_path, "step 1\n" + gloo * 20 + "step 2\n" + gloo) == "its last output:\nstep 1\nstep 2"
    assert error_of(tmp_path, gloo) == ""


def test_the_error_of_an_earlier_attempt_is_not_this_ones(tmp_path):
    """Only what stands behind the beginning of this attempt counts."""
    before = f"{TRACE}ValueError: attempt 0\n"
    assert error_of(tmp_path, before, start=len(before)) == ""
    assert error_of(tmp_path, before + "quiet\n", start=len(before)) == "its last output:\nquiet"


def test_a_long_traceback_keeps_its_beginning_and_its_end(tmp_path):
    """1000 lines become 60; the line between says how many are left out."""
    lines = [TRACE.strip(), *(f"  frame {number}" for number in range(996)), "RecursionError: too deep"]
    told = error_of(tmp_path, "\n".join(lines)).splitlines()
    assert len(told) == MAX_LINES == 60
    assert told[0].startswith("Traceback") and told[-1] == "RecursionError: too deep"
    left_out = next(line for line in told if line.startswith("..."))
    assert left_out == f"... {999 - 59} lines more ..."


def test_a_log_that_is_no_text_is_no_error(tmp_path):
    """Bytes of any kind, or no log at all."""
    (tmp_path / "log").write_bytes(b"\xff\xfe\x00 Traceback\n" * 3)
    assert "Traceback" in error_in(tmp_path / "log")
    assert error_in(tmp_path / "none") == ""


def ended(tmp_path, index, code, ended_s, *, stopped=False):
    """A process that ended so."""
    source = f"import os; os._exit({code})" if code >= 0 else f"import os; os.kill(os.getpid(), {-code})"
    process = subprocess.Popen([sys.executable, "-S", "-c", source])
    process.wait()
    return Child(index, process, tmp_path, tmp_path / "log", 0, ended_s=ended_s, stopped=stopped)


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ([(1, 5.0, False), (1, 4.0, False)], 1),
        ([(75, 3.0, False), (1, 4.0, False)], 1),
        ([(1, 3.0, True), (1, 4.0, False)], 1),
        ([(75, 3.0, False), (75, 4.0, False)], 0),
        ([(-15, 3.0, True), (75, 4.0, False)], 1),
        ([(0, 3.0, False), (2, 4.0, False)], 1),
        ([(1, 4.0, False), (-9, 4.2, False)], 1),
        ([(1, 4.0, False), (-6, 9.0, False)], 0),
    ],
)
def test_who_failed_first(tmp_path, ends, first):
    """The earliest that failed by itself; one that lost a peer, or was stopped, only where there is no other."""
    children = [
        ended(tmp_path, index, code, ended_s, stopped=stopped) for index, (code, ended_s, stopped) in enumerate(ends)
    ]
    assert first_failing(children).index == first


@pytest.mark.parametrize(
    ("code", "words", "shell"),
    [
        (0, "done (exit code 0)", 0),
        (3, "exit code 3", 3),
        (75, "lost its peer (exit code 75)", 75),
        (143, "terminated (exit code 143)", 143),
        (-9, "killed by SIGKILL (the kernel does that when memory runs out)", 137),
        (-11, "killed by SIGSEGV", 139),
        (-40, "killed by signal 40", 168),
    ],
)
def test_ends_are_told_in_words(tmp_path, code, words, shell):
    """A signal by its name, known exit codes by their meaning."""
    child = ended(tmp_path, 0, code, 1.0)
    assert ending(child) == words and shell_code(child.code) == shell
