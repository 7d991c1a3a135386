"""The status of a process: what a supervisor can trust to read, and what it costs to tell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import paceline
from paceline.base.launched import LAUNCH_FOLDER, PROCESS_INDEX
from paceline.telemetry.status import NullStatus, StatusFile, open_status, read_status, stacks_path, status_path

SOURCE = str(Path(paceline.__file__).parents[1])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "status-0"


def test_a_reader_sees_what_was_told_last(path):
    """Pid, step, phase, its time, median; the time is `time.monotonic`, which all processes of a machine share."""
    status = StatusFile(path)
    status.median(0.25)
    before_s = time.monotonic()
    status.phase("input", 17)
    record = read_status(path)
    assert (record.pid, record.step, record.phase, record.median_s) == (os.getpid(), 17, "input", 0.25)
    assert before_s <= record.since_s <= time.monotonic()
    assert record.failed_s is None and record.error == ""


def test_a_process_that_just_started_says_so(path):
    """Phase ``start`` before the first call: a supervisor then knows that it can ask for stacks."""
    status = StatusFile(path)
    assert read_status(status.path).phase == "start"


def test_each_call_counts_as_an_event(path):
    """Even one that says the same again: only a process that does nothing stands still."""
    status = StatusFile(path)
    seen = [read_status(path).events]
    for call in (lambda: status.phase("step", 1),) * 2 + (lambda: status.median(0.1), lambda: status.failed("x")):
        call()
        seen.append(read_status(path).events)
    assert seen == [1, 2, 3, 4, 5]


def test_the_first_error_stays(path):
    """A later one is its consequence; neither does a later phase take it away."""
    status = StatusFile(path)
    status.failed("ValueError: größer als 3")
    first = read_status(path)
    status.failed("RuntimeError: barrier")
    status.phase("end", 4)
    record = read_status(path)
    assert first.phase == "failed" and record.phase == "end"
    assert (record.error, record.failed_s) == ("ValueError: größer als 3", first.failed_s)


def test_a_long_error_is_cut_and_not_lost(path):
    """100 kB of text: its beginning is kept, and the record stays readable."""
    status = StatusFile(path)
    status.failed("é" * 50_000)
    record = read_status(path)
    assert 1000 < len(record.error) < 3000 and set(record.error[:-1]) == {"é"}


def test_a_reader_never_sees_a_torn_record(path):
    """A writer that always tells phase, step and median of one kind, read 3000 times: never two kinds in one record."""
    status = StatusFile(path)
    status.median(0.0)
    kinds = {0: "input", 1: "step"}
    stop = threading.Event()

    def write():
        step = 0
        while not stop.is_set():
            step += 1
            status.phase(kinds[step % 2], step)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        records = [read_status(path) for _ in range(3000)]
    finally:
        stop.set()
        writer.join()
    records = [record for record in records if record and record.step]
    assert len(records) > 1000
    assert {record.phase == kinds[record.step % 2] for record in records} == {True}
    assert [record.events for record in records] == sorted(record.events for record in records)


@pytest.mark.parametrize("byte", [0, 8, 16, 24, 32, 40, 48, 56, 64])
def test_a_record_with_one_wrong_bit_is_no_record(path, byte):
    """What half a write leaves is told by the checksum, in each field."""
    StatusFile(path).phase("step", 3)
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    assert read_status(path) is None


@pytest.mark.parametrize("content", [None, b"", b"\0" * 72, b"x" * 10])
def test_no_status_reads_as_none(path, content):
    """No file, an empty one, zeros, something short: never an invented state."""
    if content is not None:
        path.write_bytes(content)
    assert read_status(path) is None


def test_a_disk_that_refuses_does_not_stop_the_run(path):
    """Writing to a descriptor that is gone raises nothing."""
    status = StatusFile(path)
    os.close(status._descriptor)
    status.phase("step", 1)
    status.failed("x")
    status._descriptor = os.open(path, os.O_RDWR)


def test_telling_costs_about_a_microsecond(path):
    """`phase` in its file form: 1.3 microseconds measured; 5 are allowed, on a busy machine. In a process of its own,
    because these tests check annotations, which costs ten times as much."""
    code = (
        "import sys, timeit; from pathlib import Path; from paceline.telemetry.status import StatusFile\n"
        "status = StatusFile(Path(sys.argv[1]))\n"
        "print(min(timeit.repeat(lambda: status.phase('step', 5), number=2000, repeat=20)) / 2000)"
    )
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    command = [sys.executable, "-c", code, str(path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 5e-6


def test_without_a_supervisor_nothing_is_kept(tmp_path, monkeypatch):
    """No folder in the environment: a `NullStatus`, and no file anywhere."""
    monkeypatch.chdir(tmp_path)
    for environment in ({}, {LAUNCH_FOLDER: str(tmp_path)}, {PROCESS_INDEX: "0"}):
        status = open_status(environment)
        status.phase("step", 1)
        status.median(1.0)
        status.failed("x")
        assert isinstance(status, NullStatus)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_told_once(tmp_path):
    """The run goes on without a status, and says what that means."""
    environment = {LAUNCH_FOLDER: str(tmp_path / "gone"), PROCESS_INDEX: "0"}
    with pytest.warns(RuntimeWarning, match="will not see if this process hangs") as warned:
        status = open_status(environment)
    assert isinstance(status, NullStatus) and len(warned) == 1


def test_a_process_stuck_in_c_code_shows_its_python_stacks(tmp_path):
    """SIGUSR2 to a process that waits in `lock.acquire`, which no Python signal handler can interrupt by itself."""
    code = (
        "import threading\nfrom paceline.telemetry.status import open_status\nstatus = open_status()\n"
        "def stuck_here(): threading.Lock().acquire() and None\n"
        "lock = threading.Lock(); lock.acquire(); status.phase('input', 3)\n"
        "def waits_for_rows(): lock.acquire()\nwaits_for_rows()\n"
    )
    environment = {**os.environ, "PYTHONPATH": SOURCE, LAUNCH_FOLDER: str(tmp_path), PROCESS_INDEX: "7"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        try:
            _await(lambda: (record := read_status(status_path(tmp_path, 7))) and record.phase == "input")
            os.kill(process.pid, signal.SIGUSR2)
            _await(lambda: "<module>" in stacks_path(tmp_path, 7).read_text())
            assert re.search(r"line \d+ in waits_for_rows", stacks_path(tmp_path, 7).read_text())
            assert process.poll() is None
        finally:
            process.kill()


def test_a_process_has_its_handler_before_its_status(tmp_path):
    """A supervisor asks only who has a status; asked too early, SIGUSR2 would kill. The stacks file is made first."""
    code = "from paceline.telemetry.status import open_status; open_status()"
    trace = (
        f"import os, sys; sys.addaudithook(lambda e, a: print(os.path.basename(str(a[0]))) "
        f"if e == 'open' and '{tmp_path}' in str(a[0]) else None); {code}"
    )
    environment = {**os.environ, "PYTHONPATH": SOURCE, LAUNCH_FOLDER: str(tmp_path), PROCESS_INDEX: "0"}
    ran = subprocess.run([sys.executable, "-c", trace], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["stacks-0.txt", "status-0"]


def _await(condition, patience_s=20.0):
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
