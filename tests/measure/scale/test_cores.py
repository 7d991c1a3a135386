"""One core a device: what is claimed, what a process is given."""

from __future__ import annotations

import pytest

from paceline.measure.scale import cores
from paceline.measure.scale.cores import core_quota, environment, not_claimed, physical_cores, usable_cores


@pytest.mark.parametrize(
    ("devices", "own", "quota", "said"),
    [
        (2, [0, 1], None, None),
        (4, [0, 1], None, "4 simulated devices share 2 cores"),
        (2, [5], None, "2 simulated devices share 1 core"),
        (2, [0, 1, 2, 3], 1.5, "2 simulated devices share the time of 1.5 cores (limit of the container)"),
        (2, [0, 1, 2, 3], 2.0, None),
        (2, [], None, "2 simulated devices, and this system cannot hold a process to cores"),
    ],
)
def test_efficiency_is_claimed_only_with_a_core_for_each_device(devices, own, quota, said):
    """Cores that the process may use, and the time that its container may use of them."""
    assert not_claimed(devices, own, quota=quota) == said


@pytest.fixture
def files(monkeypatch):
    """`files({path: text})`: what the system says of its cores."""

    def say(texts):
        monkeypatch.setattr(cores, "_read", lambda path: texts.get(path))

    return say


def test_cores_that_share_no_physical_core_come_first(files, monkeypatch):
    """0 and 1 are threads of one core, 2 and 3 of another: two devices get 0 and 2."""
    files({cores._SIBLINGS.format(core): "0-1" if core < 2 else "2-3" for core in range(4)})
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: {3, 2, 1, 0}, raising=False)
    assert usable_cores() == [0, 2, 1, 3]
    assert physical_cores([0, 2]) == 2 and physical_cores([0, 2, 1]) == 2


@pytest.mark.parametrize(
    ("texts", "quota"),
    [
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_the_limit_of_a_container_is_read(files, texts, quota):
    """Both versions of control groups; no limit, and no answer, are no limit."""
    files(texts)
    assert core_quota() == quota


def test_the_environment_of_a_process_asks_for_one_thread_and_keeps_what_was_there():
    """The user's own flags stay, but for a number of devices, which differs from process to process."""
    made = environment({"HOME": "/h", "XLA_FLAGS": "--xla_dump_to=/d --xla_force_host_platform_device_count=8"})
    assert made["XLA_FLAGS"] == "--xla_dump_to=/d --xla_cpu_multi_thread_eigen=false"
    assert (made["HOME"], made["OMP_NUM_THREADS"], made["JAX_PLATFORMS"]) == ("/h", "1", "cpu")
