"""Counting GPUs without a driver call: what CUDA would show of a machine with four."""

from __future__ import annotations

import pytest

from paceline.base.gpus import gpu_count, gpus_of_machine, visible_entries

CASES = {
    "not set": (None, 4),
    "two": ("0,2", 2),
    "none": ("", 0),
    "minus one": ("-1", 0),
    "stops at the first that names none": ("1,-1,2", 1),
    "a number too large": ("0,7", 1),
    "names": ("GPU-8932f937,MIG-aa", 2),
    "a range is its first number": ("0-2", 1),
    "twice the same shows none": ("1,1", 0),
    "blanks": (" 0 , 1 ", 2),
}


@pytest.fixture
def listing(tmp_path):
    """Four entries, as the driver makes them."""
    for number in range(4):
        (tmp_path / f"gpus/0000:0{number}:00.0").mkdir(parents=True)
    return tmp_path / "gpus"


@pytest.mark.parametrize(("text", "count"), CASES.values(), ids=CASES)
def test_the_count_is_what_cuda_shows(listing, tmp_path, text, count):
    """By CUDA_VISIBLE_DEVICES, of four GPUs."""
    environment = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert gpu_count(environment, listing=listing, nodes=tmp_path) == count


@pytest.mark.parametrize(("platforms", "count"), [("cpu", 0), ("cuda,cpu", 4), ("gpu", 4), ("", 4), (" tpu ", 0)])
def test_platforms_without_nvidia_leave_all_out(listing, tmp_path, platforms, count):
    """JAX_PLATFORMS decides before anything else."""
    assert gpu_count({"JAX_PLATFORMS": platforms}, listing=listing, nodes=tmp_path) == count


def test_a_container_without_the_listing_shows_its_devices(tmp_path):
    """Two files /dev/nvidiaN; the driver's other files are no GPUs."""
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpus_of_machine(listing=tmp_path / "none", nodes=tmp_path) == 2


def test_without_a_driver_there_is_none(tmp_path):
    """Whatever the variable says."""
    nothing = tmp_path / "none"
    assert gpu_count({"CUDA_VISIBLE_DEVICES": "0,1"}, listing=nothing, nodes=nothing) == 0
    assert gpu_count({"CUDA_VISIBLE_DEVICES": "GPU-aa"}, listing=nothing, nodes=nothing) == 0


def test_the_entries_that_count_come_in_their_order():
    """CUDA numbers the visible GPUs so."""
    assert visible_entries("3,0,9,1", there=4) == ["3", "0"]
