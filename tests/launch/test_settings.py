"""What is refused before any process starts, each with a way out; and what this machine has."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import stat
import sys
from pathlib import Path

import pytest

from paceline.base.errors import OptionError, ProcessError, RunFolderError
from paceline.launch import settings
from paceline.launch.machine import gpu_count, is_port_free, usable_cores
from paceline.launch.settings import Launch, check, make_logs, runnable
from paceline.topology.membership import free_port

GOOD = Launch([sys.executable], 1)


def refused(error=OptionError, environment=None, **changes):
    """The error of a launch with these changes, as text."""
    with pytest.raises(error) as caught:
        check(dataclasses.replace(GOOD, **changes), environment or {})
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_launch_that_can_work_passes():
    """One process, which every machine can run."""
    check(GOOD, {})


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"processes": 0}, "use --processes 1 or more"),
        ({"processes": -3}, "use --processes 1 or more"),
        ({"devices_per_process": 0}, "use --devices-per-process 1 or more"),
        ({"nodes": 0}, "use --nodes 1 or more"),
        ({"max_restarts": -1}, "use --max-restarts 0 or more"),
        ({"hang_timeout_s": -1.0}, "use --hang-timeout 0 or more"),
        ({"compile_timeout_s": float("nan")}, "use --compile-timeout 0 or more"),
        ({"stop_grace_s": -0.1}, "use --stop-grace 0 or more"),
        ({"first_attempt": -1}, "use --attempt 0 or more"),
        ({"command": []}, "use paceline launch -n 2 -- paceline train NAME"),
        ({"command": ["no-such-program-here"]}, "check its name, or give its whole path"),
        ({"node_index": 1}, "give --nodes, the number of machines, too"),
        ({"nodes": 2, "node_index": 2, "coordinator": "a:1"}, "--node-index 0 to 1"),
        ({"nodes": 2, "node_index": 1}, "use --coordinator HOST:PORT"),
        ({"coordinator": "localhost"}, "use --coordinator HOST:PORT"),
        ({"coordinator": "localhost:0"}, "with a port from 1024 to 65535"),
        ({"coordinator": ":4000"}, "use --coordinator HOST:PORT"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes, fix):
    """The fix names the option and a value that works."""
    assert fix in refused(**changes)


def test_a_file_that_is_no_program_is_refused_with_the_way_to_run_it(tmp_path):
    """`-- train.py`: python must stand before it."""
    file = tmp_path / "train.py"
    file.write_text("")
    assert f"fix: use -- python {file}" in refused(command=[str(file)])


def test_more_processes_than_cores_are_refused_unless_asked_for(monkeypatch):
    """5 on 4 cores; 4 pass, and so do 5 with --oversubscribe."""
    monkeypatch.setattr(settings, "usable_cores", lambda: 4)
    told = refused(ProcessError, processes=5)
    assert "5 processes on 4 usable CPU cores" in told and "use --processes 4 or fewer, or --oversubscribe" in told
    check(dataclasses.replace(GOOD, processes=4, devices_per_process=8), {})  # simulated devices are no cores
    check(dataclasses.replace(GOOD, processes=5, oversubscribe=True), {})


@pytest.mark.parametrize(
    ("processes", "each", "fix"),
    [
        (9, None, "use at most 8 in all: --processes 8"),
        (4, 3, "use at most 8 in all: --processes 2 or --devices-per-process 2"),
    ],
)
def test_more_gpus_than_the_machine_has_are_refused(monkeypatch, processes, each, fix):
    """8 GPUs; --oversubscribe does not help, as a GPU's memory cannot be shared."""
    monkeypatch.setattr(settings, "gpu_count", lambda environment: 8)
    told = refused(ProcessError, processes=processes, devices_per_process=each, oversubscribe=True)
    assert "this machine shows 8" in told and fix in told
    check(dataclasses.replace(GOOD, processes=4, devices_per_process=2), {})


def test_a_port_that_is_taken_is_refused_where_process_0_listens():
    """On machine 0 only: on machine 1 the same port is another one."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_port_free(port)
        told = refused(ProcessError, coordinator=f"127.0.0.1:{port}")
        assert f"port {port}" in told and "use another port, or stop that program" in told
        check(dataclasses.replace(GOOD, nodes=2, node_index=1, coordinator=f"10.0.0.1:{port}"), {})
    assert is_port_free(free_port())


def test_a_port_that_an_ended_program_left_is_free():
    """Its last connection waits in the kernel (TIME_WAIT) for a minute: a restart must not."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
    server.bind(("127.0.0.1", 0))
    server.listen()
    port = server.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = server.accept()
    accepted.close()  # closes first, so that its end waits
    client.close()
    server.close()
    with socket.socket() as naive, pytest.raises(OSError):
        naive.bind(("127.0.0.1", port))
    assert is_port_free(port)


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,7"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937,MIG-aa"}, 2),
        ({"JAX_PLATFORMS": "cpu"}, 0),
        ({"JAX_PLATFORMS": "cuda,cpu"}, 4),
    ],
)
def test_gpus_are_counted_as_cuda_counts_them(tmp_path, environment, count):
    """Four GPUs; the list of visible ones ends at the first entry that names none."""
    for number in range(4):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    assert gpu_count(environment, listing=tmp_path) == count
    assert gpu_count(environment, listing=tmp_path / "none", nodes=tmp_path / "none") == 0


def test_cores_are_those_that_may_be_used():
    """A container or `taskset` may leave fewer than the machine has."""
    assert usable_cores() == len(os.sched_getaffinity(0))


def test_logs_go_to_a_new_folder_in_runs(tmp_path, monkeypatch):
    """Two launches within a second have two; the path is absolute."""
    monkeypatch.chdir(tmp_path)
    first, second = (make_logs(GOOD, now_s=0.0) for _ in range(2))
    assert re.fullmatch(r"launch-19\d{6}-\d{6}", first.name) and second.name == f"{first.name}-2"
    assert first.is_absolute() and first.parent == tmp_path / "runs" and second.is_dir()


def test_a_folder_for_logs_that_is_there_is_used(tmp_path):
    """As after a requeue."""
    assert make_logs(dataclasses.replace(GOOD, logs=tmp_path)) == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_logs_that_cannot_be_written_is_refused(tmp_path):
    """A file stands in its place; or it is on a file system that takes nothing, whoever asks."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "logs", Path("/proc/logs")):
        with pytest.raises(RunFolderError, match="cannot be written") as caught:
            make_logs(dataclasses.replace(GOOD, logs=folder))
        assert "use --logs with a folder that you can write to" in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    """Mode 0500."""
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(RunFolderError, match="Permission denied"):
        make_logs(dataclasses.replace(GOOD, logs=tmp_path))


def test_paceline_is_the_one_that_runs():
    """Not another version that stands first on PATH; other commands stay as they are."""
    assert runnable(["paceline", "train", "image"])[0] == sys.executable
    assert runnable(["paceline", "train", "image"])[-2:] == ["train", "image"]
    assert runnable(["python", "paceline"]) == ["python", "paceline"]
