"""The clusters and the network that other tests build on are real: plain JAX runs on each, and each breaks as asked.

Owns: the proof of `run`, `slurm`, `mpi` and `network`.
Not here: Paceline under them.
Invariant: expected sums are 0 + 1 + ... + (P - 1), by pencil.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes import need
from tests.processes.mpi import open_mpi
from tests.processes.network import two_namespaces
from tests.processes.run import child_environment, finish, free_port, run, start, until
from tests.processes.slurm import slurm_of_this_machine

pytestmark = pytest.mark.once(reason="proves Slurm, MPI and the cables of this machine; nothing of Paceline runs here")

SCRIPT = str(Path(__file__).with_name("plain_sum.py"))


def lines(text: str) -> list[dict]:
    """The JSON lines among whatever else a process printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended but was not collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_local_processes_find_each_other():
    """Two plain processes sum their indices to 1, each on one device."""
    ended = run([SCRIPT, "1", "1"], processes=2, timeout_s=60)
    assert [process.returncode for process in ended] == [0, 0], ended
    for index, process in enumerate(ended):
        (line,) = lines(process.stdout)
        assert (line["process"], line["processes"], line["devices"], line["sum"]) == (index, 2, 2, 1.0)


def test_processes_and_their_children_end_with_the_block():
    """A process that ignores SIGTERM, and the child it started, are gone after the `with` block."""
    code = textwrap.dedent("""
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        print("child", child.pid, flush=True)
        time.sleep(1000)
    """)
    with start(["-c", code], processes=2) as running:
        running.printed("child", timeout_s=30)
        pids = [int(running.stdout(index).split()[1]) for index in (0, 1)]
        assert all(map(alive, pids))
        with pytest.raises(TimeoutError, match=r"still running: \[0, 1\]"):
            running.wait(0.05)
    until(lambda: not any(map(alive, pids)), timeout_s=5, what="the end of the children")


def test_a_command_that_hangs_is_ended_with_what_it_printed():
    """A command over its time raises with its output, and its child is gone."""
    with pytest.raises(subprocess.TimeoutExpired) as error:
        finish(["sh", "-c", "sleep 1000 & echo $!; wait"], env=child_environment(), timeout_s=0.3, grace_s=0.1)
    pid = int(str(error.value.output))
    until(lambda: not alive(pid), timeout_s=5, what="the end of the child")


def test_slurm_processes_find_each_other(slurm):
    """Under `srun -n 3`, JAX detects Slurm and the indices sum to 0 + 1 + 2."""
    ended = slurm.run([sys.executable, SCRIPT, "1", "1"], processes=3, timeout_s=60)
    assert ended.returncode == 0, ended.stderr
    found = sorted((line["process"], line["processes"], line["sum"]) for line in lines(ended.stdout))
    assert found == [(0, 3, 3.0), (1, 3, 3.0), (2, 3, 3.0)]


def test_slurm_reports_the_exit_code(slurm):
    """The exit code of srun is the highest of its processes'."""
    ended = slurm.run(["sh", "-c", "exit $((SLURM_PROCID + 4))"], processes=2, timeout_s=30)
    assert ended.returncode == 5, ended.stderr


def test_slurm_stops_a_job_that_hangs(slurm):
    """A command over its time raises, and none of its processes is left."""
    with pytest.raises(subprocess.TimeoutExpired) as error:
        slurm.run(["sh", "-c", "echo $$; exec sleep 1000"], processes=2, timeout_s=1.5)
    pids = [int(pid) for pid in str(error.value.output).split()]
    assert len(pids) == 2
    until(lambda: not any(map(alive, pids)), timeout_s=10, what="the end of the processes")


def test_a_slurm_job_is_signalled_and_queued_again(slurm, tmp_path):
    """SIGUSR1 reaches the job's processes; the script queues itself again, and its second start ends well."""
    script, output = tmp_path / "job.sh", tmp_path / "output"
    script.write_text(
        textwrap.dedent("""\
            #!/bin/bash
            #SBATCH --ntasks=2
            [ -n "$SLURM_RESTART_COUNT" ] && { echo restarted $SLURM_RESTART_COUNT; exit 0; }
            srun bash -c 'trap "exit 143" USR1; echo ready; while :; do sleep 0.05; done'
            code=$?
            echo ended $code
            [ $code = 143 ] && scontrol requeue $SLURM_JOB_ID
            sleep 1000
        """)
    )
    job = slurm.sbatch(script, output=output)
    until(lambda: output.exists() and output.read_text().count("ready") == 2, timeout_s=20, what="two processes")
    assert slurm.state(job) == "RUNNING"
    slurm.signal(job, signal.SIGUSR1)
    slurm.wait(job, states=["PENDING"], timeout_s=20)
    assert "ended 143" in output.read_text()
    slurm.start_soon(job)
    assert slurm.wait(job, timeout_s=20) == "COMPLETED", output.read_text()
    assert "restarted 1" in output.read_text()


def test_mpi_processes_find_each_other(mpi):
    """Under `mpirun -n 3`, JAX detects Open MPI and the indices sum to 0 + 1 + 2."""
    ended = mpi.run([sys.executable, SCRIPT, "1", "1"], processes=3, timeout_s=60)
    assert ended.returncode == 0, ended.stderr
    found = sorted((line["process"], line["processes"], line["sum"]) for line in lines(ended.stdout))
    assert found == [(0, 3, 3.0), (1, 3, 3.0), (2, 3, 3.0)]


def test_mpi_stops_a_command_that_hangs(mpi):
    """A command over its time raises, and none of its processes is left."""
    with pytest.raises(subprocess.TimeoutExpired) as error:
        mpi.run(["sh", "-c", "echo $$; exec sleep 1000"], processes=2, timeout_s=1.0)
    pids = [int(pid) for pid in str(error.value.output).split()]
    assert len(pids) == 2
    until(lambda: not any(map(alive, pids)), timeout_s=10, what="the end of the processes")


def over(network, *, floats: int, repeats: int, folder: Path | None = None):
    """The sums, one process on each side of the network."""
    return start(
        [SCRIPT, str(floats), str(repeats), *([str(folder)] if folder else [])],
        coordinator=f"{network.addresses[0]}:{free_port()}",
        command=network.command,
    )


@pytest.mark.clock(reason="the time of a transfer")
@pytest.mark.parametrize(("mbit", "shortest_s", "longest_s"), [(100, 0.3, 1.5), (None, 0.0, 0.3)])
def test_a_slow_cable_is_slow(network, mbit, shortest_s, longest_s):
    """4 MiB each way take 4 * 8 * 1.048576 / 100 = 0.336 s at 100 Mbit/s, and far less without a limit.

    The fastest of three: no load of the machine makes it faster than the cable, and rarely is it slow three times.
    """
    network.bandwidth(mbit)
    with over(network, floats=1 << 20, repeats=4) as running:
        ended = running.wait(60)
    assert [process.returncode for process in ended] == [0, 0], ended
    pairs = list(zip(*(lines(process.stdout)[1:] for process in ended), strict=True))
    assert [(first["sum"], second["sum"]) for first, second in pairs] == [(1.0, 1.0)] * 3
    # A sum is over when both sides have it.
    assert shortest_s <= min(max(first["seconds"], second["seconds"]) for first, second in pairs) <= longest_s


def test_each_side_has_a_name_of_its_own(network):
    """Both sides see both names, at the addresses of the cable, and not the machine's own name."""
    code = "import socket; print(socket.gethostname(), *map(socket.gethostbyname, sys.argv[1:]))"
    for side in (0, 1):
        popen = network.popen(side, [sys.executable, "-c", f"import sys, {code[7:]}", *network.names])
        assert popen.communicate(timeout=30)[0].split() == [network.names[side], *network.addresses]
    assert os.uname().nodename not in network.names


def test_sums_go_on_under_loss(network):
    """With every fifth packet lost each way, ten sums are right."""
    network.loss(20)
    with over(network, floats=1000, repeats=10) as running:
        ended = running.wait(120)
    assert [process.returncode for process in ended] == [0, 0], ended
    assert [line["sum"] for process in ended for line in lines(process.stdout)] == [1.0] * 20
    assert network.lost(0) > 0 and network.lost(1) > 0


def test_a_cut_cable_blocks_until_it_is_joined(network, tmp_path):
    """A sum over a cut cable does not end, nor fail; it ends once the cable is joined."""
    with over(network, floats=1000, repeats=2, folder=tmp_path) as running:
        running.printed('"repeat": 0')
        network.partition()
        (tmp_path / "1").touch()
        with pytest.raises(TimeoutError):
            running.printed('"repeat": 1', timeout_s=1.0)
        assert running.running() == [0, 1]
        network.heal()
        ended = running.wait(60)
    assert [process.returncode for process in ended] == [0, 0], ended
    assert [lines(process.stdout)[1]["sum"] for process in ended] == [1.0, 1.0]


def test_nothing_of_a_network_is_left(network):
    """Namespaces, their files and their processes go with the fixture's block."""
    with two_namespaces() as another:
        assert set(another.names).isdisjoint(network.names)
        popen = another.popen(0, ["sh", "-c", "sleep 1000 & echo $!; wait"])
        assert popen.stdout is not None
        pid = int(popen.stdout.readline())
        assert alive(pid)
    assert not alive(pid) and popen.returncode is not None
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for name in another.names:
        assert name not in listed
        assert not Path("/etc/netns", name).exists()
    assert all(name in listed for name in network.names)


@pytest.mark.parametrize("make", [slurm_of_this_machine, two_namespaces])
def test_without_root_the_reason_says_so(monkeypatch, make):
    """Someone who is not root reads that root is needed."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="needs root"), make():
        pass


@pytest.mark.parametrize(
    ("make", "absent", "package"),
    [
        (slurm_of_this_machine, "slurmd", "slurm-wlm"),
        (slurm_of_this_machine, "munged", "munge"),
        (two_namespaces, "tc", "iproute2"),
        (two_namespaces, "iptables", "iptables"),
        (open_mpi, "mpirun", "openmpi-bin"),
    ],
)
def test_an_absent_program_is_named_by_its_package(monkeypatch, make, absent, package):
    """The reason of a skip is the Debian package to install."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(need, "tool", lambda name: None if name == absent else f"/usr/bin/{name}")
    with pytest.raises(pytest.skip.Exception, match=f"not installed: {package}$"):
        # A context manager does its work when it is entered.
        getattr(make(), "__enter__", lambda: None)()
