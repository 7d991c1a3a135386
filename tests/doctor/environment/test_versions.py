"""Versions of jax, its plugins and the driver that do not fit, each with the command that mends it."""

from __future__ import annotations

import time

import pytest

from paceline.doctor.environment import gpus
from paceline.doctor.environment.gpus import read_driver
from paceline.doctor.environment.versions import version_findings
from tests.doctor.environment.machines import PACKAGES, fake_smi, gpu_machine, levels, machine, only, script

KERNEL = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
OPEN_KERNEL = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
BARE = {"jax": "0.12.0", "jaxlib": "0.12.0"}


def findings(system):
    return version_findings(system, read_driver(system))


def test_what_fits_is_one_line(tmp_path):
    """All versions, jax's packages first, the driver's last."""
    fake_smi(tmp_path)
    found = only(findings(gpu_machine(tmp_path, packages=lambda: {"nvidia-nccl-cu13": "2.28.3", **PACKAGES})), "ok")
    assert found.what.startswith("jax 0.12.0, jax-cuda13-pjrt 0.12.0")
    assert found.what.endswith("nvidia-nccl-cu13 2.28.3, NVIDIA driver 580.65.06")


@pytest.mark.parametrize("part", ["jax-cuda13-plugin", "jax-cuda13-pjrt"])
def test_a_plugin_of_another_version_is_left_out_by_jax(tmp_path, part):
    """JAX runs on CPU with a warning; the fix brings both halves of jax's own version."""
    fake_smi(tmp_path)
    found = only(findings(gpu_machine(tmp_path, packages=lambda: PACKAGES | {part: "0.11.2"})))
    assert f"{part} 0.11.2 beside jaxlib 0.12.0" in found.what and "runs on CPU" in found.what
    assert found.fix == 'pip install --upgrade "jax[cuda13]==0.12.0"'


def test_a_post_release_of_a_plugin_fits(tmp_path):
    """JAX compares the leading numbers."""
    fake_smi(tmp_path)
    packages = PACKAGES | {"jax-cuda13-plugin": "0.12.0.post1"}
    assert levels(findings(gpu_machine(tmp_path, packages=lambda: packages))) == {"ok"}


def test_half_a_plugin_is_an_error(tmp_path):
    fake_smi(tmp_path)
    packages = {name: version for name, version in PACKAGES.items() if name != "jax-cuda13-pjrt"}
    found = only(findings(gpu_machine(tmp_path, packages=lambda: packages)))
    assert "jax-cuda13-pjrt is missing" in found.what and 'pip install --upgrade "jax[cuda13]' in (found.fix or "")


def test_two_plugins_side_by_side_are_a_warning(tmp_path):
    fake_smi(tmp_path)
    packages = PACKAGES | {"jax-cuda12-plugin": "0.12.0", "jax-cuda12-pjrt": "0.12.0"}
    found = only(findings(gpu_machine(tmp_path, packages=lambda: packages)), "warning")
    assert found.fix == "pip uninstall jax-cuda12-plugin jax-cuda12-pjrt"


@pytest.mark.parametrize(("driver", "extra"), [("580.65.06", "cuda13"), ("550.54.15", "cuda12")])
def test_a_gpu_without_plugin_is_an_error(tmp_path, driver, extra):
    """The plugin to install is the one that the driver is new enough for."""
    fake_smi(tmp_path, driver=driver)
    found = only(findings(gpu_machine(tmp_path, packages=lambda: BARE)))
    assert "has no plugin for it" in found.what and found.fix == f'pip install --upgrade "jax[{extra}]==0.12.0"'


@pytest.mark.parametrize(
    ("driver", "fix"),
    [
        ("550.54.15", 'update the driver to 580 or newer, or pip install "jax[cuda12]"'),
        ("470.57.02", "update the driver to 580 or newer"),
    ],
)
def test_a_driver_older_than_its_cuda_is_an_error(tmp_path, driver, fix):
    """CUDA 13 from 580, CUDA 12 from 525."""
    fake_smi(tmp_path, driver=driver)
    found = only(findings(gpu_machine(tmp_path)))
    assert f"driver {driver} is too old for CUDA 13, which needs 580" in found.what and found.fix == fix


@pytest.mark.parametrize(("text", "version"), [(KERNEL, "535.104.05"), (OPEN_KERNEL, "570.86.15")])
def test_the_driver_is_read_from_the_kernel_without_nvidia_smi(tmp_path, text, version):
    """Both forms of the module."""
    driver = read_driver(gpu_machine(tmp_path, files={"/proc/driver/nvidia/version": text}))
    assert (driver.present, driver.version, driver.gpus) == (True, version, ())


def test_a_gpu_that_its_cuda_no_longer_serves_is_an_error(tmp_path):
    """A V100 (7.0) under CUDA 13, which begins at 7.5."""
    fake_smi(tmp_path, count=1, capability="7.0")
    found = only(findings(gpu_machine(tmp_path, 1)))
    assert "compute capability 7.0, below 7.5 of CUDA 13" in found.what and found.fix == 'pip install "jax[cuda12]"'


def test_a_driver_that_was_updated_under_the_running_kernel_is_named(tmp_path):
    """nvidia-smi's own words, and the way out."""
    script(tmp_path, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    found = only(findings(gpu_machine(tmp_path)))
    assert "Driver/library version mismatch" in found.what and "restart the machine" in (found.fix or "")


def test_a_driver_that_hangs_costs_its_limit(tmp_path, monkeypatch):
    """Here half a second; the program is ended."""
    script(tmp_path, "nvidia-smi", "/bin/sleep 60")
    system, run = gpu_machine(tmp_path), gpus.System.run
    monkeypatch.setattr(gpus.System, "run", lambda self, command: run(self, command, timeout_s=0.5))
    start = time.monotonic()
    found = only(findings(system))
    assert time.monotonic() - start < 5
    assert "did not answer" in found.what and "mend the driver first" in (found.fix or "")


def test_a_machine_without_gpu_has_nothing_to_fit(tmp_path):
    driver = read_driver(machine(tmp_path))
    assert not driver.present and driver.problem is None
    assert levels(version_findings(machine(tmp_path, packages=lambda: BARE), driver)) == {"ok"}


def test_a_jaxlib_that_jax_refuses_is_an_error_with_jax_words(tmp_path):
    """As jax says it when it is imported."""
    words = "RuntimeError: jaxlib version 0.10.0 is older than the minimum required by jax"
    found = only(version_findings(machine(tmp_path, packages=lambda: BARE), gpus.Driver(), importing=words))
    assert words in found.what and 'pip install --upgrade "jax==0.12.0"' in (found.fix or "")


def test_no_plugin_is_named_that_jax_does_not_have(tmp_path):
    """A GPU of 5.0 and a plugin for CUDA 12, or a driver of CUDA 11 beside CUDA 12: there is no jax[cuda11]."""
    packages = {"jax": "0.12.0", "jaxlib": "0.12.0", "jax-cuda12-plugin": "0.12.0", "jax-cuda12-pjrt": "0.12.0"}
    fake_smi(tmp_path, count=1, capability="5.0")
    assert only(findings(gpu_machine(tmp_path, 1, packages=lambda: packages))).fix == "use a newer GPU"
    fake_smi(tmp_path, driver="470.57.02")
    found = only(findings(gpu_machine(tmp_path, packages=lambda: packages)))
    assert found.fix == "update the driver to 525 or newer"
    none = gpu_machine(tmp_path, extras=frozenset)
    fake_smi(tmp_path, driver="550.54.15")
    assert only(findings(none)).fix == "update the driver to 580 or newer"
    old = {"jax": "0.12.0", "jaxlib": "0.12.0", "jax-cuda11-plugin": "0.4.25", "jax-cuda11-pjrt": "0.12.0"}
    found = only(findings(gpu_machine(tmp_path, packages=lambda: old)))
    assert (found.fix or "").startswith("pip uninstall jax-cuda11-plugin jax-cuda11-pjrt")
