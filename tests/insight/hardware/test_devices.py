"""Which device a name means, and that an unknown one is nothing."""

from __future__ import annotations

from unittest.mock import Mock

import jax
import pytest

from paceline.base.errors import DeviceError
from paceline.insight.hardware.catalog import DEVICES
from paceline.insight.hardware.devices import find_device, from_jax_device, meaning
from paceline.insight.model.roofline import peak

# Vendors' dense figures, from the data sheets: TFLOP/s of bfloat16 (float16 before Ampere), GB/s of memory.
SHEETS = {
    "P100": ("float32", 10.6, 732),
    "V100": ("float16", 125, 900),
    "A100-40": ("bfloat16", 312, 1555),
    "A100-80": ("bfloat16", 312, 2039),
    "H100": ("bfloat16", 989.4, 3350),
    "H100-PCIe": ("bfloat16", 756, 2000),
    "H200": ("bfloat16", 989.4, 4800),
    "B200": ("bfloat16", 2250, 8000),
    "MI250X": ("bfloat16", 191.5, 1638.4),
    "MI250X card": ("bfloat16", 383, 3276.8),
    "MI300X": ("bfloat16", 1307.4, 5300),
    "L4": ("bfloat16", 121, 300),
    "RTX 4090": ("bfloat16", 165.2, 1008),
    "K80": ("float32", 4.37, 240),
}


@pytest.mark.parametrize("name", SHEETS)
def test_a_device_has_the_rates_of_its_data_sheet(name):
    """Dense peak and memory bandwidth, without structured sparsity, to the last printed digit."""
    device = find_device(name)
    dtype, tflops, gigabytes = SHEETS[name]
    assert device.peak_flops_per_s[dtype] == pytest.approx(tflops * 1e12)
    assert device.memory_bytes_per_s == pytest.approx(gigabytes * 1e9)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_every_number_has_its_source_and_no_rate_is_out_of_order(device):
    """Narrower types are never slower, memory is what the name says within 10 %, each field names a document."""
    assert {"peak_flops_per_s", "memory_bytes", "memory_bytes_per_s", "link"} <= device.sources.keys()
    assert all(len(source.split()) >= 3 for source in device.sources.values())
    order = ["float64", "float32", "tfloat32", "bfloat16", "float8"]
    rates = [device.peak_flops_per_s[dtype] for dtype in order if dtype in device.peak_flops_per_s]
    assert rates == sorted(rates)
    said = [int(word) for word in device.name.split() if word.isdigit() and int(word) < 1000]
    if said:
        assert device.memory_bytes == pytest.approx(said[-1] * 1e9, rel=0.1)


def test_units_that_add_in_float16_have_no_rate():
    """A P100's 21.2 Tflop/s of float16 add in float16; with sums in float32 it does 10.6, as in float32."""
    assert "float16" not in find_device("P100").peak_flops_per_s
    assert peak(find_device("P100"), "float16") == (10.6e12, "float32")


def test_no_two_devices_share_a_name():
    """Each name and alias leads back to its own device."""
    for device in DEVICES:
        for name in (device.name, *device.aliases):
            assert find_device(name) is device


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100", "H100 SXM 80 GB"),
        ("h100-sxm", "H100 SXM 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80 GB"),
        ("A100", "A100 SXM 80 GB"),
        ("nvidia a100-sxm4-40gb", "A100 SXM 40 GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16 GB"),
        ("V100", "V100 SXM2 32 GB"),
        ("4090", "RTX 4090 24 GB"),
        ("K80 p2.8xlarge", "K80 half"),
        ("AMD Instinct MI250X", "MI250X GCD"),
    ],
)
def test_a_device_is_found_by_its_usual_names(name, found):
    """Case, dashes, spaces and the vendor's name do not matter; the result says which form is meant."""
    assert find_device(name).name == found


def test_a_name_that_several_forms_share_says_which_was_taken():
    """A100 has two sizes of memory and two boards; a full name needs no words."""
    assert meaning("A100").startswith("A100 is taken for A100 SXM 80 GB; A100-40 is the one with 40 GB")
    assert "H100-PCIe" in meaning("H100")
    assert meaning("A100-40") == ""
    assert "half" not in meaning("H100-PCIe") and "two dies" in meaning("MI250X")


@pytest.mark.parametrize(("name", "near"), [("H900", "H100"), ("A10O-80", "A100"), ("MI300A", "MI300X")])
def test_an_unknown_device_is_unknown_and_the_nearest_is_named(name, near):
    """Never a default: a wrong peak would give wrong answers without a word."""
    with pytest.raises(DeviceError, match="unknown device") as raised:
        find_device(name)
    assert "perhaps" in raised.value.fix and near in raised.value.fix


def test_a_name_like_nothing_lists_all_devices():
    """Where nothing is near, all are named."""
    with pytest.raises(DeviceError) as raised:
        find_device("qqqqqq")
    assert all(device.name in raised.value.fix for device in DEVICES)


def test_jax_devices_are_mapped_by_their_kind_or_not_at_all():
    """Kinds as drivers print them; one that is not in the table gives None."""
    for kind, name in (("NVIDIA H200", "H200 SXM 141 GB"), ("NVIDIA L4", "L4 24 GB"), ("Quantum 9", None)):
        found = from_jax_device(Mock(spec=jax.Device, platform="gpu", device_kind=kind))
        assert (found.name if found else None) == name


def test_this_cpu_is_measured_and_kept():
    """Rates are positive, a source says how they were measured, and the second call measures nothing."""
    cpu = find_device("cpu")
    assert cpu is find_device("this CPU") is from_jax_device(jax.devices()[0])
    assert {"float32", "bfloat16"} <= cpu.peak_flops_per_s.keys()
    assert 1e8 < cpu.peak_flops_per_s["float32"] < 1e14
    assert 1e7 < cpu.memory_bytes_per_s < 1e13
    assert cpu.sources["peak_flops_per_s"].startswith("measured")
