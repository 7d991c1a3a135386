"""Limits of the machine, one too small at a time."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from paceline.doctor.environment.limits import limit_findings, mount_type, usable_cores
from paceline.doctor.environment.system import System, disk_space
from tests.doctor.environment.machines import GIB, levels, machine, only


def findings(root, *, devices=0, several=False, **fields):
    return limit_findings(machine(root, **fields), devices=devices, several=several)


def test_a_usual_machine_is_one_line(tmp_path):
    found = only(findings(tmp_path, devices=8), "ok")
    assert found.what == "17.2 GB of shared memory, 65,536 open files, 16 cores"


def test_the_shared_memory_of_a_container_is_too_small(tmp_path):
    """Docker's 64 MB; a full one is another matter; and none at all."""
    found = only(findings(tmp_path, space=lambda path: (64 * 1024**2, 64 * 1024**2)), "warning")
    assert "/dev/shm has 67.1 MB free" in found.what and "--shm-size=16g" in (found.fix or "")
    found = only(findings(tmp_path, space=lambda path: (16 * GIB, 10**6)), "warning")
    assert "remove what ended programs left" in (found.fix or "")
    assert "no /dev/shm" in only(findings(tmp_path, space=lambda path: None), "warning").what


def test_few_open_files_matter_to_several_processes_first(tmp_path):
    """1024, the usual limit of a shell, is enough for one process; 256 for none."""

    def files(number):
        return lambda name: number if name == "NOFILE" else None

    assert levels(findings(tmp_path, limit=files(1024))) == {"ok"}
    found = only(findings(tmp_path, limit=files(1024), several=True), "warning")
    assert "1,024 files" in found.what and "ulimit -n 65536" in (found.fix or "")
    assert "256 files" in only(findings(tmp_path, limit=files(256)), "warning").what


def test_locked_memory_matters_where_there_is_infiniband(tmp_path):
    """8 MB, the usual limit."""

    def locked(name):
        return 8 * 1024**2 if name == "MEMLOCK" else None

    assert levels(findings(tmp_path, limit=locked)) == {"ok"}
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    found = only(findings(tmp_path, limit=locked), "warning")
    assert "mlx5_0" in found.what and "ulimit -l unlimited" in (found.fix or "")
    assert levels(findings(tmp_path, limit=lambda name: None)) == {"ok"}


def test_few_processes_are_a_warning(tmp_path):
    found = only(findings(tmp_path, limit=lambda name: 1000 if name == "NPROC" else None), "warning")
    assert "1,000 processes and threads" in found.what and "ulimit -u 4096" in (found.fix or "")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"/sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"/sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 16),
        ({}, 16),
    ],
)
def test_cores_are_counted_within_the_quota(tmp_path, files, cores):
    """Both versions of control groups."""
    assert usable_cores(machine(tmp_path, files=files)) == cores


def test_fewer_cores_than_gpus_are_a_warning(tmp_path):
    """Each needs one."""
    found = only(findings(tmp_path, devices=8, files={"/sys/fs/cgroup/cpu.max": "400000 100000"}), "warning")
    assert "4 CPU cores for 8 accelerators" in found.what and "--cpus-per-task" in (found.fix or "")


def test_a_program_that_chose_to_fork_is_warned(tmp_path, monkeypatch):
    """Threads and fork deadlock; the method that nobody chose is left alone."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "fork")
    found = only(findings(tmp_path), "warning")
    assert "may hang" in found.what and 'set_start_method("spawn")' in (found.fix or "")


MOUNTS = "filer:/home /home nfs4 rw 0 0\ntmpfs /home/me/my\\040tmp tmpfs rw 0 0\n/dev/sda / ext4 rw 0 0\n"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/x", "ext4"), ("/home/me/runs", "nfs4"), ("/home/me/my tmp/a", "tmpfs"), ("/homes", "ext4")],
)
def test_the_longest_mount_decides(tmp_path, path, kind):
    assert mount_type(machine(tmp_path, files={"/proc/mounts": MOUNTS}), Path(path)) == kind


def test_this_machine_is_read_without_errors():
    """The real functions, whatever they say."""
    system = System()
    assert limit_findings(system, devices=0, several=False)
    assert usable_cores(system) > 0 and system.limit("NOFILE") != 0
    assert disk_space(Path("/no/such/place")) is None
