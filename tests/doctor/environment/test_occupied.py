"""Memory that others hold."""

from __future__ import annotations

import pytest

from paceline.doctor.environment.gpus import read_driver
from paceline.doctor.environment.memory import occupied_findings
from tests.doctor.environment.machines import fake_smi, gpu_machine, levels, machine, only

MEMINFO = "MemTotal:       65536000 kB\nMemFree:         1000000 kB\nMemAvailable:   {} kB\n"
PLENTY = {"/proc/meminfo": MEMINFO.format(50_000_000)}
PYTHON = "GPU-11aa, 4711, python, 70000"


def findings(root, *, environment=None, files=PLENTY, **smi):
    fake_smi(root, **smi)
    system = gpu_machine(root, environment=environment or {}, files=files)
    return occupied_findings(system, read_driver(system))


def test_idle_gpus_are_well(tmp_path):
    """3 MiB are the driver's own."""
    found = findings(tmp_path)
    assert levels(found) == {"ok"} and "no other process is on the GPUs; JAX takes 75 % of each" in found[0].what


def test_a_gpu_whose_rest_is_less_than_jax_takes_is_an_error(tmp_path):
    """70,000 of 81,559 MiB are used: 14.2 % are free, of which 90 % are 0.12."""
    found = only(findings(tmp_path, used_mib=70_000, apps=(PYTHON,)))
    assert "GPU 0: 73.4 GB of 85.5 GB are in use by python (process 4711, 73.4 GB)" in found.what
    assert "JAX would take 64.1 GB" in found.what
    assert "end it" in (found.fix or "") and "XLA_CLIENT_MEM_FRACTION=0.12" in (found.fix or "")


def test_a_gpu_with_room_enough_is_a_warning(tmp_path):
    """10,000 MiB used; and with preallocation off any number is."""
    found = only(findings(tmp_path, used_mib=10_000), "warning")
    assert "by processes that cannot be seen from here" in found.what and "CUDA_VISIBLE_DEVICES" in (found.fix or "")
    off = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    assert levels(findings(tmp_path, used_mib=70_000, environment=off)) == {"warning", "ok"}


def test_a_hidden_gpu_is_not_judged(tmp_path):
    """GPU 0 is taken, 1 and 2 are used."""
    assert levels(findings(tmp_path, used_mib=70_000, environment={"CUDA_VISIBLE_DEVICES": "1,GPU-33"})) == {"ok"}


def test_of_a_range_the_first_gpu_is_judged(tmp_path):
    """CUDA reads 0 of 0-1, and GPU 0 is taken."""
    found = only(findings(tmp_path, used_mib=70_000, environment={"CUDA_VISIBLE_DEVICES": "0-1"}))
    assert "GPU 0: 73.4 GB" in found.what and "end them" in (found.fix or "")


def test_memory_shared_with_the_machine_is_not_judged(tmp_path):
    """GB10 and Jetson say [N/A]."""
    assert levels(findings(tmp_path, memory="[N/A]")) == {"ok"}


@pytest.mark.parametrize("text", ["1.5", "0", "-1", "half", "75%"])
def test_a_share_that_is_none_is_an_error(tmp_path, text):
    found = only(findings(tmp_path, environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": text}))
    assert f"XLA_PYTHON_CLIENT_MEM_FRACTION={text}" in found.what and "=0.9" in (found.fix or "")


def test_two_names_of_one_share_are_an_error(tmp_path):
    """JAX raises for it."""
    both = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "XLA_CLIENT_MEM_FRACTION": "0.5"}
    assert only(findings(tmp_path, environment=both)).fix == "unset XLA_PYTHON_CLIENT_MEM_FRACTION"


def test_the_slow_allocator_is_a_warning(tmp_path):
    found = only(findings(tmp_path, environment={"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}), "warning")
    assert "slows a run down" in found.what and "unset XLA_PYTHON_CLIENT_ALLOCATOR" in (found.fix or "")


CGROUP = {"/sys/fs/cgroup/memory.max": "8000000000\n", "/sys/fs/cgroup/memory.current": "7900000000\n"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"/proc/meminfo": MEMINFO.format(1_000_000)}, "1.0 GB of 67.1 GB"),
        (PLENTY | CGROUP, "100.0 MB of 8.0 GB"),
    ],
    ids=["machine", "control group"],
)
def test_a_machine_that_is_full_is_a_warning(tmp_path, files, words):
    """Below a tenth: of the machine, or of the limit that the container has."""
    found = only(occupied_findings(machine(tmp_path, files=files), read_driver(machine(tmp_path))), "warning")
    assert words in found.what and "end other programs" in (found.fix or "")


@pytest.mark.parametrize(
    "files",
    [
        CGROUP | {"/sys/fs/cgroup/memory.stat": "anon 900000000\ninactive_file 6000000000\nactive_file 5\n"},
        {
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "8000000000\n",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes": "7900000000\n",
            "/sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 6000000000\n",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_files_in_the_page_cache_of_a_container_are_not_occupied(tmp_path, files):
    """7.9 of 8 GB in use, 6 of them files that were read: 6.1 GB are left."""
    system = machine(tmp_path, files=PLENTY | files)
    assert (
        "has 6.1 GB of 8.0 GB memory left" in only(occupied_findings(system, read_driver(machine(tmp_path))), "ok").what
    )


def test_a_control_group_without_limit_counts_as_the_machine(tmp_path):
    files = PLENTY | {"/sys/fs/cgroup/memory.max": "max\n"}
    found = occupied_findings(machine(tmp_path, files=files), read_driver(machine(tmp_path)))
    assert "51.2 GB of 67.1 GB" in only(found, "ok").what


def test_a_machine_that_does_not_tell_is_left_alone(tmp_path):
    assert levels(occupied_findings(machine(tmp_path), read_driver(machine(tmp_path)))) == {"ok"}
