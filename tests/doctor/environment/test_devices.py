"""Devices as JAX shows them: of this process, and made up ones."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import jax
import pytest

from paceline.doctor.environment import devices as module
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.devices import device_findings, start_devices
from paceline.doctor.environment.gpus import Driver, read_driver
from tests.doctor.environment.machines import PACKAGES, fake_smi, gpu_machine, levels, machine, only

GB = 10**9
BARE = {"jax": "0.12.0", "jaxlib": "0.12.0"}


def gpu(kind="NVIDIA H100 80GB HBM3", limit=60 * GB):
    stats = None if limit is None else {"bytes_limit": limit}
    return SimpleNamespace(platform="gpu", device_kind=kind, memory_stats=lambda: stats)


@pytest.fixture
def visible(monkeypatch):
    """`visible(list)` makes JAX show these devices to the check."""

    def show(devices):
        monkeypatch.setattr(module.jax, "devices", lambda: devices)
        monkeypatch.setattr(module, "choose_devices", lambda count: devices[:count])

    return show


def test_simulated_devices_are_named_beside_the_cores(tmp_path):
    """Eight here, four asked for, on 16 made up cores."""
    found = device_findings(machine(tmp_path), Driver(), asked=Asked(devices=4, simulate=8))
    assert levels(found) == {"ok"}
    assert found[0].what.startswith("4 of 8 devices: 4 x cpu (cpu), which share ")
    assert "4 share 16 CPU cores, right for correctness, not for speed" in found[1].what


def test_more_devices_than_there_are_is_an_error(tmp_path):
    """In the words of the run."""
    found = only(device_findings(machine(tmp_path), Driver(), asked=Asked(devices=9)))
    assert "9 devices asked for, 8 cpu devices visible" in found.what and "use --devices 8" in (found.fix or "")


def test_equal_gpus_are_one_line(tmp_path, visible):
    visible([gpu(), gpu()])
    found = only(device_findings(machine(tmp_path), Driver(), asked=Asked()), "ok")
    assert found.what == "2 devices: 2 x NVIDIA H100 80GB HBM3 (gpu), 60.0 GB each for JAX"


def test_gpus_of_different_kinds_are_a_warning(tmp_path, visible):
    """Each step waits for the slowest."""
    visible([gpu(), gpu(), gpu("NVIDIA A100-SXM4-40GB")])
    found = only(device_findings(machine(tmp_path), Driver(), asked=Asked()), "warning")
    assert "2 x NVIDIA H100 80GB HBM3, 1 x NVIDIA A100-SXM4-40GB" in found.what
    assert "train on one kind" in (found.fix or "")


def test_a_gpu_with_less_memory_for_jax_is_a_warning(tmp_path, visible):
    """20 of 60 GB: somebody else is on it."""
    visible([gpu(), gpu(limit=20 * GB)])
    found = only(device_findings(machine(tmp_path), Driver(), asked=Asked()), "warning")
    assert "between 20.0 GB and 60.0 GB" in found.what and "occupied" in (found.fix or "")


def test_memory_that_is_not_told_is_called_unknown(tmp_path, visible):
    visible([gpu(limit=None)])
    assert "not known" in only(device_findings(machine(tmp_path), Driver(), asked=Asked()), "ok").what


BESIDE_A_GPU = {
    "JAX says why": ({}, PACKAGES, "error", "runs on CPU: no supported devices", "checks of versions"),
    "no plugin": ({}, BARE, "error", "no plugin for it is installed", "checks of versions"),
    "hidden": ({"CUDA_VISIBLE_DEVICES": "-1"}, PACKAGES, "error", "hides every GPU", "unset CUDA_VISIBLE_DEVICES"),
}


@pytest.mark.parametrize(("environment", "packages", "level", "what", "fix"), BESIDE_A_GPU.values(), ids=BESIDE_A_GPU)
def test_cpu_beside_a_gpu_is_explained(tmp_path, monkeypatch, environment, packages, level, what, fix):
    """The devices of this process are CPUs; the machine is made up."""
    fake_smi(tmp_path)
    system = gpu_machine(tmp_path, environment=environment, packages=lambda: packages)
    told = "no supported devices found for platform CUDA" if packages is PACKAGES else None
    monkeypatch.setattr(module, "backend_error", lambda platform: told)
    found = only(device_findings(system, read_driver(system), asked=Asked()), level)
    assert what in found.what and fix in (found.fix or "")


def test_cpu_by_choice_is_well(tmp_path):
    """JAX_PLATFORMS=cpu, or simulated devices."""
    fake_smi(tmp_path)
    system = gpu_machine(tmp_path, environment={"JAX_PLATFORMS": "cpu"})
    found = device_findings(system, read_driver(system), asked=Asked())
    assert levels(found) == {"ok"} and "leaves the GPU of this machine out" in found[-1].what
    system = gpu_machine(tmp_path)
    assert levels(device_findings(system, read_driver(system), asked=Asked(simulate=8))) == {"ok"}


def test_a_plugin_on_a_machine_without_gpu_is_well(tmp_path):
    """`paceline plan` needs exactly that; cards of others do not count, nor NVIDIA's network cards."""
    bus = "/sys/bus/pci/devices/0000:0"
    files = {f"{bus}1/vendor": "0x1002\n", f"{bus}1/class": "0x030000\n",
             f"{bus}2/vendor": "0x10de\n", f"{bus}2/class": "0x020000\n"}  # fmt: skip
    found = device_findings(machine(tmp_path, files=files), Driver(), asked=Asked())
    assert levels(found) == {"ok"}
    assert "no NVIDIA GPU" in found[-1].what and "paceline plan" in found[-1].what


@pytest.mark.parametrize(
    "files",
    [
        {"/sys/bus/pci/devices/0000:01/vendor": "0x10de\n", "/sys/bus/pci/devices/0000:01/class": "0x030200\n"},
        {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n"},
    ],
    ids=["on the bus", "driver"],
)
def test_a_plugin_without_the_gpu_that_is_in_the_machine_is_a_warning(tmp_path, files):
    """A container started without --gpus."""
    found = only(device_findings(machine(tmp_path, files=files), Driver(), asked=Asked()), "warning")
    assert "sees no NVIDIA GPU" in found.what and "--gpus all" in (found.fix or "")


def test_jax_that_cannot_start_is_a_finding_with_its_words(monkeypatch):
    """An unknown platform, as JAX says it."""
    monkeypatch.setattr(module, "HEARD", module.Heard())

    def refuse():
        raise RuntimeError("Unable to initialize backend 'cudda': Backend 'cudda' is not in the list")

    assert start_devices() is None
    monkeypatch.setattr(module.jax, "devices", refuse)
    found = start_devices()
    assert found is not None and found.level == "error" and "Unable to initialize backend 'cudda'" in found.what
    assert "JAX_PLATFORMS=cpu" in (found.fix or "")


def test_a_first_use_that_hangs_costs_its_limit_and_is_told_at_once_from_then_on(monkeypatch):
    """A driver that does not answer, until the end of the test; then devices can be used again."""
    end, calls = threading.Event(), []
    monkeypatch.setattr(module, "_STARTS", [])
    monkeypatch.setattr(module.jax, "devices", lambda: calls.append(1) or end.wait(30))
    try:
        found = start_devices(limit_s=0.05)
        assert found is not None and found.level == "error" and "no answer in 50 ms" in found.what
        assert "nvidia-smi" in (found.fix or "") and module.start_hangs()
        assert start_devices(limit_s=30) is not None and calls == [1], "none waits for the lock that JAX holds"
    finally:
        end.set()
    module._STARTS[0].join(10)
    assert not module.start_hangs() and start_devices() is None


def test_what_jax_logs_while_it_starts_is_kept_and_not_printed(monkeypatch, capfd):
    """A plugin that cannot load its libraries: JAX logs a traceback, then fails with an assertion without words."""
    heard = module.Heard()
    monkeypatch.setattr(module, "HEARD", heard)

    def fail():
        try:
            raise RuntimeError("Unable to load cuPTI.")
        except RuntimeError:
            logging.getLogger("jax._src.xla_bridge").exception("Jax plugin configuration error")
        raise AssertionError

    monkeypatch.setattr(module.jax, "devices", fail)
    found = start_devices()
    assert found is not None and found.what == "JAX cannot use a device: RuntimeError: Unable to load cuPTI."
    assert module.backend_error("cuda") == "RuntimeError: Unable to load cuPTI."
    assert capfd.readouterr().err == "" and heard not in logging.getLogger("jax._src.xla_bridge").handlers


def test_jax_still_keeps_why_a_backend_failed():
    """A private name of JAX: gone, the reason would silently be missing."""
    from jax._src import xla_bridge

    assert isinstance(xla_bridge._backend_errors, dict)
    assert module.backend_error("no such platform") is None
    assert jax.devices()
