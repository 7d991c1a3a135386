"""CUDA_VISIBLE_DEVICES on a machine with four GPUs."""

from __future__ import annotations

import pytest

from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.gpus import Driver, read_driver
from paceline.doctor.environment.visible import visible_findings
from tests.doctor.environment.machines import fake_smi, gpu_machine, levels, machine, only

WRONG = {
    "a number too large": ("0,4", "'4' names no GPU: there are 4", "use numbers 0 to 3"),
    "a wrong one hides the rest": ("7,0,1", "hides the 2 GPUs behind it", "use numbers 0 to 3"),
    "twice the same": ("0,1,0", "names 0 twice, and CUDA then shows no GPU", "CUDA_VISIBLE_DEVICES=0,1"),
    "a range": ("0-3", "of '0-3' CUDA reads the number in front alone, GPU 0", "without ranges"),
    "a range beyond": ("4-5,0", "'4-5' names no GPU: there are 4, and CUDA hides the 1 GPU behind", "without ranges"),
    "an unknown name": ("GPU-99", "'GPU-99' is the name of no GPU here", "use numbers"),
    "minus one in between": ("0,-1,2", "'-1' is no number", "use numbers"),
    "an empty entry": ("0,,1", "'' is empty", "use numbers"),
}


def findings(root, text, asked=None):
    fake_smi(root)
    system = gpu_machine(root, environment={} if text is None else {"CUDA_VISIBLE_DEVICES": text})
    return visible_findings(system, read_driver(system), asked=asked or Asked())


@pytest.mark.parametrize(("text", "what", "fix"), WRONG.values(), ids=WRONG)
def test_an_entry_that_cuda_does_not_heed_is_an_error(tmp_path, text, what, fix):
    """Which one, what it hides, and what to write."""
    found = only(findings(tmp_path, text))
    assert what in found.what and fix in (found.fix or "")


@pytest.mark.parametrize(("text", "shown"), [("0,2", 2), ("GPU-11,GPU-22", 2), ("", 0), ("-1", 0), ("MIG-1", 1)])
def test_what_is_shown_is_counted(tmp_path, text, shown):
    """Names may be cut short; no GPU at all may be meant."""
    assert f"shows {shown} GPU" in only(findings(tmp_path, text), "ok").what


def test_a_range_hides_nothing_behind_it(tmp_path):
    """0-1,3 shows GPU 0 and 3: one finding, which hides nothing, and a count that agrees with the run's own."""
    found = findings(tmp_path, "0-1,3", Asked(devices=2))
    assert "GPU 0" in only(found).what and "hides" not in only(found).what
    assert "shows 2 of 4" in findings(tmp_path, "0-1,3", Asked(devices=3))[1].what


def test_fewer_than_asked_is_an_error(tmp_path):
    """Two shown, three or eight asked for."""
    found = only(findings(tmp_path, "0,2", Asked(devices=3)))
    assert "3 GPUs asked for" in found.what and "shows 2 of 4" in found.what and "name 3 GPUs" in (found.fix or "")
    assert "use 2 of them at most" in (only(findings(tmp_path, "0,2", Asked(devices=8))).fix or "")
    assert "8 GPUs asked for" in only(findings(tmp_path, "0,2", Asked(processes=4, devices_per_process=2))).what


def test_all_hidden_is_an_error_if_some_are_asked_for(tmp_path):
    """And none if the devices are to be simulated."""
    assert "unset CUDA_VISIBLE_DEVICES" in (only(findings(tmp_path, "-1", Asked(devices=2))).fix or "")
    assert levels(findings(tmp_path, "-1", Asked(devices=2, simulate=2))) == {"ok"}


def test_without_the_variable_all_are_visible(tmp_path):
    assert "all 4 GPUs are visible" in only(findings(tmp_path, None), "ok").what


def test_on_a_machine_without_gpu_nothing_is_judged(tmp_path):
    """A login node, a laptop."""
    system = machine(tmp_path, environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert levels(visible_findings(system, Driver(), asked=Asked())) == {"ok"}
